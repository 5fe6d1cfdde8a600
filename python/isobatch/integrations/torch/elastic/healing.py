"""Heals ranks behind: the furthest rank sends them its state, which they receive whole, load, and check by
checksum.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic import parcels
from isobatch.integrations.torch.elastic.circle import Circle
from isobatch.integrations.torch.elastic.messages import (
    OUT,
    Announced,
    Held,
    Parcel,
    StateLayout,
    name_of,
)

_CHUNK = 1 << 24
"""Bytes sent at once."""


_MAX_LAYOUT = 1 << 28
"""The most bytes of a state's layout."""
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
        return {
            "model": f"{len(shapes)} parameters, {_digest(shapes)}",
            "optimizer": type(self.optimizer).__name__,
            **self._defaults(),
            "extra": [*self.extra],
        }

    def _defaults(self) -> dict[str, str]:
        """Returns the optimizer's settings except the learning rate, set by the plan."""
        kinds = (bool, int, float, str, tuple, type(None))
        return {
            f"optimizer's {name}": str(value)
            for name, value in self.optimizer.defaults.items()
            if name != "lr" and isinstance(value, kinds)
        }

    def checksum(self) -> str:
        """Computes a checksum of the parameters and the optimizer's state, on their device. Buffers are left
        out: batch norm's depend on a rank's own samples."""
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
            tree = {
                "net": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "extra": self.extras(),
            }
            packed: dict[str, Any] = self.pack(tree)
        except InputError:
            raise
        except Exception as error:  # A user's state_dict may raise anything.
            raise InputError(
                f"the training's state cannot be sent: {type(error).__name__}: {error}"
            ) from None
        return packed

    def check_sendable(self) -> None:
        """Refuses a state with unsendable parts."""
        parcels.write_tree(self.tree())

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


_SHARDED = "FullyShardedDataParallel", "ZeroRedundancyOptimizer"


def check_whole(net: nn.Module, optimizer: Optimizer) -> None:
    """Refuses networks and optimizers sharded over the ranks."""
    things = [*net.modules(), optimizer, *net.parameters()]
    names = (
        type(thing).__name__
        for thing in things
        if hasattr(thing, "device_mesh") or type(thing).__name__ in _SHARDED
    )
    if (name := next(names, None)) is not None:
        raise InputError(
            f"net and optimizer must be whole on every rank, got a {name}: a lost rank would take its "
            "part with it. For HSDP, pass net whole with shard= and shards=; otherwise train with ElasticRun "
            "and resume from a checkpoint"
        )


class NoReplica(InputError):
    """No rank of the crew can go on: the shards left of the state are not all of the same step."""


def heal(training: TrainingState, own: Held, lease: float, circle: Circle) -> Held:
    """Brings all ranks of the new group to the state of the furthest replica, sent shard by shard to ranks
    behind."""
    states, shards = circle.held("held", own), training.shards

    def worth(first: int) -> tuple[bool, bool, int, int]:
        replica = states[first : first + shards]
        steps = [state.step for state in replica]
        return min(steps) != OUT, all(state.trained for state in replica), min(steps), -first

    first = max(range(0, len(states), shards), key=worth)
    best = states[first + dist.get_rank() % shards]
    whole, trained = worth(first)[:2]
    if not whole or (not trained and any(state.trained for state in states)):
        raise NoReplica("no replica is left with all of its shards at the same step: go on from a checkpoint")
    begins = {state.step for state in states if not state.trained and state.step != OUT}
    if not best.trained and len(begins) > 1:
        raise InputError(
            f"the ranks begin at steps {sorted(begins)}: start all of them with the same checkpoint",
            field="state",
        )
    sources = {
        rank: first + rank % shards
        for rank, state in enumerate(states)
        if (state.step, state.checksum)
        != (states[first + rank % shards].step, states[first + rank % shards].checksum)
    }
    _name_drift(states, sources, circle)
    if sources:
        _send(training, sources, best.checksum, timedelta(seconds=lease), circle)
    return best


def _name_drift(states: list[Held], sources: dict[int, int], circle: Circle) -> None:
    """Warns of ranks with different weights at the same step, before their weights are overwritten."""
    names = circle.table.ids
    for rank, source in sources.items():
        state, reference = states[rank], states[source]
        if state.trained and reference.trained and state.step == reference.step:
            warnings.warn(
                f"rank {name_of(names[rank])} had other weights than {name_of(names[source])} at the same "
                f"step, {state.step:,}, and now takes those: the ranks did not train alike, as without "
                "crew.wrap",
                stacklevel=4,
            )


