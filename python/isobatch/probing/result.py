"""The result of a probe, and its words: first the answer and what to do with it, then what it rests on. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.probing.findings import BatchRates, CriticalFinding, Interval, LrFinding, SameFinding
from isobatch.probing.options import Measure, budget_text
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, duration, figure, real

WIDE_INTERVAL = 4.0
"""An interval that spans more hardly tells one learning rate from another: two steps of the grid."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one finding: one of `lr`, `same` and `critical`, by what was measured.

    `seconds` is from the call to the answer. `stopped`: what ended the probe before it was done: "budget", "interrupted", or a lost
    rank; `needed_seconds` is then a budget that would likely do, where it is known.
    """

    workload: str
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
    measure: Measure
    stopped: str | None = None
    needed_seconds: float | None = None
    lr: LrFinding | None = None
    same: SameFinding | None = None
    critical: CriticalFinding | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The command's: 0, or 1 for a negative result: the plan's learning rate lies outside the interval, or a split trains another training; 2 where
        the trials name no learning rate (`lr.doubt`)."""
        if self.lr is not None and self.lr.doubt is not None:
            return 2
        wrong = (self.lr is not None and not self.lr.within) or (self.same is not None and not self.same.same)
        return int(wrong)

    def to_recipe(self) -> Recipe:
        """Returns the recipe with the measured exponent as its `power`, for plans by rule "power"; from trials as long as the run itself also
        with the best learning rate at the tuned batch.

        Raises:
            InputError: no exponent was measured, or the trials name no learning rate (`lr.doubt`).
        """
        if self.lr is None or self.lr.exponent is None:
            raise InputError(
                "no exponent was measured: that needs trials at two batches or more", field="batches"
            )
        if self.lr.doubt is not None:
            raise InputError(
                "these trials name no learning rate, so that no recipe is written from them", field="recipe"
            )
        best = {"lr": self.lr.batches[0].best_lr} if self.lr.whole_run else {}
        return msgspec.structs.replace(self.recipe, **best, power=self.lr.exponent)

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_recipe`, in TOML or YAML with the interval as a comment.

        Raises:
            InputError: as `to_recipe`, or the file cannot be written.
        """
        self.to_recipe().save(path)
        if Path(path).suffix == ".json" or self.lr is None or self.lr.exponent_interval is None:
            return
        low, high = self.lr.exponent_interval
        batches = ", ".join(f"{one.batch:,}" for one in self.lr.batches)
        comment = (
            f"# power: measured by isobatch probe on {self.workload}, 95 % interval {low:.3g} to {high:.3g}, batches {batches}; "
            'plan with rule "power"\n'
        )
        write_whole(path, comment.encode() + Path(path).read_bytes())

    def to_json(self) -> str:
        """Writes the whole as JSON text."""
        fields = msgspec.to_builtins(self, enc_hook=lambda schedule: msgspec.json.decode(schedule.to_json()))
        fields["recipe"] = {name: value for name, value in fields["recipe"].items() if value is not None}
        return msgspec.json.format(msgspec.json.encode({"schema": "isobatch-probe-2", **fields})).decode()

    def show(self) -> str:
        """Writes the finding in words."""
        lines = [_head(self), *_early(self)]
        if self.lr is not None:
            lines += _lr_lines(self, self.lr)
        if self.same is not None:
            lines += _same_lines(self.same)
        if self.critical is not None:
            lines += _critical_lines(self.critical, self.planned_batch)
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])


def _head(probe: Probe) -> str:
    trials = f", {counted(len(probe.lr.trials), 'trial')}" if probe.lr is not None else ""
    workload = "the built-in workload (not your model)" if probe.workload == "built-in" else probe.workload
    return (
        f"isobatch probe: {workload} with {probe.optimizer}, {counted(probe.ranks, 'rank')} on {probe.device}{trials}, "
        f"{duration(probe.seconds)} of a budget of {duration(probe.budget_seconds)}."
    )


def _early(probe: Probe) -> list[str]:
    """Says how the probe ended early, and a budget that would do."""
    if probe.stopped is None:
        return []
    ended = {"budget": "The budget ended", "interrupted": "It was interrupted"}.get(
        probe.stopped, f"It ended early: {probe.stopped},"
    )
    more = "a larger --budget goes further."
    if probe.needed_seconds is not None:
        more = f"a budget of {budget_text(probe.needed_seconds)} would likely do."
    found = probe.lr
    if found is None:
        return [f"{ended} before all was trained; {more}"]
    part = found.samples / found.whole_samples
    on = "whole trials" if part == 1 else f"trials of a {'half' if part > 0.4 else 'quarter'} of the samples"
    return [
        f"{ended} before all trials were made; {more} What follows is from {on}, {found.seeds} of "
        f"{counted(found.asked_seeds, 'seed')}."
    ]


def _lr_lines(probe: Probe, found: LrFinding) -> list[str]:
    """Names the learning rate to take, and the trials behind it."""
    planned, tuned, rule = probe.planned_batch, probe.tuned_batch, probe.rule
    of = "95 % interval " if found.seeds > 1 else "of one seed: "
    if found.doubt is None:
        where = "lies in" if found.within else "lies outside"
        lines = [
            f"Learning rate to take at batch {planned:,}: {figure(found.lr)} ({of}{_span(found.interval)}). "
            f"The plan's {real(found.plan_lr)} by rule {rule} {where} that interval."
        ]
    else:
        lines = [
            f"No learning rate can be named at batch {planned:,}: {_why(found, tuned)}. Taken as they are, these trials would say "
            f"{figure(found.lr)} ({of}{_span(found.interval)}); the plan's is {real(found.plan_lr)} by rule {rule}."
        ]
    if found.exponent is not None and found.exponent_interval is not None:
        low, high = found.exponent_interval
        lines.append(
            f"Exponent of the learning rate over the batch: {found.exponent:.3g} ({low:.3g} to {high:.3g}); "
            "linear is 1, sqrt is 0.5."
        )
    lines.append(f"Next: {_next(found, planned=planned, tuned=tuned)}")
    lines.append(
        f"Mean losses after {found.samples:,} samples{', as many as the run has' if found.whole_run else ''}, "
        f"{counted(found.seeds, 'seed')}, on samples drawn for it:"
    )
    for one in found.batches:
        lines += _batch_lines(one)
    if found.seeds == 1:
        lines.append("Warning: one seed: the interval does not know how much seeds differ.")
    return lines


def _why(found: LrFinding, tuned: int) -> str:
    """Says why nothing should be done by these trials."""
    if found.doubt == "short":
        return (
            f"the trials have {found.samples:,} of {found.whole_samples:,} samples and {found.seeds} of "
            f"{counted(found.asked_seeds, 'seed')} so far, and short trials prefer other learning rates than long ones"
        )
    if found.doubt == "edge":
        edges = " and ".join(f"{one.batch:,}" for one in found.batches if one.at_edge)
        return f"at batch {edges} the best one is the last one tried, and may lie beyond"
    best = _at(found, tuned)
    ratio = best.best_lr / best.rule_lr
    return (
        f"the recipe's {real(best.rule_lr)} is far from the best one at its own batch of {tuned:,}, {figure(best.best_lr)} here: "
        f"{figure(max(ratio, 1 / ratio), 2)} times {'lower' if ratio > 1 else 'higher'}, so that it does not look tuned for this training, "
        "or the trials are too short to see that it is"
    )


def _at(found: LrFinding, batch: int) -> BatchRates:
    """Picks the finding at one of the batches."""
    return next(one for one in found.batches if one.batch == batch)


def _next(found: LrFinding, *, planned: int, tuned: int) -> str:
    """Advises the next step."""
    if found.doubt == "short":
        return "let the probe come to its end: a larger --budget."
    if found.doubt == "edge":
        return "a larger --budget looks further."
    if found.doubt == "untuned":
        return (
            f"longer trials (--samples, --checkpoint), or a recipe tuned at batch {tuned:,}; of these trials the lowest losses were at "
            f"{figure(_at(found, tuned).best_lr)} there and {figure(_at(found, planned).best_lr)} at {planned:,}."
        )
    low, high = found.interval
    if found.within and high > WIDE_INTERVAL * low:
        return (
            f"train with the plan as it is, or ask for more: the interval spans a factor of {figure(high / low, 2)}, in which these trials can "
            "hardly tell one learning rate from another. More --seeds, longer trials (--samples) or a larger --budget narrow it."
        )
    if found.within:
        return "train with the plan as it is; these trials give no reason to change its learning rate."
    if planned == tuned and not found.whole_run:
        return (
            "be careful: the batch stays, and a short training often prefers a higher learning rate than a long one. Before you change "
            "the recipe's, compare both in longer trials (--samples)."
        )
    if found.exponent is None:
        return f"plan with lr {figure(found.lr)} (--set lr={found.lr:.3g})."
    what = "learning rate and the exponent" if found.whole_run else "exponent"
    return (
        f"plan with lr {figure(found.lr)}: --recipe FILE writes the {what} into the recipe, and `isobatch plan FILE --policy grow --rule "
        "power` plans with it."
    )


