"""A run's state from the rank that is furthest to those behind: read whole, put in place, and compared by checksums."""

from __future__ import annotations

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
    """All that a step changes: the network, its optimizer, and what else the training names."""

    def __init__(self, net: nn.Module, optimizer: Optimizer, extra: Mapping[str, Any]) -> None:
        self.net, self.optimizer, self.extra = net, optimizer, extra

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
            torch.save([self.net.state_dict(), self.optimizer.state_dict(), self.extras()], file)
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
        net, optimizer, extras = torch.load(file, map_location="cpu", weights_only=False)
        try:
            self.net.load_state_dict(net)
            self.optimizer.load_state_dict(optimizer)
            self.read_extras(extras)
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
            f"net and optimizer must be whole on every rank, got a {name}: the part of a lost rank is lost with it; shard nothing, or "
            "train with ElasticRun and go on from a checkpoint"
        )


def heal(training: TrainingState, mine: Held, lease: float) -> Held:
    """Brings all ranks of the new group to the state of the one that is furthest; it is sent to those behind only.

    Args:
        lease: seconds that a part of the state may take; who was lost in between is waited for no longer.

    Raises:
        InputError: on all ranks, where the state cannot be sent, or a new run's ranks begin at different steps.
    """
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, tuple(mine))
    held = [Held(*one) for one in every]
    source = max(
        range(len(held)),
        key=lambda rank: (held[rank].step != OUT, held[rank].trained, held[rank].step, -rank),
    )
    best = held[source]
    begins = {one.step for one in held if not one.trained and one.step != OUT}
    if not best.trained and len(begins) > 1:
        raise InputError(
            f"the ranks begin at steps {sorted(begins)}: start all of them with the same checkpoint",
            field="state",
        )
    behind = [rank for rank, one in enumerate(held) if (one.step, one.checksum) != (best.step, best.checksum)]
    if behind:
        _send(training, source, behind, best.checksum, timedelta(seconds=lease))
    return best


def _send(
    training: TrainingState, source: int, behind: list[int], checksum: str, patience: timedelta
) -> None:
    rank, size, written, error = dist.get_rank(), 0, None, None
    if rank == source:
        try:
            written = training.write()
            size = written.numel()
        except InputError as failed:
            error = str(failed)
    note: list[Any] = [size, error]
    dist.broadcast_object_list(note, source)
    size, error = note
    if error is not None:
        raise InputError(error)
    if written is not None:
        _pass_on(written, dist.isend, behind, patience)
    elif rank in behind:
        received = torch.empty(size, dtype=torch.uint8)
        _pass_on(received, dist.irecv, [source], patience)
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
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    whole = flat.detach().contiguous().view(kinds[flat.element_size()])
    return f"{tuple(tensor.shape)} {whole.sum(dtype=torch.int64).item()}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
