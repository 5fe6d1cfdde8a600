"""Models whose parameters are divided among the ranks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor


def sharded(model: nn.Module) -> bool:
    """Whether each rank holds its own part of the weights: fully_shard, or the older FullyShardedDataParallel."""
    return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules())


def flat(model: nn.Module) -> bool:
    """Whether it is the older one, which hides the parameters in flat ones."""
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