def _batch_lines(one: BatchRates) -> list[str]:
    """Lists the learning rates of a batch and their losses."""
    lines = [f"  batch {one.batch:,}: best {figure(one.best_lr)} ({_span(one.interval)})"]
    names = [real(rate.lr) for rate in one.rates]
    width = max(len(name) for name in names)
    for name, rate in zip(names, one.rates, strict=True):
        if rate.loss is None or rate.interval is None:
            result = "diverged"
        else:
            result = f"{rate.loss:.4f} ({rate.interval[0]:.4f} to {rate.interval[1]:.4f})"
        rule = "  the rule's" if abs(rate.lr / one.rule_lr - 1) < 1e-6 else ""
        lines.append(f"    {name:<{width}}  {result}{rule}")
    return lines


def _same_lines(found: SameFinding) -> list[str]:
    """Says whether every split trains the same, or the gap."""
    if found.gap is not None and found.gap_interval is not None:
        low, high = found.gap_interval
        means = (
            "the plan trains worse"
            if low > 0
            else "the plan trains better"
            if high < 0
            else "no difference can be told"
        )
        lines = [
            f"The batch grows, so that this is another training. After {found.samples or 0:,} samples the loss is {found.planned_loss:.4f} where "
            f"the tuned recipe has {found.tuned_loss:.4f}: a gap of {found.gap:+.4f} (95 % interval {_signed(found.gap_interval)}, "
            f"{counted(found.seeds, 'seed')}): {means}."
        ]
        if found.seeds == 1:
            lines.append("Warning: one seed: the interval does not know how much seeds differ.")
        return lines
    lines = [
        f"{counted(found.steps, 'step')} from one seed in double precision, against the whole batch on one replica:"
    ]
    width = max(len(name) for name in (*(split.split for split in found.splits), *found.missing))
    lines += [
        f"  {split.split:<{width}}  weights differ by {split.difference:.1e}{'' if split.same else '  NOT THE SAME'}"
        for split in found.splits
    ]
    lines += [f"  {name:<{width}}  not trained" for name in found.missing]
    if found.same:
        lines.append("The same training at every split: the weights agree within floating point.")
    elif all(split.same for split in found.splits):
        lines.append("The same training at every split that was trained; the others are not known.")
    else:
        lines.append(
            "Not the same training at every split. What depends on the micro-batch does that: batch norm, noise drawn in the model, "
            "or a loss that is no mean over samples."
        )
    return lines


