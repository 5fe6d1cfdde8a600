"""A plan in a torch training loop: `PlanLR` sets the learning rate, `PlanSampler` draws the micro-batches, `ElasticRun` does both
in a run that changes its GPUs."""

from isobatch.integrations.torch.elastic.run import ElasticRun
from isobatch.integrations.torch.lr import PlanLR
from isobatch.integrations.torch.sampler import MicroBatch, PlanSampler

__all__ = ["ElasticRun", "MicroBatch", "PlanLR", "PlanSampler"]
