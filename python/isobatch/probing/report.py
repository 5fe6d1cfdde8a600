"""What a probe found. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.probing.trials import Trial
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, duration, figure, real

Interval = tuple[float, float]


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One learning rate at one batch: the mean loss over seeds, None where it diverged."""

    lr: float
    loss: float | None


class BatchRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the trials say at one batch.

    `best_lr` is that of these short trainings, `interval` its 95 % interval; `at_edge`: the best one may lie beyond those tried.
    `rule_lr` is the tuned batch's by the rule; `rule_gap` what it loses against the best one tried, and `rule_gap_interval` that
    gap's; None where it diverged or was not among the last.
    """

    batch: int
    best_lr: float
    interval: Interval
    at_edge: bool
    rule_lr: float
    rule_gap: float | None
    rule_gap_interval: Interval | None
    rates: tuple[Rate, ...]


class LrFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The learning rate to take at the planned batch.

    Where the tuned batch was measured too, `lr` is the tuned learning rate × the ratio of the two best ones: a short training
    prefers another learning rate than a long one, and the ratio does not see that. `within`: the plan's own lies in the interval.
    `exponent`: of the best learning rate over the batch, None from one batch.
    """

    samples: int
    seeds: int
    batches: tuple[BatchRates, ...]
    lr: float
    interval: Interval
    plan_lr: float
    within: bool
    exponent: float | None
    exponent_interval: Interval | None


class SplitFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A split of the batch, and how far its weights are from those of the batch on one replica, relative L2, in double precision."""

    split: str
    difference: float
    same: bool


class SameFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the plan trains the same as the tuned recipe: by weights where the batch stays, by loss where it grows."""

    steps: int
    splits: tuple[SplitFinding, ...]
    gap: float | None
    gap_interval: Interval | None
    tuned_loss: float | None
    planned_loss: float | None

    @property
    def same(self) -> bool:
        """Whether every split trains the same."""
        return all(split.same for split in self.splits)


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A training that goes on at k times the batch: its smoothed loss at the end, the mean over seeds, None where one diverged; the
    standard error of its difference from k = 1, None from one seed; and whether it is within the tolerance."""

    k: int
    batch: int
    lr: float
    loss: float | None
    error: float | None
    holds: bool


class CriticalFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The critical batch by branched training: the largest k with all below it holding. `bounded`: a larger one was tried and
    does not hold. Beside it the simple noise scale at the same weights, None where it could not be measured."""

    samples: int
    seeds: int
    tolerance: float
    smoothing: float
    branches: tuple[Branch, ...]
    critical_batch: int
    bounded: bool
    noise_scale: float | None
    noise_error: float | None


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found: one of `lr`, `same` and `critical`, by what was measured.

    `stand_in`: the built-in workload was trained, and not yours. `trials` are all that were made, with their seeds and losses.
    """

    workload: str
    stand_in: bool
    optimizer: str
    policy: str
    rule: str
    tuned_batch: int
    planned_batch: int
    ranks: int
    device: str
    torch: str
    seconds: float
    budget_seconds: float
    recipe: Recipe
    lr: LrFinding | None = None
    same: SameFinding | None = None
    critical: CriticalFinding | None = None
    trials: tuple[Trial, ...] = ()
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or 1 for a negative result: the plan's learning rate lies outside the interval, or a split trains another training."""
        wrong = (self.lr is not None and not self.lr.within) or (self.same is not None and not self.same.same)
        return int(wrong)

    def to_recipe(self) -> Recipe:
        """The recipe with the measured exponent as its `power`, for plans by rule "power".

        Raises:
            InputError: no exponent was measured.
        """
        if self.lr is None or self.lr.exponent is None:
            raise InputError(
                "no exponent was measured: that needs trials at two batches or more", field="batches"
            )
        return Recipe.of({**_fields(self.recipe), "power": self.lr.exponent})

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_recipe`, in TOML or YAML with the interval as a comment.

        Raises:
            InputError: no exponent was measured, or the file cannot be written.
        """
        self.to_recipe().save(path)
        if Path(path).suffix == ".json" or self.lr is None or self.lr.exponent_interval is None:
            return
        low, high = self.lr.exponent_interval
        batches = ", ".join(f"{one.batch:,}" for one in self.lr.batches)
        what = "the built-in workload" if self.stand_in else self.workload
        comment = (
            f"# power: measured by isobatch probe on {what}, 95 % interval {low:.3g} to {high:.3g}, batches {batches}; "
            'plan with rule "power"\n'
        )
        write_whole(path, comment.encode() + Path(path).read_bytes())

    def to_json(self) -> str:
        """The whole as JSON text."""
        fields = {"schema": "isobatch-probe-1", **msgspec.to_builtins(self), "recipe": _fields(self.recipe)}
        return msgspec.json.format(msgspec.json.encode(_finite(fields))).decode()

    def show(self) -> str:
        """The finding in words."""
        lines = [_head(self)]
        if self.lr is not None:
            lines += _lr_lines(self, self.lr)
        if self.same is not None:
            lines += _same_lines(self.same)
        if self.critical is not None:
            lines += _critical_lines(self.critical)
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)


def _fields(recipe: Recipe) -> dict[str, object]:
    schedule = recipe.schedule
    fields = msgspec.structs.asdict(recipe)
    if not isinstance(schedule, str):
        fields["schedule"] = msgspec.json.decode(schedule.to_json())
    return {name: value for name, value in fields.items() if value is not None}


def _finite(value: object) -> object:
    """JSON knows no infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and abs(value) == float("inf") else value


def _head(probe: Probe) -> str:
    what = "the built-in workload (a stand-in: not your model)" if probe.stand_in else probe.workload
    trials = f", {counted(len(probe.trials), 'trial')}" if probe.trials else ""
    kept = f" ({probe.reused:,} kept from before)" if probe.reused else ""
    return (
        f"isobatch probe: {what} with {probe.optimizer}, {counted(probe.ranks, 'rank')} on {probe.device}{trials}{kept}, "
        f"{duration(probe.seconds)} of a budget of {duration(probe.budget_seconds)}."
    )


def _lr_lines(probe: Probe, found: LrFinding) -> list[str]:
    lines = [
        f"Each trial at {found.samples:,} samples, {counted(found.seeds, 'seed')} for the last learning rates:"
    ]
    for one in found.batches:
        tried = ", ".join(
            f"{real(rate.lr)}: {'diverged' if rate.loss is None else f'{rate.loss:.4f}'}"
            for rate in one.rates
        )
        edge = ", at the edge of those tried" if one.at_edge else ""
        lines.append(
            f"  batch {one.batch:,}: best {figure(one.best_lr)} ({_span(one.interval)}{edge}); losses {tried}"
        )
        if one.rule_gap is not None and one.rule_gap_interval is not None:
            lines.append(
                f"    the rule's {real(one.rule_lr)} loses {one.rule_gap:.4f} ({_signed(one.rule_gap_interval)}) against the best "
                "tried"
            )
    where = "lies in" if found.within else "lies outside"
    lines.append(
        f"Learning rate to take at batch {probe.planned_batch:,}: {figure(found.lr)} ({_span(found.interval)}). "
        f"The plan's {real(found.plan_lr)} by rule {probe.rule} {where} that interval."
    )
    if found.exponent is not None and found.exponent_interval is not None:
        low, high = found.exponent_interval
        lines.append(
            f"Exponent of the learning rate over the batch: {found.exponent:.3g} ({low:.3g} to {high:.3g}); "
            "linear is 1, sqrt is 0.5."
        )
    if any(one.at_edge for one in found.batches):
        lines.append(
            "Warning: a best learning rate lies at the edge of those tried; a larger --budget looks further."
        )
    if found.seeds < 3:
        lines.append("Warning: fewer than 3 seeds: the interval does not know how much seeds differ.")
    return lines


def _same_lines(found: SameFinding) -> list[str]:
    if found.gap is not None and found.gap_interval is not None:
        return [
            f"The batch grows, so that this is another training. At equal samples the loss is {found.planned_loss:.4f} where the "
            f"tuned recipe has {found.tuned_loss:.4f}: a gap of {found.gap:+.4f} ({_signed(found.gap_interval)})."
        ]
    lines = [
        f"{counted(found.steps, 'step')} from one seed in double precision, against the whole batch on one replica:"
    ]
    width = max(len(split.split) for split in found.splits)
    lines += [
        f"  {split.split:<{width}}  weights differ by {split.difference:.1e}{'' if split.same else '  NOT THE SAME'}"
        for split in found.splits
    ]
    if found.same:
        lines.append("The same training at every split: the weights agree within floating point.")
    else:
        lines.append(
            "Not the same training at every split. What depends on the micro-batch does that: batch norm, noise drawn in the model, "
            "or a loss that is no mean over samples."
        )
    return lines


def _critical_lines(found: CriticalFinding) -> list[str]:
    lines = [
        f"Branches of {found.samples:,} samples and {counted(found.seeds, 'seed')} from one checkpoint; a branch holds where its smoothed loss is at most "
        f"{figure(found.tolerance)} above that at k = 1:"
    ]
    lines += [
        f"  k = {one.k}: batch {one.batch:,}, learning rate {figure(one.lr)}, loss "
        f"{'diverged' if one.loss is None else f'{one.loss:.4f}'}{'' if one.error is None or one.k == 1 else f' ± {one.error:.4f}'}, "
        f"{'holds' if one.holds else 'does not hold'}"
        for one in found.branches
    ]
    more = "" if found.bounded else ", or more: no larger one was tried that fails"
    if len([one for one in found.branches if one.holds]) == 1 and found.bounded:
        more = ", or less: already twice the batch fails"
    lines.append(
        f"Critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971): {found.critical_batch:,}{more}."
    )
    errors = [one.error for one in found.branches if one.error is not None]
    if not errors or max(errors) > found.tolerance / 2:
        lines.append(
            "Warning: the branches scatter by more than half the tolerance, or there is one seed only: take more --seeds, longer "
            "branches (--samples) or a larger --tolerance before you rely on it."
        )
    if found.noise_scale is not None and found.noise_error is not None:
        trust = "" if found.noise_error < found.noise_scale / 2 else ", too uncertain to use"
        lines.append(
            f"The simple noise scale there (McCandlish et al. 2018): {figure(found.noise_scale)} ± {figure(found.noise_error, 2)}"
            f"{trust}. It is another quantity, and known to be lower in pre-training."
        )
    else:
        lines.append(
            "The noise scale could not be told from infinity: the mean gradient is lost in the noise."
        )
    return lines


def _span(ends: Interval) -> str:
    return f"{figure(ends[0])} to {figure(ends[1])}"


def _signed(ends: Interval) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"
