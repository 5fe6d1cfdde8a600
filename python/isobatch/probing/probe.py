"""`ib.probe`: measures in this process; and its findings, in words and as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError, missing, unknown
from isobatch.files.whole import write_whole
from isobatch.planning.plan import Plan
from isobatch.probing.options import Budget, Expired, ProbeOptions, budget_text, seconds_of
from isobatch.recipes.recipe import Recipe
from isobatch.words import counted, duration

if TYPE_CHECKING:  # torch is imported within the budget
    from isobatch.probing.estimate import LrFinding

NEEDED = 1.25
"""Times the budget that was spent: less is not advised."""


_SQUARE_ROOT = 0.5
"""The exponent of rule `sqrt`."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the finding, `lr`, and how it was measured, in `seconds` from the call to the answer.

    `stopped`: the end of an unfinished probe, "budget" or "interrupted"; `needed_seconds` would likely do.
    """

    workload: str
    optimizer: str
    policy: str
    rule: str
    tuned_batch: int
    planned_batch: int
    device: str
    torch: str
    seconds: float
    budget_seconds: float
    recipe: Recipe
    lr: LrFinding
    stopped: str | None = None
    needed_seconds: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The command's exit code.

        0; 1 if the plan's learning rate is outside the interval; 2 if the trials give none (`lr.doubt`).
        """
        return 2 if self.lr.doubt is not None else int(not self.lr.within)

    def to_recipe(self) -> Recipe:
        """Returns the recipe with the measured exponent as its `power`, for plans by rule "power".

        Trials as long as the run also give it the best learning rate at the tuned batch.

        Raises:
            InputError: no exponent was measured, its interval tells too little, or the trials name no
                learning rate (`lr.doubt`).
        """
        if self.lr.exponent is None:
            why = "no exponent was measured: that needs trials at two batches or more"
            raise InputError(why, field="batches")
        if self.lr.doubt is not None:
            why = "these trials name no learning rate, so that no recipe is written from them"
            raise InputError(why, field="recipe")
        low, high = self.lr.exponent_interval or (1.0, 1.0)
        if low <= 0 and high >= _SQUARE_ROOT:
            why = (
                f"the exponent's 95 % interval, {low:.3g} to {high:.3g}, holds 0 and 0.5: a rate that stays "
                "cannot be told from one that grows as √k; try more seeds"
            )
            raise InputError(why, field="recipe")
        best = {"lr": self.lr.batches[0].best_lr} if self.lr.whole_run else {}
        return msgspec.structs.replace(self.recipe, **best, power=self.lr.exponent)

    def save_recipe(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_recipe`, in TOML or YAML with the interval as a comment.

        Raises:
            InputError: as `to_recipe`, or the file cannot be written.
        """
        self.to_recipe().save(path)
        if Path(path).suffix == ".json" or self.lr.exponent_interval is None:
            return
        low, high = self.lr.exponent_interval
        batches = ", ".join(f"{batch.batch:,}" for batch in self.lr.batches)
        comment = (
            f"# power: measured by isobatch probe on {self.workload}, 95 % interval {low:.3g} to {high:.3g}, "
            f'batches {batches}; plan with rule "power"\n'
        )
        if self.lr.whole_run:
            comment += f"# lr: the best of trials as long as the run, {self.recipe.lr:g} before\n"
        write_whole(path, comment.encode() + Path(path).read_bytes())

    def to_json(self) -> str:
        """Writes the whole as JSON text."""
        fields = msgspec.to_builtins(self, enc_hook=lambda schedule: msgspec.json.decode(schedule.to_json()))
        fields["recipe"] = {name: value for name, value in fields["recipe"].items() if value is not None}
        return msgspec.json.format(msgspec.json.encode({"schema": "isobatch-probe-4", **fields})).decode()

    def show(self) -> str:
        """Writes the finding in words: first the answer and the next step, then the trials behind it."""
        lines = [
            f"isobatch probe: {self.workload} with {self.optimizer}, on {self.device}, "
            f"{counted(len(self.lr.trials), 'trial')}, {duration(self.seconds)} of a budget of "
            f"{duration(self.budget_seconds)}.",
            *self._early(),
            *self.lr.lines(self.planned_batch, self.tuned_batch, self.rule),
            *(f"Note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def _early(self) -> list[str]:
        """Says how the probe ended early, and names a sufficient budget."""
        if self.stopped is None:
            return []
        ended = {"budget": "The budget ended", "interrupted": "It was interrupted"}[self.stopped]
        more = "a larger --budget goes further."
        if self.needed_seconds is not None:
            more = f"a budget of {budget_text(self.needed_seconds)} would likely do."
        part = round(self.lr.whole_samples / self.lr.samples)
        lengths = {1: "whole trials", 2: "trials of a half of the samples"}
        on = lengths.get(part, "trials of a quarter of the samples")
        seeds = f"{self.lr.seeds} of {counted(self.lr.asked_seeds, 'seed')}"
        return [f"{ended} before all trials were made; {more} What follows is from {on}, {seeds}."]


def probe(
    plan: Plan | str | os.PathLike[str],
    workload: str | Callable[[], Any] | None = None,
    *,
    budget: str | float = "10m",
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Probe:
    """Trains for a short time and measures the learning rate, where a scaling rule only predicts it.

    It is measured at the tuned and the planned batch at equal samples, with its interval and the exponent
    between them.

    Args:
        plan: a plan, or the path of one.
        workload: "package.module:factory" of an `isobatch.validate.Workload`, or the factory.
        budget: what it may take, from this call to its return, with importing torch: "90s", "10m", "2h", or
            seconds. A trial that would exceed it is given up, and the trials before it say what they can.
        say: called with a line of progress.
        options: the other fields of `isobatch.probing.options.ProbeOptions`: seeds, batches, samples, device.

    Returns:
        What was found; `.show()` has it in words, `.to_recipe()` the recipe with the exponent as its power.
        `stopped` says what ended it early: "budget" or "interrupted" (Ctrl-C).

    Raises:
        InputError: the plan is infeasible, an argument is out of range, the workload is missing or cannot be
            reseeded, its loss is not finite from the start or never moves, or nothing was known when the
            budget ended.

    >>> import torch
    >>> import isobatch as ib
    >>> from isobatch.validate import Workload
    >>> def factory():
    ...     return Workload(
    ...         torch.nn.Linear(6, 1),
    ...         lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    ...         lambda n, generator, device: torch.randn(n, 6, generator=generator).to(device),
    ...         lambda model, x: torch.nn.functional.mse_loss(model(x), x[:, :1]),
    ...     )
    >>> recipe = ib.Recipe(effective_batch=16, lr=0.1, optimizer="sgd", gpus=1, micro_batch=16)
    >>> plan = ib.plan(recipe, 2, policy="grow")
    >>> [one.batch for one in ib.probe(plan, factory, samples=512, seeds=1).lr.batches]
    [16, 32]
    """
    clock = Budget(seconds_of(budget))
    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    if strange := next((name for name in options if name not in ProbeOptions.__struct_fields__), None):
        raise unknown("argument", strange, sorted(ProbeOptions.__struct_fields__), field=strange)
    if "batches" in options:
        options["batches"] = tuple(options["batches"])
    checked = ProbeOptions(**options)
    if workload is None:
        raise missing("workload", "give your own training as package.module:factory")
    plan.require()
    return _experiment(plan, workload, checked, clock, say or (lambda _: None))


def _experiment(
    plan: Plan,
    workload: str | Callable[[], Any],
    options: ProbeOptions,
    budget: Budget,
    say: Callable[[str], None],
) -> Probe:
    """Measures by the options; the budget has begun."""
    import torch

    from isobatch.probing.lab import Lab, tuned_batch
    from isobatch.probing.learning_rate import Search
    from isobatch.probing.training import device_of
    from isobatch.validate.workload import factory_of

    device = device_of(options.device)
    name = f"{getattr(workload, '__module__', '?')}:{getattr(workload, '__qualname__', '?')}"
    probe = partial(
        Probe,
        workload=workload if isinstance(workload, str) else name,
        optimizer=plan.recipe.optimizer,
        policy=str(plan.policy),
        rule=plan.rule or "none",
        tuned_batch=tuned_batch(plan),
        planned_batch=plan.require().effective_batch,
        device=device.type,
        torch=str(torch.__version__),
        budget_seconds=budget.seconds,
        recipe=plan.recipe,
        notes=tuple(_notes(plan, tuned_batch(plan))),
    )
    search, stopped, needed = None, None, None
    try:
        factory = factory_of(workload) if isinstance(workload, str) else workload
        search = Search(Lab(plan, options, device, budget, factory), say)
        search.run()
    except Expired:
        stopped = "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if stopped == "budget" and search is not None:
        needed = max(search.lab.needed_seconds or 0.0, NEEDED * budget.seconds)
    if search is None or search.finding is None:
        raise _nothing_known(budget, stopped, needed)
    return probe(lr=search.finding(), stopped=stopped, needed_seconds=needed, seconds=budget.spent())


def _nothing_known(budget: Budget, stopped: str | None, needed: float | None) -> InputError:
    """Refuses a probe without any finding; names a sufficient budget."""
    why = f"interrupted after {duration(budget.spent())}, before"
    if stopped == "budget":
        why = f"{duration(budget.seconds)} were spent before"
    text = f"{why} the first round of trials was complete, so that nothing can be said."
    if needed is not None:
        text += f" A budget of {budget_text(needed)} would likely do."
    elif stopped == "budget":
        text += " Getting ready alone took that long: raise the budget."
    return InputError(text, field="budget" if stopped == "budget" else None)


def _notes(plan: Plan, tuned: int) -> list[str]:
    """Lists departures from the plan."""
    notes = []
    if plan.recipe.precision == "fp16":
        notes.append("the recipe's fp16 was trained as bf16, which needs no loss scaling.")
    if plan.recipe.ramp is not None:
        notes.append("the ramp of the batch was left out: trials have the full batch.")
    planned, own = plan.require().effective_batch, plan.recipe.effective_batch
    if tuned == planned != own:
        instead = f"{planned:,}, within a tenth of it, was instead"
        notes.append(f"the tuned batch, {own:,}, was not trained: {instead}.")
    return notes
