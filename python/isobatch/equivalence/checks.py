"""Checks of a step beside its gradient: ranks, samples, learning rates, clipping."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

import numpy as np

from isobatch.equivalence.causes import SplitCause
from isobatch.equivalence.records import Event, RecordedStep, Recording, Vector
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import distance

SCHEDULE = 0.05
"""Relative difference of two changes of the learning rate from which schedules are of different lengths.

A batch that does not divide the dataset may make one step more or less an epoch.
"""


def check_ranks(split: Split, step: RecordedStep, tolerance: float) -> Iterator[SplitCause]:
    """Yields differences between the ranks of a step: process group, weights, gradients."""
    if step.first.world != split.ranks:
        yield SplitCause(
            "ranks train alone",
            f"{split.ranks} processes run, but the process group has {step.first.world}",
            "call torch.distributed.init_process_group and wrap the model in DistributedDataParallel",
        )
        return
    apart = _ranks_apart(step.weights)
    if apart > tolerance:
        yield SplitCause(
            "ranks start with different weights",
            f"the ranks' weights differ by {apart:.1e} before the step",
            "seed every rank alike before the model is made, or let DistributedDataParallel broadcast it",
        )
    apart = _ranks_apart(step.gradients)
    if apart > tolerance:
        yield SplitCause(
            "gradients not averaged",
            f"the ranks' gradients differ by {apart:.1e} when the optimizer steps",
            "the step's last pass must synchronize: no no_sync() there, and call the DDP model, not the one "
            "inside",
        )


def check_samples(recording: Recording, event: Event, expected: int) -> Iterator[SplitCause]:
    """Yields faults in the samples of a step; the reference takes `expected` samples."""
    count = recording.samples(event)
    own = recording.rows(event, own=True)
    if own is not None:
        drawn = [[row for batch in rank for row in batch] for rank in own]
        total, different = sum(map(len, drawn)), len(set().union(*drawn))
        shared = any(len({*a} & {*b}) > len({*a}) / 2 for a, b in combinations(drawn, 2))
        if different < min(total, expected) and shared:
            yield SplitCause(
                "ranks draw the same samples",
                f"{different} different samples in a step of {total}: ranks draw the same rows",
                "give each rank its share: DistributedSampler, or seed the sampler by the rank's own share",
            )
            return
    elif recording.split.ranks > 1:
        hashes = [sorted(chain.from_iterable(rank)) for rank in recording.steps[event].hashes]
        if hashes[0] and all(rank == hashes[0] for rank in hashes):
            yield SplitCause(
                "ranks draw the same samples",
                "every rank passes the same samples through the model",
                "give each rank its share of the data",
            )
            return
    if count != expected and expected and count:
        yield SplitCause(
            "another batch",
            f"optimizer.step() came after {count} samples, expected {expected}",
            "the script does not follow the split: look where accumulation and micro-batch are set",
        )


def check_rates(
    step: RecordedStep, reference: RecordedStep, before: RecordedStep, reference_before: RecordedStep
) -> Iterator[SplitCause]:
    """Yields a difference of the learning rate from the reference, or of its change since the step `before`.

    A long cosine hardly falls in its first steps: with another length its rates are nearly the same there,
    and their changes are not.
    """
    rates, reference_rates = step.first.lrs, reference.first.lrs
    text = f"is {_few(rates)}, at one pass over the batch {_few(reference_rates)}"
    if len(rates) == len(reference_rates) and np.allclose(rates, reference_rates, rtol=1e-5, atol=1e-12):
        changes, reference_changes = _changes(before, step), _changes(reference_before, reference)
        rounding = 1e-12 * max(map(abs, reference_rates), default=0.0)
        if len(changes) != len(reference_changes):
            return
        if np.allclose(changes, reference_changes, rtol=SCHEDULE, atol=rounding):
            return
        text = (
            f"changed by {_few(changes, digits=2)} since step {before.first.step}, at one pass over the "
            f"batch by {_few(reference_changes, digits=2)}: the schedule has another length"
        )
    yield SplitCause(
        "learning rate",
        f"the learning rate of step {step.first.step} {text}",
        "the scheduler must step once per optimizer step, and count its warmup and length in these steps: a "
        "prepared scheduler of Accelerate steps once per process",
    )


def check_clipping(
    step: RecordedStep, reference: RecordedStep, tolerance: float, difference: float
) -> Iterator[SplitCause]:
    """Yields a difference of clipping: its number, or the norm of the same gradient."""
    norms, reference_norms = step.first.norms, reference.first.norms
    if len(norms) != len(reference_norms):
        yield SplitCause(
            "gradients clipped on every pass",
            f"the gradient is clipped {len(norms)} times in a step, {len(reference_norms)} times in one pass "
            "over the batch",
            "clip once, after the last pass of the step",
        )
    elif norms and difference <= tolerance:
        for (norm, _), (reference_norm, _) in zip(norms, reference_norms, strict=True):
            if abs(norm - reference_norm) > 10 * tolerance * max(reference_norm, 1e-30):
                yield SplitCause(
                    "clipping sees another norm",
                    f"clipping sees the norm {norm:.4g}, at one pass over the batch {reference_norm:.4g}",
                    "clip the averaged gradient: after the last, synchronized pass, and over all parameters",
                )
                return


def _ranks_apart(sketches: Vector) -> float:
    return max((distance(sketch, sketches[0]) for sketch in sketches[1:]), default=0.0)


def _changes(before: RecordedStep, step: RecordedStep) -> list[float]:
    return [now - then for then, now in zip(before.first.lrs, step.first.lrs, strict=False)]


def _few(rates: Sequence[float], digits: int = 6) -> str:
    return ", ".join(f"{rate:.{digits}g}" for rate in dict.fromkeys(rates[:4])) or "none"
