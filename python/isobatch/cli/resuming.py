"""Restarts of a run: the step by its checkpoint, the history by the plan beside the checkpoint."""

import re
from pathlib import Path
from typing import Any

import msgspec

from isobatch.cli.terminal import say
from isobatch.errors import InputError, must_be
from isobatch.files.formats import read_fields
from isobatch.files.whole import write_folder
from isobatch.planning.plan import Plan
from isobatch.recipes.recipe import Recipe
from isobatch.words import shown

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def go_on(planned: Plan, state: Path, *, speaks: bool) -> Plan:
    """Moves the run of a checkpoint to the planned GPUs, and keeps its plan beside the checkpoint.

    Args:
        planned: the whole run as these GPUs would train it.
        state: the checkpoint: a file, or the output folder of transformers' Trainer; perhaps not there yet.
        speaks: whether this is the rank that keeps the plan and says what it did.

    Raises:
        InputError: the checkpoint is of another recipe, or says no step.
    """
    is_file = state.suffix == ".json"
    beside = state.with_suffix(".plan.json") if is_file else state / "isobatch.plan.json"
    step = _step(state, planned.recipe)
    running = Plan.load(beside) if step and beside.exists() else None
    if running is not None:
        _check_recipe(running.recipe, planned.recipe, beside)
    if step and running is None and speaks:
        say(f"{beside} is missing: the run is taken as planned for these GPUs from step 0")
    moved = planned if running is None else _moved(running, planned, step)
    if speaks and moved.status != "infeasible":
        write_folder(beside.parent, {Path(beside.name): (moved.to_json() + "\n").encode()})
    return moved


def _moved(running: Plan, planned: Plan, step: int) -> Plan:
    """Moves the run at a step; moves behind the step never happened."""
    from isobatch.planning.replan import replan

    while running.moves and running.moves[-1].step > step:
        running = msgspec.structs.replace(running.moves[-1].before, moves=running.moves[:-1])
    is_over = running.total_steps is not None and step >= running.total_steps
    if is_over or (running.cluster, running.settings) == (planned.cluster, planned.settings):
        return running
    settings: dict[str, Any] = planned.settings._asdict()
    batch = settings.pop("policy") if type(planned.settings.policy) is int else None
    return replan(running, at_step=step, cluster=planned.cluster, effective_batch=batch, **settings)


def _step(state: Path, recipe: Recipe) -> int:
    """Reads the steps done from a checkpoint; 0 where there is none."""
    if state.is_dir():
        numbers = [int(name[1]) for path in state.iterdir() if (name := _CHECKPOINT.fullmatch(path.name))]
        if not (state / "trainer_state.json").exists() and not numbers:
            return 0
        state = state if not numbers else state / f"checkpoint-{max(numbers)}"
        state /= "trainer_state.json"
    elif not state.exists():
        return 0
    fields = read_fields(state)
    if isinstance(fields.get("recipe"), dict):  # of ElasticRun
        _check_recipe(Recipe.of(fields["recipe"]), recipe, state)
    step = fields.get("step", fields.get("global_step"))
    if type(step) is not int or step < 0:
        raise must_be("a number of steps", step, field="step (or global_step)", file=str(state))
    return step


def _check_recipe(before: Recipe, now: Recipe, file: Path) -> None:
    """Refuses the checkpoint of another run.

    Raises:
        InputError: a field differs.
    """
    for name in Recipe.__struct_fields__:
        then, new = getattr(before, name), getattr(now, name)
        if then != new:
            raise InputError(
                f"is of another run: {name} is {shown(then)} there, and {shown(new)} in FILE. Change it "
                "back, or give this run a --state of its own",
                file=str(file),
            )
