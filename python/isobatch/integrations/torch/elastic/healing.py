"""A run's state from the rank that is furthest to those behind: read whole, put in place, and compared by checksums."""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.membership import OUT

_CHUNK = 1 << 24
"""Bytes sent at once."""


class Held(NamedTuple):
    """A rank's state in a word: the steps applied (or OUT), whether it is of this run's training, the checksum, and the run's state."""

    step: int
    trained: bool
    checksum: str
    run: dict[str, Any] | None


class TrainingState:
    """All that a step changes: the network, its optimizer, and what else the training names.

    Attributes:
        shards: the ranks that hold it together; 1: each holds all of it.
        torn: a step was applied by half.
    """

    shards, torn = 1, False

    def __init__(self, net: nn.Module, optimizer: Optimizer, extra: Mapping[str, Any]) -> None:
        self.net, self.optimizer, self.extra = net, optimizer, extra
        self.device = next(net.parameters()).device

    def unfold(self, lease: float, timeout: float) -> None:
        """Spreads the state over the ranks of a new crew."""

    def fold(self) -> None:
        """Lets go of what belongs to the crew that ended."""

    def settle(self, mine: Held) -> Held:
        """Returns what this rank holds once all ranks of the new crew know what the others applied."""
        return mine

    def prepare(self, step: int) -> None:
        """Keeps what a step needs to be applied later."""

    def pack(self, tree: Any) -> Any:
        """Returns a state to be sent; `unpack` is its inverse."""
        return tree

    def unpack(self, tree: Any) -> Any:
        """Returns a state as it was before `pack`."""
        return tree

    def description(self) -> dict[str, Any]:
        """Returns what is the same on all ranks of a run."""
        shapes = [f"{name} {tuple(value.shape)} {value.dtype}" for name, value in self.net.named_parameters()]
        return {
            "model": f"{len(shapes)} parameters, {_digest(shapes)}",
            "optimizer": type(self.optimizer).__name__,
            "extra": [*self.extra],
        }

    def checksum(self) -> str:
        """Computes a checksum of the parameters and of the optimizer's state, where they are. Buffers differ by rank: batch norm's are of
        its own samples."""
        tensors = [parameter.detach() for parameter in self.net.parameters()]
        for state in self.optimizer.state_dict()["state"].values():
            tensors += [state[name] for name in sorted(state) if isinstance(state[name], torch.Tensor)]
        return _digest(_bits(tensor) for tensor in tensors)

    def extras(self) -> dict[str, Any]:
        """Returns the state of what else the training names."""
        return {name: one.state_dict() for name, one in self.extra.items()}

    def write(self) -> torch.Tensor:
        """Writes all of it, as bytes.

        Raises:
            InputError: a part has a state that cannot be sent.
        """
        file = io.BytesIO()
        try:
            torch.save(self.pack([self.net.state_dict(), self.optimizer.state_dict(), self.extras()]), file)
        except Exception as error:  # Whatever a user's own state_dict raises.
            raise InputError(
                f"the training's state cannot be sent: {type(error).__name__}: {error}"
            ) from None
        return torch.frombuffer(file.getbuffer(), dtype=torch.uint8)

    def read(self, written: torch.Tensor) -> None:
        """Puts in place what `write` gave.

        Raises:
            InputError: this rank's model, optimizer or extras cannot take it.
        """
        file = io.BytesIO(written.numpy().data)
        written_state = torch.load(file, map_location="cpu", weights_only=False)
        try:
            net, optimizer, extras = self.unpack(written_state)
            self.torn = True
            self.net.load_state_dict(net)
            self.optimizer.load_state_dict(optimizer)
            self.read_extras(extras)
            self.torn = False
        except Exception as error:
            raise InputError(
                f"the others' state cannot be loaded here: {type(error).__name__}: {error}"
            ) from None

    def read_extras(self, states: Mapping[str, Any]) -> None:
        """Puts in place what `extras` gave."""
        for name, state in states.items():
            self.extra[name].load_state_dict(state)


_SHARDED = "FullyShardedDataParallel", "ZeroRedundancyOptimizer"


