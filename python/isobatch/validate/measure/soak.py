"""The plan's own step over and over for minutes: how its time drifts, and whether the same step gives the same bits again.

A step here starts from the same weights each time, since its optimizer has a learning rate of 0. So its gradients can be computed again
at any time: each rank's own, before the all-reduce, where other bits name the rank and its GPU, and those after it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from isobatch.diagnosis.checksum import checksum
from isobatch.validate.measure.timing import Works
from isobatch.validate.report.figures import Soak
from isobatch.validate.step.training import Training

BLOCK_SECONDS = 1.0
"""Of steps between two repetitions of the same step."""
TRIES = 3
"""Repetitions in the beginning, which say whether the step is deterministic at all."""
SEED = 11  # of dropout, in the step that is repeated
POINTS = 200
clock = time.monotonic

Sums = tuple[tuple[int, int], tuple[int, int]]
"""Of a rank's own gradients, and of the averaged ones."""


class Repeater:
    """The same step again: from the same weights and batches, with the same random numbers."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.own_seconds: list[float] = []
        self._batches = training.few_in_turn(1)
        self._weights = training.weights(self._batches)

    def once(self) -> Sums:
        """The bits of the step's gradients."""
        training, group = self.training, self.training.group
        own, averaged = (self._gradients(sync=sync) for sync in (False, True))
        training.model.zero_grad(set_to_none=True)
        group.sync()
        return own, averaged

    def _gradients(self, *, sync: bool) -> tuple[int, int]:
        training, group = self.training, self.training.group
        training.model.zero_grad(set_to_none=True)
        torch.manual_seed(SEED + group.rank)
        scaler = training.scaler()
        group.sync()
        begun = time.perf_counter()
        training.backward(self._batches, self._weights, sync=sync, scaler=scaler, dtype=training.dtype)
        group.sync()
        if not sync:  # no other rank is in this time
            self.own_seconds.append(time.perf_counter() - begun)
        return checksum([p.grad for p in training.model.parameters() if p.grad is not None])


@contextlib.contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """torch's deterministic kernels, where there are some."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    state = torch.random.get_rng_state()
    try:
        if wanted:
            torch.use_deterministic_algorithms(True, warn_only=True)
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.random.set_rng_state(state)


class _Reference(NamedTuple):
    """The bits that a step's gradients have; whether they are the same each time, a rank's `own` and the `averaged` ones; by rank how often
    its own were not; and whether that takes torch's deterministic kernels."""

    bits: Sums
    own: bool
    averaged: bool
    differing: list[int]
    kernels: bool


def _reference(repeater: Repeater) -> _Reference:
    """The step tried a few times, with the job's kernels and, where those give other bits each time, with deterministic ones."""
    group = repeater.training.group
    for kernels in (False, True):
        with _deterministic(kernels):
            sums = [repeater.once() for _ in range(TRIES)]
        bits = max(sums, key=sums.count)
        told = group.gather([(one[0] != bits[0], one[1] != bits[1]) for one in sums])
        differing = [sum(own for own, _ in rank) for rank in told]
        averaged = not any(other for rank in told for _, other in rank)
        # All ranks compute with the same kernels: where only a minority differs, it is not the kernels.
        odd = sum(map(bool, differing))
        if 2 * odd <= group.world_size and odd < group.world_size:
            return _Reference(bits, True, averaged, differing, kernels)
    return _Reference(bits, False, False, differing, True)


def _again(repeater: Repeater, reference: _Reference) -> list[tuple[bool, bool]]:
    """By rank, whether its own gradients had other bits this time, and whether those after the all-reduce had."""
    with _deterministic(reference.kernels):
        own, averaged = repeater.once()
    return repeater.training.group.gather((own != reference.bits[0], averaged != reference.bits[1]))


def third(values: Sequence[float], which: int) -> float:
    """The median of a third of some values in order; of the last where `which` is 2."""
    count = max(1, len(values) // 3)
    return statistics.median(values[:count] if which == 0 else values[-count:])


def drift(values: Sequence[float]) -> float:
    """How much larger the last third is than the first, as a fraction.

    >>> drift([1.0, 1.0, 1.0, 1.0, 1.5, 1.5])
    0.5
    """
    return third(values, 2) / third(values, 0) - 1 if values else 0.0


def measure(training: Training, works: Works, minutes: float, clocks: Callable[[], int | None]) -> Soak:
    """Repeats the step for so many minutes.

    Args:
        works: the step, as it is timed.
        clocks: the GPU's clock now, in MHz; None where nothing tells it.
    """
    group = training.group
    training.model.train()
    repeater = Repeater(training)
    reference = _reference(repeater)
    differing, averaged = reference.differing, 0
    works.prepare()
    blocks, steps, repeats, own_clock = list[float](), 0, TRIES, list[float]()
    end = clock() + 60 * minutes
    while group.from_first(clock() < end):
        begun, count, took = clock(), 0, 0.0
        while True:
            took += group.time(works.whole)
            count += 1
            if group.from_first(took >= BLOCK_SECONDS or clock() >= end):
                break
        if (mhz := clocks()) is not None:
            own_clock.append(float(mhz))
        blocks.append(took / count)
        steps += count
        if reference.own:
            told = _again(repeater, reference)
            repeats += 1
            differing = [count + own for count, (own, _) in zip(differing, told, strict=True)]
            averaged += any(other for _, other in told) and not any(own for own, _ in told)
        group.pulse.grant(clock() - begun)
    slowest = group.slowest(blocks)
    return Soak(
        minutes=minutes,
        steps=steps,
        repeats=repeats,
        deterministic=reference.own,
        drift=drift(slowest),
        rank_drift=group.gather(drift(repeater.own_seconds[2 * TRIES :])),
        differing=differing,
        averaged_differing=averaged if reference.averaged else None,
        block_seconds=slowest[:: max(1, len(slowest) // POINTS)][:POINTS],
        clock_drift=group.gather(drift(own_clock) if own_clock else None),
    )
