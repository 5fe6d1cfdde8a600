"""Asks a model, or a trainer of it, in this process: is its training the same at other splits of a batch?

Eight rows are asked as they are, and eight copies of one row: these have one gradient, so that a difference
there is a wrong scale, and a difference without it comes from samples that act on one another.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from isobatch.equivalence.causes import factor_text, name_factors
from isobatch.equivalence.compare import UNJUDGED, SplitResult
from isobatch.equivalence.evidence import measure, verdict
from isobatch.equivalence.laws import SCALES, SplitCause, break_of
from isobatch.equivalence.records import RecordedStep, Recording, Vector
from isobatch.equivalence.result import Same
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.shared import advised, compare_splits
from isobatch.equivalence.split import Split
from isobatch.equivalence.steps import ModelTraining, StepOrder, read_training, record_ranks, record_step
from isobatch.equivalence.weights import distance
from isobatch.errors import InputError, must_be
from isobatch.limits import within

FAINT = 1e-4
"""A gradient of equal rows that is smaller beside that of unequal ones is rounding: contrastive losses."""
PROPORTIONAL = 5e-3
"""Relative distance of two multiples of one term, or of a factor and weights of rows with like gradients."""

COUPLED = {"some_tensors", "coupled_samples"}
"""Laws of a gradient that no weights of samples explain, which equal rows tell apart."""


def same_model(
    model: torch.nn.Module,
    rows: Any,
    *,
    trainer: Any = None,
    arguments: Any = None,
    splits: Sequence[str] | None = None,
    ranks: int = 2,
) -> Same:
    """Compares one optimizer step of a model with itself at other splits of its rows.

    The step is taken in this process, on the CPU, from copies of the model: its weights stay as they are.
    Splits over ranks are taken by forks of this process that share a gloo group.

    Args:
        model: whose forward returns a loss.
        rows: a batch of 2 to 16 rows, unequal if they can be: mappings of keywords (tensors without a batch
            dimension), tuples of arguments, or what the trainer takes as a training dataset.
        trainer: None for `loss.backward()` in a plain loop that divides by the accumulation; a class of
            transformers' Trainer, one with its keywords bound by `functools.partial`, or an instance.
        arguments: of the trainer: a mapping, or a TrainingArguments; the split and the CPU are set.
        splits: RANKSxACCUMULATIONxMICRO_BATCH of these rows; by default two passes, and passes of two rows.
        ranks: beside `splits`, the rows are dealt out to as many ranks; 1 for none.

    Returns:
        Whether all are the same, with weights, causes and `require()` for a test.

    Raises:
        InputError: nothing was compared: no gradient, or none that is finite; a rank that failed.
    """
    began = time.monotonic()
    count = len(rows)
    if not 2 <= count <= 16:
        raise must_be("a batch of 2 to 16 rows", count, field="rows")
    training, compared = read_training(model, trainer, arguments), _splits(count, splits, ranks)
    with tempfile.TemporaryDirectory(prefix="isobatch-model-") as folder:
        runs = _Runs(training, rows, compared, Path(folder))
        runs.record()
    noise = Rounding.between(runs.whole, runs.shaken)
    recordings = [runs.unequal[split] for split in compared]
    comparison, results = compare_splits(runs.whole, runs.single, noise, recordings)
    first = runs.whole.last.first
    results = advised(_name_scales(results, runs, comparison.tolerance), first.trainer)
    _check_judged(results)
    measured = measure([runs.whole, *runs.unequal.values()], runs.whole, results, noise)
    name = getattr(trainer, "func", trainer)
    words = [type(model).__name__] + ([getattr(name, "__name__", type(name).__name__)] if trainer else [])
    return Same(
        same=verdict(measured, runs.whole, results, whole_question=True),
        measured=measured,
        command=words,
        reference=str(runs.whole.split),
        splits=results,
        changes=runs.whole.changes,
        unasked={},
        noise=noise.gradients[0],
        tolerance=comparison.tolerance,
        steps=1,
        versions=first.versions,
        seconds=round(time.monotonic() - began, 3),
    )


class _Runs:
    """The steps of one question: of unequal rows and of equal ones, by split."""

    def __init__(self, training: ModelTraining, rows: Any, splits: list[Split], folder: Path) -> None:
        self.training, self.rows, self.splits, self.folder = training, rows, splits, folder
        self.copies = _equal_rows(rows)
        self.unequal: dict[Split, Recording] = {}
        self.equal: dict[Split, Vector] = {}

    def record(self) -> None:
        """Takes every step; random draws are made alike for all samples if there are any."""
        recorded = self._take_alone(alike=False)
        if any(run.notes("draws") for run in recorded):
            self._take_alone(alike=True)
        for ranks in sorted({split.ranks for split in self.splits} - {1}):
            self._take_by_ranks([split for split in self.splits if split.ranks == ranks])

    def _take_alone(self, *, alike: bool) -> list[Recording]:
        """Takes the steps of one rank."""
        self.alike = alike
        whole = Split(1, 1, len(self.rows))
        self.whole = self._take("whole", self.rows, whole)
        _check_gradient(self.whole)
        self.shaken = self._take("whole-shaken", self.rows, whole, shake=True)
        self.single = self._take_single(freeze=bool(self.whole.notes("batch norm")))
        self.equal_whole = _gradient(self._take("whole-equal", self.copies, whole))
        for split in self.splits:
            if split.ranks == 1:
                self.unequal[split] = self._take(f"{split}", self.rows, split)
                self.equal[split] = _gradient(self._take(f"{split}-equal", self.copies, split))
        return [self.whole, *filter(None, [self.single]), *self.unequal.values()]

    def _take_single(self, *, freeze: bool) -> Recording | None:
        """Takes one row a pass, or two where one alone has no loss or no gradient; None: neither has."""
        for size in (1, 2):
            passes, rest = divmod(len(self.rows), size)
            with suppress(Exception):  # a model raises what it likes
                split = Split(1, passes, size)
                single = self._take(f"single-{size}", self.rows, split, each_pass=True, freeze=freeze)
                if not rest and np.linalg.norm(_step(single).changes, axis=1).any():
                    return single
        return None

    def _take(self, name: str, rows: Any, split: Split, **switches: bool) -> Recording:
        order = StepOrder(
            f"{name}-alike" if self.alike else name, rows, split, {"alike": self.alike, **switches}
        )
        return record_step(self.training, order, self.folder)

    @property
    def has_single(self) -> bool:
        """Tells whether each row alone has a gradient."""
        if self.single is None or self.single.split.micro_batch > 1:
            return False
        return bool(np.linalg.norm(_step(self.single).changes, axis=1).all())

    def _take_by_ranks(self, splits: list[Split]) -> None:
        switches = {"alike": self.alike}
        orders = [StepOrder(f"{split}", self.rows, split, switches) for split in splits]
        orders += [StepOrder(f"{split}-equal", self.copies, split, switches) for split in splits]
        taken = record_ranks(self.training, orders, self.folder)
        for split in splits:
            self.unequal[split] = taken[f"{split}"]
            self.equal[split] = _gradient(taken[f"{split}-equal"])


def _splits(count: int, texts: Sequence[str] | None, ranks: int) -> list[Split]:
    """Reads the splits, or chooses them: passes of two rows, two passes, and ranks."""
    splits = [Split.parse(text) for text in texts or ()]
    for split in splits:
        if split.effective_batch != count:
            raise InputError(f"split {split} has {split.effective_batch} rows, expected {count}")
    if texts is None:
        halves = (Split(1, count // 2, 2), Split(1, 2, count // 2)) if count % 2 == 0 else ()
        splits = [*halves] or [Split(1, count, 1)]
    if ranks > 1:
        if count % ranks:
            raise InputError(
                f"{count} rows cannot be dealt out to {ranks} ranks: give a multiple, or ranks=1"
            )
        splits.append(Split(ranks, 1, count // ranks))
    return list(dict.fromkeys(splits))


def _equal_rows(rows: Any) -> Any:
    """Copies a middle row; a Dataset stays one."""
    count = len(rows)
    if hasattr(rows, "select"):
        return rows.select([count // 2] * count)
    return [rows[count // 2]] * count


def _step(recording: Recording) -> RecordedStep:
    return recording.steps[next(iter(recording.steps))]


def _gradient(recording: Recording) -> Vector:
    gradient: Vector = _step(recording).gradients.mean(0)
    return gradient


def _check_gradient(whole: Recording) -> None:
    """Refuses a reference without a finite gradient."""
    gradient = _gradient(whole)
    if not np.isfinite(gradient).all():
        raise InputError(
            "the gradient of one pass over the rows is not finite, so that nothing was compared: look at the "
            "loss of these rows"
        )
    if not gradient.any():
        raise InputError(
            "the gradient of one pass over the rows is 0, so that nothing was compared: do the rows have "
            "labels, and does the loss depend on a trained parameter?"
        )


def _check_judged(results: list[SplitResult]) -> None:
    """Refuses splits with other samples or other random draws."""
    for result in results:
        for cause in result.causes:
            if cause.id in UNJUDGED:
                raise InputError(
                    f"{result.split} cannot be compared: {cause.text}. To fix it: {cause.remedy}"
                )


def _name_scales(results: list[SplitResult], runs: _Runs, tolerance: float) -> list[SplitResult]:
    """Adds the findings of equal rows to each split: a wrong scale of the loss, or of a term."""
    splits = [Split.parse(result.split) for result in results]
    whole, unequal = runs.equal_whole, _gradient(runs.whole)
    if float(np.linalg.norm(whole)) < FAINT * float(np.linalg.norm(unequal)):
        return [_name_coupling(result, runs) for result in results]  # a loss that tells rows from each other
    wrong = {
        split: runs.equal[split]
        for split in splits
        if not within(distance(runs.equal[split], whole), tolerance)
    }
    factors = {split: float(equal @ whole) / float(whole @ whole) for split, equal in wrong.items()}
    scaled = {
        split: factor
        for split, factor in factors.items()
        if within(distance(wrong[split], factor * whole), tolerance * max(1.0, abs(factor)))
    }
    law = name_factors(scaled)
    term = _name_term({split: wrong[split] - whole for split in wrong if split not in scaled})
    named = []
    for result, split in zip(results, splits, strict=True):
        if any(cause.id == "not_finite" for cause in result.causes):
            named.append(result)
        elif split in scaled:
            named.append(_add_factor(result, scaled[split], law, runs))
        elif split in wrong:
            others = [cause for cause in result.causes if cause.id not in {*COUPLED, "balance_loss"}]
            named.append(_with_causes(result, [term, *others]))
        else:
            named.append(_name_coupling(result, runs))
    return named


def _name_term(differences: Mapping[Split, Vector]) -> SplitCause:
    """Names the scale of a term: its gradient is the same whichever split it is computed from."""
    for scale in SCALES.values():
        if any(scale.size(split) == 1 for split in differences):
            continue
        terms = [difference / (scale.size(split) - 1) for split, difference in differences.items()]
        if terms and all(within(distance(term, terms[0]), PROPORTIONAL) for term in terms):
            return break_of(
                "loss_term", f"{scale.text} for a term of the loss: equal rows differ by it alone"
            )
    return break_of("loss_term", "a term of the loss has another scale: equal rows have another gradient")


def _add_factor(result: SplitResult, factor: float, law: SplitCause | None, runs: _Runs) -> SplitResult:
    """Puts the factor of equal rows first, where the weights of unequal rows do not name it themselves."""
    text = f"{factor_text(factor)}, by rows that are all equal"
    cause = break_of("gradient_factor", text) if law is None else break_of(law.id, f"{text}: {law.name}")
    if result.causes and (result.weights or result.causes[0].id in SCALES):
        errors = np.abs(np.array(result.weights) / factor - 1)
        is_blurred = result.causes[0].id not in SCALES and within(errors.max(initial=0), PROPORTIONAL)
        return _with_causes(result, [cause, *result.causes[1:]]) if is_blurred else result
    return _with_causes(result, [cause, *(_coupled(old, result, runs) for old in result.causes)])


def _name_coupling(result: SplitResult, runs: _Runs) -> SplitResult:
    """Names coupled samples for a split with equal rows of the right scale."""
    causes = [_coupled(cause, result, runs) for cause in result.causes]
    return _with_causes(result, causes) if causes else result


def _coupled(cause: SplitCause, result: SplitResult, runs: _Runs) -> SplitCause:
    if cause.id not in COUPLED:
        return cause
    if result.residual is None and runs.has_single:
        return break_of(
            "weights_unknown",
            "unequal rows have another gradient, and equal rows have not: these rows' own gradients are too "
            "alike to tell their weights",
        )
    return break_of(
        "coupled_samples",
        "samples of a pass act on one another: unequal rows have another gradient, equal rows have not",
    )


def _with_causes(result: SplitResult, causes: list[SplitCause]) -> SplitResult:
    return msgspec.structs.replace(result, causes=causes, same=not causes)
