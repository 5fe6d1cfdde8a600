"""Ranks with the same samples, as one replica: tensor, context and pipeline parallelism split a model alone.

They are told by the rows that each rank was given, and by the names of the script's DeviceMesh.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod

import msgspec
import numpy as np

from isobatch.equivalence.records import Event, RankStep, RecordedStep, Recording, Vector
from isobatch.errors import InputError
from isobatch.words import counted

INSIDE = {
    *("tp", "tensor", "tensor_parallel", "model", "mp", "cp", "context", "sp", "sequence", "seq", "ulysses"),
    *("ring", "pp", "pipe", "pipeline", "stage"),
}
"""Names of a mesh's dimensions along which ranks hold the same samples."""
APART = 1e-3
"""Relative distance of the weights of two ranks that hold different parts of a model."""


class Replicas(msgspec.Struct, frozen=True):
    """The ranks of each replica, in the order of their first ranks."""

    ranks: list[list[int]]

    @property
    def width(self) -> int:
        """Ranks of a replica."""
        return len(self.ranks[0])

    @property
    def is_strided(self) -> bool:
        """Whether neighbouring ranks are of different replicas."""
        return len(self.ranks) > 1 < self.width and self.ranks[0][1] != self.ranks[0][0] + 1

    def deal(self, shares: Sequence[list[int]]) -> list[list[int]]:
        """Gives each rank the share of its replica, for another number of replicas.

        >>> Replicas([[0, 1], [2, 3]]).deal([[7], [8], [9]])
        [[7], [7], [8], [8], [9], [9]]
        >>> Replicas([[0, 2], [1, 3]]).deal([[7], [8], [9]])
        [[7], [8], [9], [7], [8], [9]]
        """
        if self.is_strided:
            return [*shares] * self.width
        return [share for share in shares for _ in range(self.width)]


ALONE = Replicas([[0]])
"""Each rank is a replica of its own."""


def find_replicas(recording: Recording) -> Replicas:
    """Groups a run's ranks by their samples.

    Ranks that draw the same rows by mistake are not grouped: they hold the same weights, no mesh tells them
    apart, and there are as many of them as were asked for.

    Raises:
        InputError: the ranks are not as many replicas as the split has, or hold parts of a model that nothing
            tells how to put together.
    """
    event, step = next(iter(recording.steps.items()))
    replicas, world = recording.split.ranks, len(step.ranks)
    alone = Replicas([[rank] for rank in range(world)])
    if world == 1 or all(record.world == 1 for record in step.ranks):
        return alone
    inside = {name: size for name, (_, size) in step.first.mesh.items() if name in INSIDE and size > 1}
    groups = _groups(recording, event, inside)
    holds_parts = _holds_parts(step)
    if len(groups) == replicas and len({*map(len, groups)}) == 1 and (world > replicas or not holds_parts):
        return Replicas(groups)
    is_parted = bool(inside) or holds_parts
    if world == replicas and not is_parted:
        return alone
    if is_parted and not inside and len(groups) == world == replicas:
        raise InputError(
            f"at {recording.split} each rank's {step.first.kind} holds another part of the weights: this "
            "engine shows no whole gradient, and isobatch same cannot put it together"
        )
    kinds = ", by a mesh with " + " and ".join(f"{name} {size}" for name, size in inside.items())
    ranks = prod(inside.values())
    remedy = f"start {ranks} × {{gpus}} processes" if inside else "start one process for each of {gpus}"
    raise InputError(
        f"{world} processes ran at {recording.split}, and are {counted(len(groups), 'replica')}"
        f"{kinds if inside else ''}: expected {counted(replicas, 'replica')}. To fix it: {remedy}"
    )


def _groups(recording: Recording, event: Event, inside: dict[str, int]) -> list[list[int]]:
    """Groups ranks by the rows of their draws, else by the mesh, else by hashed samples."""
    ranks = recording.steps[event].ranks
    keys: list[object]
    if (rows := recording.rows(event, own=True)) is not None:
        keys = [str(batches) for batches in rows]
    elif inside:
        keys = [[at for name, (at, _) in record.mesh.items() if name not in inside] for record in ranks]
    else:
        keys = [[samples.hashes for samples in record.passes] for record in ranks]
    groups: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        groups.setdefault(str(key), []).append(rank)
    return [*groups.values()]


def _holds_parts(step: RecordedStep) -> bool:
    """Tells whether ranks hold different parts of a model: other tensors, or tensors of no module."""
    first = step.first
    if any((record.names, record.entries) != (first.names, first.entries) for record in step.ranks):
        return True
    named = [not name.startswith("parameter ") for name in first.names]
    apart = np.linalg.norm(step.weights - step.weights[0], axis=1).max()
    return not any(named) and bool(apart > APART * np.linalg.norm(step.weights[0]))


def join_replicas(recording: Recording, replicas: Replicas) -> Recording:
    """Puts the ranks of each replica together: their tensors beside one another, the samples of the first."""
    if replicas.width == 1:
        return recording
    steps = {event: _join_step(step, replicas.ranks) for event, step in recording.steps.items()}
    return msgspec.structs.replace(recording, steps=steps)


def _join_step(step: RecordedStep, groups: list[list[int]]) -> RecordedStep:
    widths = [sum(record.sizes) for record in step.ranks]

    def joined(rows: Vector) -> Vector:
        return np.stack([np.concatenate([rows[rank, : widths[rank]] for rank in group]) for group in groups])

    by_rank = [step.changes, *step.further]
    changes = [by_rank[rank] for rank in groups[0]]
    alike = len({*map(len, changes)}) == 1
    return msgspec.structs.replace(
        step,
        ranks=[_join_records([step.ranks[rank] for rank in group], len(groups)) for group in groups],
        gradients=joined(step.gradients),
        weights=joined(step.weights),
        after=None if step.after is None else joined(step.after),
        changes=np.concatenate(changes, axis=1) if alike else changes[0][:0],
        further=[],
    )


def _join_records(records: list[RankStep], world: int) -> RankStep:
    def joined(name: str) -> list[object]:
        return [*chain.from_iterable(getattr(record, name) for record in records)]

    lists = {name: joined(name) for name in ("names", "sizes", "entries", "own")}
    return msgspec.structs.replace(records[0], rank=0, world=world, **lists)
