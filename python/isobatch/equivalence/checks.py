"""Checks of a step beside its gradient: ranks, samples, learning rates, settings, clipping, the update."""

from collections.abc import Iterator, Sequence
from itertools import chain, combinations, zip_longest
from typing import Any

import numpy as np

from isobatch.equivalence.laws import SplitCause, break_of
from isobatch.equivalence.records import Event, RecordedStep, Recording, Vector
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import distance
from isobatch.limits import within

SCHEDULE = 0.05
"""Relative difference of two changes of the learning rate that a schedule's rounded length makes.

A batch that does not divide the dataset may make one step more or less an epoch: twice its share of an epoch
counts, where that is more.
"""
ROUNDED_MOST = 0.3
"""The most of it: a schedule that counts passes is twice too slow at the least."""
EQUAL = 1e-5
"""Relative difference of two settings that is rounding."""
MOVED = 1e-3
"""The same from the second step on, where a schedule may move a momentum with the learning rate."""
SETTINGS = (
    *("weight_decay", "momentum", "dampening", "nesterov", "betas", "beta1", "beta2", "eps", "alpha", "rho"),
    *("amsgrad", "maximize", "decoupled_weight_decay", "trust_coefficient"),
)
"""Values of a parameter group, beside its learning rate, that decide on the update."""


def check_finite(recording: Recording, event: Event) -> Iterator[SplitCause]:
    """Yields the first gradient or loss without a finite value, with its rank and pass."""
    for rank, gradient in zip(recording.steps[event].ranks, recording.steps[event].gradients, strict=True):
        broken = [number for number, samples in enumerate(rank.passes) if not samples.finite]
        if np.isfinite(gradient).all() and not broken:
            continue
        where = f"the loss of pass {broken[0]} is" if broken else "its losses are numbers, the gradient is"
        yield break_of(
            "not_finite", f"the gradient of rank {rank.rank} at step {event[1]} is not finite: {where} not"
        )
        return


def check_ranks(split: Split, step: RecordedStep, tolerance: float) -> Iterator[SplitCause]:
    """Yields differences between the ranks of a step: process group, weights, gradients."""
    if step.first.world != split.ranks:
        yield break_of(
            "ranks_alone",
            f"{split.ranks} processes run, but the process group has {step.first.world}",
        )
        return
    apart = _ranks_apart(step.weights)
    if not within(apart, tolerance):
        yield break_of("other_weights", f"the ranks' weights differ by {apart:.1e} before the step")
    apart = _ranks_apart(step.gradients)
    if not within(apart, tolerance):
        yield break_of(
            "never_averaged", f"the ranks' gradients differ by {apart:.1e} when the optimizer steps"
        )


