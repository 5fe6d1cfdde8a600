"""A training run that survives its GPUs: `ElasticRun` plans it anew at whatever number of them it wakes up on."""

from isobatch.integrations.torch.elastic.run import ElasticRun
from isobatch.integrations.torch.elastic.steps import Micro, Step

__all__ = ["ElasticRun", "Micro", "Step"]
