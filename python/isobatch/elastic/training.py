"""A training: the state that its steps change, in a form to be sent, and the steps of its optimizer."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from isobatch.elastic import parcels
from isobatch.elastic.messages import Circle, Held, StateLayout
from isobatch.errors import InputError

_ROOM, _MORE_ROOM = 256, 1 << 24
"""A state has at most _ROOM times the bytes of a rank's own network, plus _MORE_ROOM bytes: LBFGS has the
largest.
"""


class TrainingState:
    """Everything changed by a step: the network, its optimizer, and the training's `extra` objects.

    Attributes:
        shards: the ranks that share one copy of the state; 1: each rank has all of it.
        torn: whether a step was only half applied.
    """

    shards, torn = 1, False

    def __init__(self, net: nn.Module, optimizer: Optimizer, extra: Mapping[str, Any]) -> None:
        self.net, self.optimizer, self.extra = net, optimizer, extra
        self.device = next(net.parameters()).device

    def unfold(self, lease: float, timeout: float) -> None:
        """Spreads the state over the ranks of a new crew."""

    def fold(self) -> None:
        """Frees the parts of the state belonging to the past crew."""

    def settle(self, own: Held, circle: Circle) -> Held:  # noqa: ARG002
        """Waits until every rank has published its applied step, then returns this rank's state."""
        return own

    def prepare(self, step: int) -> None:
        """Keeps a step's gradients, to be applied later."""

    def pack(self, tree: Any) -> Any:
        """Returns a state in a form to be sent; `unpack` is the inverse."""
        return tree

    def unpack(self, tree: Any) -> Any:
        """Returns a state as it was before `pack`."""
        return tree

    def description(self) -> dict[str, Any]:
        """Returns facts shared by all ranks of a run."""
        shapes = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in self.net.named_parameters()]
        kinds = (bool, int, float, str, tuple, type(None))
        return {
            "model": f"{len(shapes)} parameters, {_digest(shapes)}",
            "optimizer": type(self.optimizer).__name__,
            **{
                f"optimizer's {name}": str(value)
                for name, value in self.optimizer.defaults.items()
                if name != "lr" and isinstance(value, kinds)  # The plan sets the learning rate.
            },
            "extra": [*self.extra],
        }

    def checksum(self) -> str:
        """Computes a checksum of the parameters and the optimizer's state, on their device; without buffers,
        as batch norm's depend on a rank's own samples."""
        tensors = [parameter.detach() for parameter in self.net.parameters()]
        for state in self.optimizer.state_dict()["state"].values():
            tensors += [state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)]
        return _digest(_bits(tensor) for tensor in tensors)

    def extras(self) -> dict[str, Any]:
        """Returns the states of the training's extras."""
        return {name: part.state_dict() for name, part in self.extra.items()}

    def tree(self) -> dict[str, Any]:
        """Returns the whole state in the form to be sent."""
        try:
            states = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}
            packed: dict[str, Any] = self.pack({**states, "extra": self.extras()})
        except InputError:
            raise
        except Exception as error:  # A user's state_dict may raise anything.
            raise InputError(
                f"the training's state cannot be sent: {type(error).__name__}: {error}"
            ) from None
        return packed

    def write(self) -> tuple[bytes, torch.Tensor]:
        """Writes the whole state: its layout, and the bytes of its tensors."""
        layout, tensors = parcels.layout_of(self.tree())
        return msgspec.json.encode(layout), parcels.to_bytes(layout, tensors)

    @property
    def room(self) -> int:
        """The most bytes for a state of this training."""
        tensors = [*self.net.parameters(), *self.net.buffers()]
        return _ROOM * sum(tensor.numel() * tensor.element_size() for tensor in tensors) + _MORE_ROOM

    def check_layout(self, written: bytes, size: int) -> StateLayout:
        """Reads the layout of a state with `size` bytes of tensors; it must be like this rank's own."""
        layout, sent = parcels.read_layout(written)
        own = parcels.specs_of(parcels.write_tree(self.tree())[1])
        parcels.check_alike(sent, own, "net.")
        if parcels.size_of(layout) != size:
            raise InputError("the others' state cannot be read: it is damaged")
        return layout

    def read(self, layout: StateLayout, written: torch.Tensor) -> None:
        """Loads a state written by `write`."""
        views = parcels.from_bytes(layout, written)
        copied = len(parcels.write_tree(parcels.read_tree(layout.tree, views)["net"])[1])
        # The network, which comes first, copies its tensors. Optimizer and extras may keep theirs: a view
        # would keep the bytes of the whole state alive, so they get clones.
        tree = parcels.read_tree(layout.tree, views[:copied] + [view.clone() for view in views[copied:]])
        try:
            state = self.unpack(tree)
            self.torn = True
            self.net.load_state_dict(state["net"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.read_extras(state["extra"])
            self.torn = False
        except Exception as error:
            raise InputError(
                f"the others' state cannot be loaded here: {type(error).__name__}: {error}"
            ) from None

    def read_extras(self, states: Mapping[str, Any]) -> None:
        """Loads states written by `extras`."""
        for name, state in states.items():
            self.extra[name].load_state_dict(state)


def check_whole(net: nn.Module, optimizer: Optimizer) -> None:
    """Refuses networks and optimizers sharded over the ranks."""
    for part in (*net.modules(), optimizer, *net.parameters()):
        kind = type(part).__name__
        if hasattr(part, "device_mesh") or kind in ("FullyShardedDataParallel", "ZeroRedundancyOptimizer"):
            raise InputError(
                f"net and optimizer must be whole on every rank, got a {kind}: a lost rank would take its "
                "part with it. For HSDP, pass net whole with shard= and shards=; otherwise train with "
                "ElasticRun and resume from a checkpoint"
            )


def local_part(tensor: Any) -> torch.Tensor:
    """Returns this rank's part of a tensor, or the whole tensor if it is not sharded."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def _bits(tensor: torch.Tensor) -> str:
    """Sums a tensor's bytes as whole numbers, on its device: eight at a time, faster than four."""
    tensor = local_part(tensor)
    written = tensor.contiguous().reshape(-1).view(torch.uint8)
    words, rest = written[: len(written) // 8 * 8], written[len(written) // 8 * 8 :]
    if words.storage_offset() % 8:
        words = words.clone()
    total = words.view(torch.int64).sum() + rest.sum(dtype=torch.int64)
    return f"{tuple(tensor.shape)} {total.item()}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()


# ---- the steps of an optimizer ----


Apply: TypeAlias = Callable[[Callable[[], Any]], Any]
"""Takes an optimizer's step, or skips it."""

_WATCHERS: WeakKeyDictionary[Optimizer, Apply | None] = WeakKeyDictionary()
"""The present watcher of each optimizer; several runs may use an optimizer one after another."""


def watch_steps(optimizer: Optimizer, apply: Apply) -> Callable[[], None]:
    """Passes an optimizer's steps to a watcher in place of the previous one; returns a function to end it."""
    if optimizer not in _WATCHERS:
        _install(optimizer)
    _WATCHERS[optimizer] = apply

    def end() -> None:
        if _WATCHERS.get(optimizer) is apply:
            _WATCHERS[optimizer] = None

    return end


def _install(optimizer: Optimizer) -> None:
    step = optimizer.step

    @wraps(step)
    def watched(owner: Optimizer, *args: Any, **options: Any) -> Any:
        apply = _WATCHERS.get(owner)
        if apply is None:
            return step(*args, **options)
        return apply(lambda: step(*args, **options))

    optimizer.step = MethodType(watched, optimizer)  # type: ignore[method-assign]
