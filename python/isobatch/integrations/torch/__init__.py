"""A plan in a torch training loop: `PlanLR` sets the learning rate, `PlanSampler` serves the micro-batches."""

from isobatch.integrations.torch.lr import PlanLR
from isobatch.integrations.torch.sampler import MicroBatch, PlanSampler

__all__ = ["MicroBatch", "PlanLR", "PlanSampler"]
