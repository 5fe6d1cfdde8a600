"""Asks whether a command trains as another one does: a port to ranks or to a trainer, a rewritten script.

Both are compared in order at one pass over the same rows. Then each is compared with its own pass at the
split that was typed: where all are the same, so are both commands.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import numpy as np

from isobatch.equivalence.compare import SplitResult
from isobatch.equivalence.laws import SplitCause
from isobatch.equivalence.order.answer import OrderedSame, answer_of
from isobatch.equivalence.order.comparison import OrderedComparison, OrderedRow, compare_in_order
from isobatch.equivalence.order.pair import Pair, trained
from isobatch.equivalence.records import Recording
from isobatch.equivalence.releases.weights import Sides
from isobatch.equivalence.split import Split, shrink
from isobatch.equivalence.split_runs import SplitRuns
from isobatch.equivalence.weights import distance
from isobatch.errors import InputError
from isobatch.limits import within
from isobatch.words import few

ROW = (
    "split",
    "split as typed",
    "each command beside its own pass over the batch: gradient, learning rates, settings, clipping, weights",
)
DEVIATIONS = 5.0
"""Standard deviations by which the spreads of two draws of one tensor may differ."""
DRAWN_ANEW = 0.5
"""Least relative distance of two draws of a model: of two states of one training it is some hundredths."""
ALIKE = 1e-3
"""Relative distance of the samples' weights on both sides that is rounding."""


class Side(NamedTuple):
    """A command: its runs, and its split, as typed or made smaller."""

    runs: SplitRuns
    split: Split

    @property
    def label(self) -> str:
        """The command in words."""
        return " ".join(self.runs.command.words)

    @property
    def whole(self) -> Split:
        """The split of one pass."""
        return Split(1, 1, self.split.effective_batch)

    def run(self) -> Recording:
        """Runs the whole batch in one pass; an InputError if the command does not follow this split."""
        with _named(self.runs):
            _, run = self.runs.first(self.whole)
            shape = run.shape(next(iter(run.steps)))
            if len(shape) > 1 or len(shape[0]) > 1 or shape[0][0] % self.split.effective_batch:
                raise InputError(
                    f"it does not follow the split {self.whole}: its ranks pass {few(map(str, shape))} rows. "
                    "Write {gpus}, {accumulation} and {micro_batch} where its numbers go"
                )
            return run

    def result(self) -> SplitResult | str:
        """Compares the command at its split with one pass; else says why not."""
        with _named(self.runs):
            answer = self.runs.ask(self.split, (self.whole,))
        result = next((result for result in answer.splits if result.split == str(self.split)), None)
        if answer.same is None or result is None:
            return f"{self.label} at {self.split}: {'; '.join(answer.unmeasured)}"
        return result


def compare_commands(old: SplitRuns, new: SplitRuns, requested: Split | None) -> OrderedSame:
    """Compares two commands.

    Args:
        old: runs of the command to compare with.
        new: runs of the other one.
        requested: the split of `new`; None: as typed, made smaller.

    Raises:
        InputError: one of them cannot be run in one pass; the message names it.
    """
    began = time.monotonic()
    for runs in (old, new):
        with _named(runs):
            runs.look()
    sides = [Side(*pair) for pair in zip((old, new), _choose_splits(old, new, requested), strict=True)]
    passes, comparison, notes = _compare_in_one_pass(*sides)
    answer = answer_of(new.command.words, comparison, Sides(*passes, [side.label for side in sides]))
    row, causes = OrderedRow(*ROW, None, "one pass comes first"), list[SplitCause]()
    if comparison.same:
        row, causes = _compare_at_splits(sides)
    for side, run in zip(sides, passes, strict=True):
        notes = [*side.runs.changes(msgspec.structs.replace(run, split=side.split)), *notes]
    return msgspec.structs.replace(
        answer,
        same=answer.same and row.holds,
        measured=[*answer.measured, row],
        causes=[*answer.causes, *causes],
        settings={name: both for name, both in answer.settings.items() if None not in both},
        changes=[*dict.fromkeys([*answer.changes, *notes])],
        seconds=round(time.monotonic() - began, 1),
    )


def _compare_in_one_pass(
    old: Side, new: Side
) -> tuple[tuple[Recording, Recording], OrderedComparison, list[str]]:
    """Compares one pass of both, with the same rows, and first weights if both draw them alike."""
    reference, second, notes = old.run(), new.run(), list[str]()
    (_, rows), (loader, drawn) = reference.draws(), second.draws()
    if old.whole == new.whole and rows and drawn and rows != drawn and _has_rows(second, reference, rows):
        new.runs.rows, new.runs.loader = rows, loader
        second = new.run()
        notes.append(f"rows as {old.label} draws them ({new.label} draws {few(map(str, drawn[0]))})")
    repeat = old.runs.record(old.whole, "repeat", shake=True)
    comparison = compare_in_order(reference, second, repeat)
    if comparison.first is None or comparison.first.id != "weights" or not _draw_anew(reference, second):
        return (reference, second), comparison, notes
    for runs in (old.runs, new.runs):
        weights = f"{old.runs.settings.folder}/weights.pt"
        runs.settings = msgspec.structs.replace(runs.settings, weights=weights)
    reference, second = old.run(), new.run()
    comparison = compare_in_order(reference, second, old.runs.record(old.whole, "repeat", shake=True))
    notes.append(f"first weights as {old.label} draws them ({new.label} draws others as widely spread)")
    return (reference, second), comparison, notes


