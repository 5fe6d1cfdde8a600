"""The end of an epoch: its last step has fewer samples, and a script may divide them as those of the others.

Two more runs, one sample a pass and all in one pass, take the steps of an epoch with a learning rate of 0:
the weights stay, so that the last step is compared as exactly as the first one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from isobatch.equivalence.commands.runs import SplitRun
from isobatch.equivalence.compare import UNJUDGED, Comparison, SplitResult
from isobatch.equivalence.evidence import Measured
from isobatch.equivalence.laws import break_of
from isobatch.equivalence.records import Event, Recording
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.shared import advised
from isobatch.equivalence.split import Split
from isobatch.equivalence.weights import distance
from isobatch.limits import within
from isobatch.words import counted

SECONDS = 60.0
"""The most for the steps of an epoch."""
STREAMED = 15.0
"""The same where its length is not known: it may be endless."""
MOST_STEPS = 200


class EpochEnd(NamedTuple):
    """The row of the answer, and the result of a split with a difference at the end of an epoch."""

    row: Measured
    result: SplitResult | None = None


class OtherStep(NamedTuple):
    """A step, its number of samples, and the first step's."""

    event: Event
    samples: int
    usual: int


def end_of_epoch(text: str, *, holds: bool | None = None) -> Measured:
    """Makes the row; None: it was not looked at, for a reason."""
    how = "the last step, where it comes within a minute and has other samples than the first"
    return Measured("end", "the end of an epoch", how, holds, text)


def look_at_end(
    run: Callable[..., SplitRun],
    first: Recording,
    single: Recording,
    loader: str,
    noise: Rounding,
    results: Sequence[SplitResult],
) -> tuple[Measured, list[SplitResult]]:
    """Returns the row, and the results of all splits, last the one of one sample a pass.

    Args:
        run, first, single, loader, noise: see `compare_epoch_end`.
        results: of the splits at the first steps.
    """
    end = compare_epoch_end(run, first, single, loader, noise)
    if end.result is None:
        return end.row, [*results]
    differing = advised([end.result], single.last.first.trainer)[0]
    return end.row, [differing if result.split == differing.split else result for result in results]


def compare_epoch_end(
    run: Callable[..., SplitRun], first: Recording, single: Recording, loader: str, noise: Rounding
) -> EpochEnd:
    """Compares the first step of another number of samples, the last one of an epoch, with one pass over it.

    Args:
        run: starts a split by its name, with the recorder's settings.
        first: the run of the split that was asked for.
        single: the run of one sample a pass: its times tell how long an epoch takes.
        loader: the training's loader; empty where there is none.
        noise: of a split that was run twice.
    """
    batch = single.split.effective_batch
    draws = first.training_loader()
    rows = None if draws is None else draws.rows
    if loader and draws is None:
        return EpochEnd(end_of_epoch("the script draws its rows by hand, without epochs"))
    if (early := _other_step(first)) is not None:
        return EpochEnd(end_of_epoch(f"step {early.event[1]}, one of those compared", holds=True))
    if rows and not rows % batch:
        text = f"{rows:,} rows are whole steps of {batch}, so that the last one is as the others"
        return EpochEnd(end_of_epoch(text, holds=True))
    steps = single.of(next(iter(single.steps))[0])
    seconds = (steps[-1].first.seconds - steps[0].first.seconds) / max(1, len(steps) - 1) or SECONDS
    most = min(MOST_STEPS, int((SECONDS if rows else STREAMED) / seconds))
    count = rows // batch + 2 if rows else most
    if count > most or len(steps) < 2:
        return EpochEnd(end_of_epoch(f"it comes after {counted(count - 2, 'step')} of {seconds:.2g} s each"))
    still = len(steps)
    tail = run(single.split, "end", each_pass=True, still=still, steps=count, rows=None)
    recording = tail.recording
    last = None if recording is None else _other_step(recording)
    if recording is None or last is None:
        if rows and tail.steps >= rows // batch and tail.code == 0:
            text = f"its last {counted(rows % batch, 'sample')} take no step of their own"
            return EpochEnd(end_of_epoch(text, holds=True))
        stops = ", where the run ends" if tail.code == 0 and tail.steps < count else ""
        stops = ", where the script writes a file, or fails" if tail.code else stops
        return EpochEnd(end_of_epoch(f"none was seen in {counted(tail.steps, 'step')}{stops}"))
    event = last.event
    if last.samples > last.usual:
        return _compare_first_of_next(recording, last, noise)
    fixed = _rows_until(recording, event, loader)
    whole = run(Split(1, 1, batch), "end", still=still, steps=event[1] + 1, rows=fixed).recording
    if whole is None or event not in whole.steps:
        return EpochEnd(end_of_epoch("one pass over the batch takes no such step"))
    result = Comparison(whole, recording, noise).compare_step(recording, event, 0.0)
    unsure = next((cause for cause in result.causes if cause.id in {*UNJUDGED, "another_batch"}), None)
    if unsure is not None:
        return EpochEnd(end_of_epoch(f"one pass over the batch takes other samples there: {unsure.text}"))
    text = f"step {event[1]}, of {counted(last.samples, 'sample')}"
    if result.same:
        return EpochEnd(end_of_epoch(f"{text}, is the same as in one pass", holds=True))
    names = ", ".join(cause.name for cause in result.causes)
    return EpochEnd(end_of_epoch(f"{text}: {names}", holds=False), _without_rates(result))


def _other_step(recording: Recording) -> OtherStep | None:
    """Finds the first step with another number of samples than the first one."""
    optimizer = next(iter(recording.steps))[0]
    events = [event for event in recording.steps if event[0] == optimizer]
    counts = [sum(map(sum, recording.shape(event))) for event in events]
    others = (
        OtherStep(event, count, counts[0])
        for event, count in zip(events, counts, strict=True)
        if count != counts[0]
    )
    return next(others, None)


def _compare_first_of_next(recording: Recording, first: OtherStep, noise: Rounding) -> EpochEnd:
    """Judges a step after more passes than the others: are those left at the epoch's end in its gradient?"""
    step, left = recording.steps[first.event], counted(first.samples - first.usual, "sample")
    if not within(distance(step.changes.sum(0), step.gradients[0]), noise.gradient(0, 0.0)):
        return EpochEnd(end_of_epoch(f"its last {left} are left out", holds=True))
    text = (
        f"the first step of the next epoch has {first.samples} samples in the place of {first.usual}: the "
        f"gradient of {left} was left at the epoch's end"
    )
    result = Comparison(recording, None, noise).compare_step(recording, first.event, 0.0)
    own = step.changes[-len(recording.steps[first.event[0], 0].first.passes) :].sum(0)
    changes = {"difference": distance(step.gradients[0], own), "same": False}
    result = msgspec.structs.replace(result, causes=[break_of("another_accumulation", text)], **changes)
    return EpochEnd(end_of_epoch(text, holds=False), _without_rates(result))


def _without_rates(result: SplitResult) -> SplitResult:
    """Leaves the learning rates out: they were 0, so that the weights stay."""
    return msgspec.structs.replace(result, lrs=[])


def _rows_until(recording: Recording, last: Event, loader: str) -> dict[str, object] | None:
    """Lists the dataset rows up to a step, to be drawn by the run in one pass; None where none are known."""
    parts = [recording.rows(event) for event in recording.steps if event[0] == last[0] and event <= last]
    if not loader or None in parts:
        return None
    taken = [row for part in parts if part is not None for rank in part for batch in rank for row in batch]
    return {"loader": loader, "ranks": [taken]}