def _send(
    training: TrainingState, sources: dict[int, int], checksum: str, patience: timedelta, circle: Circle
) -> None:
    """Sends the state to the ranks behind, each from its source: first the layout, then the tensors if all
    ranks can take them."""
    rank, parcel, parts = dist.get_rank(), Parcel(), list[torch.Tensor]()
    behind = [receiver for receiver, source in sources.items() if source == rank]
    if behind:
        try:
            layout, tensors = training.write()
            parts = [torch.frombuffer(bytearray(layout), dtype=torch.uint8), tensors]
            digest = hashlib.sha256(layout).hexdigest()
            parcel = Parcel((Announced(len(layout), digest), Announced(tensors.numel(), "")))
        except InputError as error:
            parcel = Parcel(error=str(error))
    parcels_ = _without_error(circle.gather("parcel", parcel))
    source = sources.get(rank)
    pieces = None if source is None else parcels_[source].pieces
    answer, received = Parcel(), None
    if parts:
        _pass_on(parts[0], dist.isend, behind, patience)
    elif source is not None:
        try:
            if pieces is None or pieces[0].size > _MAX_LAYOUT or pieces[1].size > training.room:
                raise InputError(
                    f"the others' state is larger than this rank can use: {training.room:,} bytes"
                )
            written, digest = _received(pieces[0].size, source, patience)
            _check_digest(digest, pieces[0].digest)
            received = training.check_layout(bytes(written.numpy()), pieces[1].size)
        except InputError as error:
            answer = Parcel(error=str(error))
    _without_error(circle.gather("answer", answer))
    digest = ""
    if parts:
        digest = _pass_on(parts[1], dist.isend, behind, patience)
    elif pieces is not None and source is not None:
        tensors, digest = _received(pieces[1].size, source, patience)
    sent = circle.gather("sent", Announced(0, digest))
    if source is not None and received is not None:
        _check_digest(digest, sent[source].digest)
        # The state is complete here: from now on only this process's own end can leave it half loaded.
        training.read(received, tensors)
        if training.checksum() != checksum:
            raise InputError("the others' state changed while it was loaded here: its checksum differs")


def _without_error(messages: list[Parcel]) -> list[Parcel]:
    for message in messages:
        if message.error is not None:
            raise InputError(message.error)
    return messages


def _received(size: int, source: int, patience: timedelta) -> tuple[torch.Tensor, str]:
    """Receives bytes; returns them with their digest."""
    written = torch.empty(size, dtype=torch.uint8)
    return written, _pass_on(written, dist.irecv, [source], patience)


def _check_digest(own: str, signed: str) -> None:
    """Refuses received bytes with another digest than the sender signed."""
    if own != signed:
        raise RuntimeError("gloo: what came is not the state that was announced")


def _pass_on(
    written: torch.Tensor, begin: Callable[[torch.Tensor, int], Any], ranks: list[int], patience: timedelta
) -> str:
    """Sends or receives bytes, part by part, each part to or from all `ranks` at once; returns their SHA-256.

    gloo waits for a send or a receive as long as ranks may take to connect, and does not notice that the
    receiver died. So each part has a time-out of its own. The digest is computed during the transfer: of the
    part being sent, or of the part received before.
    """
    digest, sends = hashlib.sha256(), begin is dist.isend
    ready = torch.empty(0, dtype=torch.uint8)
    for part in torch.split(written, _CHUNK):
        works = [begin(part, rank) for rank in ranks]
        digest.update((part if sends else ready).numpy().data)
        for work in works:
            work.wait(patience)
        ready = part
    if not sends:
        digest.update(ready.numpy().data)
    return digest.hexdigest()


def _bits(tensor: torch.Tensor) -> str:
    """Sums a tensor's bytes as whole numbers, on its own device: eight bytes at a time (faster than four),
    then the rest."""
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    written = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words, rest = written[: len(written) // 8 * 8], written[len(written) // 8 * 8 :]
    if words.storage_offset() % 8:
        words = words.clone()
    total = words.view(torch.int64).sum() + rest.sum(dtype=torch.int64)
    return f"{tuple(tensor.shape)} {total.item()}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
