"""A plan in a torch training loop.

`PlanLR` sets the learning rate, `PlanSampler` draws the micro-batches, and `GlobalLoader` loads them for any
trainer. `ElasticRun` does all of it in a run on changing GPUs, and `survivors` keeps a run going when ranks
are lost.
"""

from isobatch.integrations.torch.elastic.group import LeftOut
from isobatch.integrations.torch.elastic.run import ElasticRun
from isobatch.integrations.torch.elastic.survivors import survivors
from isobatch.integrations.torch.loader import GlobalLoader
from isobatch.integrations.torch.lr import PlanLR
from isobatch.integrations.torch.sampler import MicroBatch, PlanSampler

__all__ = ["ElasticRun", "GlobalLoader", "LeftOut", "MicroBatch", "PlanLR", "PlanSampler", "survivors"]