def _critical_lines(found: CriticalFinding, planned: int) -> list[str]:
    """Says the critical batch, and the branches behind it."""
    more = "" if found.bounded else ", or more: no larger one was tried that fails"
    if len([one for one in found.branches if one.holds]) == 1 and found.bounded:
        more = ", or less: already twice the batch fails"
    lines = [
        f"Critical batch by branched training (Merrill et al. 2025, arXiv 2505.23971): {found.critical_batch:,}{more}.",
        f"Next: {_critical_next(found, planned)}",
        f"Branches of {found.samples:,} samples and {counted(found.seeds, 'seed')} from one checkpoint; a branch holds where its "
        f"smoothed loss is at most {figure(found.tolerance)} above that at k = 1:",
    ]
    lines += [
        f"  k = {one.k}: batch {one.batch:,}, learning rate {figure(one.lr)}, loss "
        f"{'diverged' if one.loss is None else f'{one.loss:.4f}'}{'' if one.error is None or one.k == 1 else f' ± {one.error:.4f}'}, "
        f"{'holds' if one.holds else 'does not hold'}"
        for one in found.branches
    ]
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


def _critical_next(found: CriticalFinding, planned: int) -> str:
    """Advises what to do with a critical batch."""
    if planned <= found.critical_batch:
        return f"train with the plan as it is: its batch of {planned:,} is not above that."
    if not found.bounded:
        return f"a larger --budget, so that larger batches are tried: the plan's {planned:,} was not."
    return (
        f"the plan's batch of {planned:,} is above that, where the same loss takes more samples: plan with --policy "
        f"{found.critical_batch}, or keep the tuned batch."
    )


def _span(ends: Interval) -> str:
    return f"{figure(ends[0])} to {figure(ends[1])}"


def _signed(ends: Interval) -> str:
    return f"{ends[0]:+.4f} to {ends[1]:+.4f}"
