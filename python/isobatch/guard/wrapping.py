"""What is around a model, and what of it each rank holds."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from isobatch.diagnosis.tensors import dense


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


def divisor(model: nn.Module, ranks: int) -> float:
    """What fully_shard divides the sum over ranks by: their number, unless the script sets another factor, as torchtitan does."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [
                state._fsdp_param_group
            ]  # older torch: one
            factors = [getattr(group, "gradient_divide_factor", None) for group in groups]
            if factors[0] is not None:
                return float(factors[0])
    return float(ranks)


def reentrant(loss: Tensor) -> bool:
    """Whether the older kind of activation checkpoint is in a graph: it refuses torch.autograd.grad."""
    nodes, seen = [loss.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        nodes.extend(following for following, _ in node.next_functions)
    return False


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, with its zeros where it is sparse."""
    return dense(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