def check_start(step: RecordedStep, reference: RecordedStep, tolerance: float) -> Iterator[SplitCause]:
    """Yields first weights unlike the reference's: they have another gradient."""
    columns = step.first.columns
    apart = distance(step.weights[0][columns], reference.weights[0][columns])
    if not within(apart, tolerance):
        yield break_of(
            "another_start", f"its weights differ by {apart:.1e} before the first step from those of one pass"
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
            yield break_of(
                "same_data", f"{different} different samples in a step of {total}: ranks draw the same rows"
            )
            return
    elif recording.split.ranks > 1:
        hashes = [sorted(chain.from_iterable(rank)) for rank in recording.steps[event].hashes]
        if hashes[0] and all(rank == hashes[0] for rank in hashes):
            yield break_of("same_data", "every rank passes the same samples through the model")
            return
    if count != expected and expected and count:
        later = (event[0], 1)
        if event[1] == 0 and later in recording.steps and recording.samples(later) == expected:
            text = f"the first optimizer.step() came after {count} of {expected} samples, the next after all"
            yield break_of("early_first_step", text)
            return
        yield break_of("another_batch", f"optimizer.step() came after {count} samples, expected {expected}")


def check_rates(recording: Recording, reference: Recording, event: Event) -> Iterator[SplitCause | str]:
    """Yields a difference of the learning rate from the reference, or of its change since the first step.

    A long cosine hardly falls in its first steps: with another length its rates are nearly the same there,
    and their changes are not. A length that is rounded by a step an epoch is the same schedule: a note.
    """
    optimizer, number = event
    step, first = recording.steps[event], recording.steps[optimizer, 0]
    reference_step, reference_first = reference.steps[event], reference.steps[optimizer, 0]
    rates, reference_rates = step.first.lrs, reference_step.first.lrs
    if len(rates) != len(reference_rates):  # the groups differ, which check_settings names
        return
    changes, reference_changes = _changes(first, step), _changes(reference_first, reference_step)
    # The rounding error of a change, which is the difference of two larger numbers.
    rounding = 1e-12 * max(map(abs, reference_rates), default=0.0)
    share = min(ROUNDED_MOST, max(SCHEDULE, 2 * _share_of_epoch(recording, event)))
    rounded = all(
        within(change - expected, share * abs(expected) + rounding)
        for change, expected in zip(changes, reference_changes, strict=True)
    )
    starts = _are_equal(first.first.lrs, reference_first.first.lrs)
    last = reference.of(optimizer)[-1]
    if any(_changes(reference_first, last)):  # a warmup of another length begins at another rate
        rounded &= all(
            within(rate - expected, share * abs(expected))
            for rate, expected in zip(first.first.lrs, reference_first.first.lrs, strict=True)
        )
    else:
        rounded &= starts
    if rounded:
        if not _are_equal(rates, reference_rates):
            yield (
                f"the learning rate of step {number} is {_few(rates)}, at one pass over the batch "
                f"{_few(reference_rates)}: the schedule's length is rounded to whole steps"
            )
        return
    text = f"is {_few(rates)}, at one pass over the batch {_few(reference_rates)}"
    if _are_equal(rates, reference_rates):
        text = (
            f"changed by {_few(changes, digits=2)} since step {first.first.step}, at one pass over the "
            f"batch by {_few(reference_changes, digits=2)}: the schedule has another length"
        )
    law = "another_lr"
    if starts and number and reference_changes and reference_changes[0]:
        law = _clock(recording.split, changes[0] / reference_changes[0])
    elif not starts:
        law = _clock_ahead(recording, reference, optimizer)
    if law == "another_lr":
        text += _times(recording.split, rates, reference_rates)
    yield break_of(law, f"the learning rate {text}")


def _times(split: Split, rates: Sequence[float], reference: Sequence[float]) -> str:
    """Names the numbers of the split among the factors of all learning rates; empty: there are none."""
    counts = {"ranks": split.ranks, "accumulation": split.accumulation}
    if min(counts.values()) > 1:
        counts["ranks × accumulation"] = split.ranks * split.accumulation
    times = [
        name
        for name, count in counts.items()
        if count > 1 and _are_equal(rates, [rate * count for rate in reference]) and any(rates)
    ]
    return f": × {' or × '.join(times)}" if times else ""


def check_settings(
    step: RecordedStep, reference: RecordedStep, *, is_first: bool, rates_differ: bool = False
) -> Iterator[SplitCause]:
    """Yields the first difference in the settings of the parameter groups.

    `rates_differ`: the learning rates do, and have a cause of their own.
    """
    groups, reference_groups = step.first.groups, reference.first.groups
    counts = [len(groups), *(group.get("tensors") for group in groups)]
    reference_counts = [len(reference_groups), *(group.get("tensors") for group in reference_groups)]
    if counts != reference_counts:
        yield break_of(
            "another_setting",
            f"the optimizer has {_groups_text(groups)}, at one pass over the batch "
            f"{_groups_text(reference_groups)}",
        )
        return
    tolerance = EQUAL if is_first else MOVED
    for number, (group, reference_group) in enumerate(zip(groups, reference_groups, strict=True)):
        for name in SETTINGS if rates_differ else (*SETTINGS, "initial_lr"):
            value, expected = group.get(name), reference_group.get(name)
            if not _is_setting(value, expected, tolerance):
                yield break_of(
                    "another_setting",
                    f"{name} of parameter group {number} is {value}, at one pass over the batch {expected}",
                )
                return


def check_clipping(
    step: RecordedStep, reference: RecordedStep, tolerance: float, difference: float
) -> Iterator[SplitCause]:
    """Yields a difference of clipping: its number, or the norm of the same gradient."""
    norms, reference_norms = step.first.clips, reference.first.clips
    if len(norms) != len(reference_norms):
        yield break_of(
            "clipped_each_pass",
            f"the gradient is clipped {len(norms)} times in a step, {len(reference_norms)} times in one pass "
            "over the batch",
        )
    elif norms and within(difference, tolerance):
        for (norm, _), (reference_norm, _) in zip(norms, reference_norms, strict=True):
            if not within(norm - reference_norm, 10 * tolerance * max(reference_norm, 1e-30)):
                yield break_of(
                    "clipped_otherwise",
                    f"clipping sees the norm {norm:.4g}, at one pass over the batch {reference_norm:.4g}",
                )
                return


def _ranks_apart(sketches: Vector) -> float:
    return max((distance(sketch, sketches[0]) for sketch in sketches[1:]), default=0.0)


def _share_of_epoch(recording: Recording, event: Event) -> float:
    """Returns a step's part of an epoch: 0 where the dataset's rows are not known."""
    loader = recording.training_loader()
    return recording.samples(event) / loader.rows if loader is not None and loader.rows else 0.0


def _clock(split: Split, ratio: float) -> str:
    """Names the law of a schedule by how fast its rate changes, beside the reference.

    Two splits of one schedule differ by the number that it counts in the place of steps: as long a schedule
    changes less by a power of it, one that is stepped as often changes more.
    """
    for law, count in (
        ("scheduler_per_process", split.ranks),
        ("scheduler_per_micro_batch", split.accumulation),
        ("scheduler_per_micro_batch", split.ranks * split.accumulation),
        ("scheduler_per_both", split.ranks / split.accumulation),
    ):
        powers = (1 / count, 1 / count**2, count, count**2)
        if count != 1 and any(within(ratio / power - 1, 2 * SCHEDULE) for power in powers):
            return law
    return "another_lr"


def _clock_ahead(recording: Recording, reference: Recording, optimizer: int) -> str:
    """Names the law of a schedule ahead at the first step, stepped by its passes."""
    steps, reference_steps = recording.of(optimizer), reference.of(optimizer)
    first, reference_first = steps[0], reference_steps[0]
    # The first change that the reference has: later ones may be behind the end of a warmup.
    change, expected = next(
        (
            (sum(_changes(first, step)), moved)
            for step, reference_step in zip(steps, reference_steps, strict=False)
            if (moved := sum(_changes(reference_first, reference_step)))
        ),
        (0.0, 0.0),
    )
    start, reference_start = sum(first.first.lrs), sum(reference_first.first.lrs)
    if not expected or not reference_start:
        return "another_lr"
    ratio = change / expected
    # Rates that are some times as large at every step are not ahead.
    is_larger = all(
        within(sum(step.first.lrs) - ratio * wanted, 2 * SCHEDULE * abs(ratio * wanted))
        for step, reference_step in zip(steps, reference_steps, strict=False)
        if (wanted := sum(reference_step.first.lrs))
    )
    is_ahead = (start - reference_start) * expected * (ratio - 1) > 0
    return _clock(recording.split, ratio) if is_ahead and not is_larger else "another_lr"


def _changes(before: RecordedStep, step: RecordedStep) -> list[float]:
    return [now - then for then, now in zip(before.first.lrs, step.first.lrs, strict=False)]


def _are_equal(rates: Sequence[float], reference: Sequence[float]) -> bool:
    return len(rates) == len(reference) and all(
        within(rate - expected, EQUAL * abs(expected) + 1e-12)
        for rate, expected in zip(rates, reference, strict=True)
    )


def _is_setting(value: Any, expected: Any, tolerance: float) -> bool:
    """Compares two values of a setting, numbers within a relative tolerance."""
    values, wanted = ([entry] if not isinstance(entry, list) else entry for entry in (value, expected))
    return all(
        within(entry - target, tolerance * abs(target))
        if isinstance(entry, int | float) and isinstance(target, int | float)
        else entry == target
        for entry, target in zip_longest(values, wanted)
    )


def _groups_text(groups: Sequence[dict[str, Any]]) -> str:
    tensors = " and ".join(str(group.get("tensors", 0)) for group in groups)
    return f"{len(groups)} parameter group{'s' if len(groups) > 1 else ''} of {tensors} tensors"


def _few(rates: Sequence[float], digits: int = 6) -> str:
    return ", ".join(f"{rate:.{digits}g}" for rate in dict.fromkeys(rates[:4])) or "none"
