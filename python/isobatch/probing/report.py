"""What a probe found. No torch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.probing.findings import CriticalFinding, LrFinding, SameFinding
from isobatch.probing.lines import critical_lines, lr_lines, same_lines
from isobatch.probing.options import Measure, budget_text
from isobatch.probing.trials import Trial
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, duration


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found: one of `lr`, `same` and `critical`, by what was measured.

    `stand_in`: the built-in workload was trained, and not yours. `trials` are all that were made, with their seeds and losses. `seconds`
    is from the call to the answer, `beside_seconds` what of it went before the first trial. `stopped`: what ended the probe before it
    was done: "budget", "interrupted", or a lost rank. `trials_file` keeps the trials, where one was named.
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
    measure: Measure
    beside_seconds: float = 0.0
    stopped: str | None = None
    trials_file: str | None = None
    lr: LrFinding | None = None
    same: SameFinding | None = None
    critical: CriticalFinding | None = None
    trials: tuple[Trial, ...] = ()
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0, or 1 for a negative result: the plan's learning rate lies outside the interval, or a split trains another training; 2 where
        the trials name no learning rate (`lr.doubt`)."""
        if self.lr is not None and self.lr.doubt is not None:
            return 2
        wrong = (self.lr is not None and not self.lr.within) or (self.same is not None and not self.same.same)
        return int(wrong)

    def to_recipe(self) -> Recipe:
        """The recipe with the measured exponent as its `power`, for plans by rule "power"; from trials as long as the run itself also
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
        return Recipe.of({**_fields(self.recipe), **best, "power": self.lr.exponent})

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
        lines = [_head(self), *_early(self)]
        if self.lr is not None:
            lines += lr_lines(
                self.lr,
                planned=self.planned_batch,
                tuned=self.tuned_batch,
                rule=self.rule,
                stand_in=self.stand_in,
            )
        if self.same is not None:
            lines += same_lines(self.same)
        if self.critical is not None:
            lines += critical_lines(self.critical, planned=self.planned_batch, stand_in=self.stand_in)
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


def _early(probe: Probe) -> list[str]:
    """What ended the probe early, and what would be enough."""
    if probe.stopped is None:
        return []
    ended = {"budget": "The budget ended", "interrupted": "It was interrupted"}.get(
        probe.stopped, f"It ended early: {probe.stopped},"
    )
    found = probe.lr
    if found is None:
        return [f"{ended} before all was trained; a larger --budget goes further."]
    part = found.samples / found.whole_samples
    on = "whole trials" if part == 1 else f"trials of a {'half' if part > 0.4 else 'quarter'} of the samples"
    if probe.trials_file is not None:
        more = f"The same command goes on from the trials in {probe.trials_file}."
    elif found.needed_seconds is not None:
        more = f"A budget of {budget_text(found.needed_seconds)} would likely do; --trials FILE keeps the trials for a next run."
    else:
        more = "--trials FILE keeps the trials for a next run."
    return [
        f"{ended} before all trials were made. What follows is from {on}, {found.seeds} of "
        f"{counted(found.asked_seeds, 'seed')}. {more}"
    ]
