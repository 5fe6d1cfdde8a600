"""A plan in a torch training loop.

`PlanLR` sets the learning rate, `PlanSampler` draws the micro-batches, and `GlobalLoader` loads them for any
trainer. `ElasticRun` does all of it in a run on changing GPUs, and `survivors` keeps a run going when ranks
are lost.
"""

from isobatch.elastic.group import LeftOut
from isobatch.elastic.run import ElasticRun
from isobatch.elastic.survivors import survivors
from isobatch.training.loader import GlobalLoader
from isobatch.training.lr import PlanLR
from isobatch.training.sampler import MicroBatch, PlanSampler

__all__ = ["ElasticRun", "GlobalLoader", "LeftOut", "MicroBatch", "PlanLR", "PlanSampler", "survivors"]