def check_whole(net: nn.Module, optimizer: Optimizer) -> None:
    """Refuses what each rank holds a part of.

    Raises:
        InputError: the network is sharded, as by fully_shard or tensor parallelism, or the optimizer is.
    """
    things = [*net.modules(), optimizer, *net.parameters()]
    names = (
        type(thing).__name__
        for thing in things
        if hasattr(thing, "device_mesh") or type(thing).__name__ in _SHARDED
    )
    if (name := next(names, None)) is not None:
        raise InputError(
            f"net and optimizer must be whole on every rank, got a {name}: the part of a lost rank is lost with it. Where replicas are "
            "sharded alike (HSDP), pass net whole, and shard= and shards=; else train with ElasticRun and go on from a checkpoint"
        )


class NoReplica(InputError):
    """No rank of the crew can go on: all that is left of the state is of no one step."""


def heal(training: TrainingState, mine: Held, lease: float) -> Held:
    """Brings all ranks of the new group to the state of the replica that is furthest; it is sent to those behind only, shard by shard.

    Args:
        lease: seconds that a part of the state may take; who was lost in between is waited for no longer.

    Raises:
        NoReplica: on all ranks, where no replica is whole.
        InputError: on all ranks, where the state cannot be sent, or a new run's ranks begin at different steps.
    """
    held, shards = [Held(*one) for one in gather(mine)], training.shards

    def worth(first: int) -> tuple[bool, bool, int, int]:
        replica = held[first : first + shards]
        steps = [one.step for one in replica]
        return min(steps) != OUT, all(one.trained for one in replica), min(steps), -first

    first = max(range(0, len(held), shards), key=worth)
    best = held[first + dist.get_rank() % shards]
    whole, trained = worth(first)[:2]
    if not whole or (not trained and any(one.trained for one in held)):
        raise NoReplica("no replica is left with all of its shards at the same step: go on from a checkpoint")
    begins = {one.step for one in held if not one.trained and one.step != OUT}
    if not best.trained and len(begins) > 1:
        raise InputError(
            f"the ranks begin at steps {sorted(begins)}: start all of them with the same checkpoint",
            field="state",
        )
    sources = {
        rank: first + rank % shards
        for rank, one in enumerate(held)
        if (one.step, one.checksum)
        != (held[first + rank % shards].step, held[first + rank % shards].checksum)
    }
    if sources:
        _send(training, sources, best.checksum, timedelta(seconds=lease))
    return best


def gather(mine: Held) -> list[Any]:
    """Returns what each rank holds."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, tuple(mine))
    return every


def _send(training: TrainingState, sources: dict[int, int], checksum: str, patience: timedelta) -> None:
    """Sends the state to the ranks behind, each from its source."""
    rank, size, written, error = dist.get_rank(), 0, None, None
    behind = [other for other, source in sources.items() if source == rank]
    if behind:
        try:
            written = training.write()
            size = written.numel()
        except InputError as failed:
            error = str(failed)
    notes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(notes, (size, error))
    for _, error in notes:
        if error is not None:
            raise InputError(error)
    if written is not None:
        _pass_on(written, dist.isend, behind, patience)
    elif rank in sources:
        received = torch.empty(notes[sources[rank]][0], dtype=torch.uint8)
        _pass_on(received, dist.irecv, [sources[rank]], patience)
        # All of it is here: from now on nothing can end half-way but this process.
        training.read(received)
        if training.checksum() != checksum:
            raise InputError("the others' state is another once it is loaded here: its checksum differs")


def _pass_on(
    written: torch.Tensor, begin: Callable[[torch.Tensor, int], Any], ranks: list[int], patience: timedelta
) -> None:
    """Sends or receives bytes, part by part; all who get them get each part together.

    gloo waits for a send or a receive as long as its ranks may take to connect, and does not see that a send's other end died.
    """
    for part in torch.split(written, _CHUNK):
        for work in [begin(part, rank) for rank in ranks]:
            work.wait(patience)


def _bits(tensor: torch.Tensor) -> str:
    """Sums a tensor's bits as whole numbers, on its own device."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    whole = flat.detach().contiguous().view(kinds[flat.element_size()])
    return f"{tuple(tensor.shape)} {whole.sum(dtype=torch.int64).item()}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
