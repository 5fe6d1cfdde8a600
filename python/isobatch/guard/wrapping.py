"""What is around a model, and what of it each rank holds."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from isobatch.diagnosis.chunks import dense


def inner(model: nn.Module) -> nn.Module:
    """The model inside of DDP, and of torch.compile around it."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def sharded(model: nn.Module) -> bool:
    """Whether each rank holds its own part of the weights: fully_shard, or the older FullyShardedDataParallel."""
    return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules())


def flat(model: nn.Module) -> bool:
    """Whether it is the older one, which hides the parameters in flat ones."""
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, with its zeros where it is sparse."""
    return dense(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