def _compare_at_splits(sides: Sequence[Side]) -> tuple[OrderedRow, list[SplitCause]]:
    """Compares each command at its split with its own pass."""
    results = [None if side.split == side.whole else side.result() for side in sides]
    if reasons := [result for result in results if isinstance(result, str)]:
        return OrderedRow(*ROW, None, "; ".join(reasons)), []
    values, causes, wrong = [], list[SplitCause](), list[SplitResult]()
    for side, result in zip(sides, results, strict=True):
        if not isinstance(result, SplitResult):
            values.append(f"one pass ({side.split})")
            continue
        where = f"{side.label} at {side.split}, step {result.step}"
        values.append(f"{few([cause.name for cause in result.causes]) or 'as one pass'} ({side.split})")
        causes += [msgspec.structs.replace(cause, text=f"{where}: {cause.text}") for cause in result.causes]
        wrong += [] if result.same else [result]
    if not wrong:
        return OrderedRow(*ROW, True), []
    if len(wrong) == len(sides) and _are_alike(*wrong):
        text = f"both differ from one pass in the same way ({' and '.join(values)}): mend both, and ask again"
        return OrderedRow(*ROW, None, text), causes
    step = min(result.step for result in wrong)
    return OrderedRow(*ROW, False, "beside one pass over the batch", step=step, values=values), causes


def _are_alike(first: SplitResult, second: SplitResult) -> bool:
    """Tells whether two splits differ from one pass by the same laws, and as much."""
    laws = [[cause.id for cause in result.causes] for result in (first, second)]
    weights = [np.array(result.weights) for result in (first, second)]
    return laws[0] == laws[1] and len(weights[0]) == len(weights[1]) and within(distance(*weights), ALIKE)


@contextmanager
def _named(runs: SplitRuns) -> Iterator[None]:
    """Names the command of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{' '.join(runs.command.words)}: {error}") from None


def _has_rows(run: Recording, reference: Recording, rows: Sequence[Sequence[int]]) -> bool:
    """Tells whether a run's dataset has the rows of the reference's: as many in all, where both know it."""
    loaders = [run.training_loader(), reference.training_loader()]
    sizes = {loader.rows for loader in loaders if loader is not None and loader.rows is not None}
    return len(sizes) < 2 and max(map(max, rows)) < min(sizes, default=1 << 62)


def _draw_anew(reference: Recording, second: Recording) -> bool:
    """Tells whether both draw first weights from one distribution: as widely spread, and far apart."""
    pair = Pair(reference, second, next(iter(reference.steps)), (0.0, 0.0))
    own, theirs = pair.aligned([step.weights[0] for step in pair.steps])
    differ = own != theirs  # constants, such as a norm's ones, are no draws
    if pair.details is None or within(distance(theirs[differ], own[differ]), DRAWN_ANEW):
        return False
    first, places = pair.records[0], [trained(record) for record in pair.records]
    for name, at in places[0].items():
        sides = zip(pair.details, places, strict=True)
        spread, expected = (details.norms[place[name]] or 0.0 for details, place in sides)
        if not within(spread - expected, DEVIATIONS * expected / (2 * first.entries[at]) ** 0.5):
            return False
    return True


def _choose_splits(old: SplitRuns, new: SplitRuns, requested: Split | None) -> list[Split]:
    """Chooses the split of each command: as typed, of one batch, made smaller above what `same` compares.

    Two typed batches stay as they are, and differ.
    """
    typed = [runs.own for runs in (old, new)]
    known = [split for split in reversed(typed) if split is not None]
    if requested is None and len({split.effective_batch for split in known}) > 1:
        return known[::-1]
    batch = (requested or shrink(known[0] if known else new.command.default)).effective_batch
    splits = [_of_batch(shrink(runs.own or runs.command.default), batch) for runs in (old, new)]
    return [splits[0], requested or splits[1]]


def _of_batch(split: Split, batch: int) -> Split:
    """Gives a split another batch, with its ranks and passes as far as they divide it."""
    ranks = max(count for count in range(1, split.ranks + 1) if batch % count == 0)
    share = batch // ranks
    passes = max(count for count in range(1, split.accumulation + 1) if share % count == 0)
    return Split(ranks, passes, share // passes)
