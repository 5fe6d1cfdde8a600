"""Restarts of a run: the step by its checkpoint, the history by the plan beside the checkpoint."""

import re
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from isobatch.cli.terminal import say
from isobatch.elastic.state import SCHEMA, read
from isobatch.errors import InputError, must_be
from isobatch.files.formats import read_fields
from isobatch.files.whole import write_folder
from isobatch.planning.plan import Plan
from isobatch.planning.saved import NotAPlan
from isobatch.recipes.recipe import Recipe
from isobatch.words import shown

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".pkl", ".pickle", ".npz", ".npy", ".h5"),
    *(".msgpack", ".tar", ".zip", ".toml", ".yaml", ".yml"),
)
"""Suffixes of a file that is not there yet, and of no folder."""
_SECONDS_TO_WAIT = 30.0
"""Time for rank 0 to keep the plan, and for a shared disk to show it."""


def go_on(planned: Plan, state: Path, rank: int) -> Plan:
    """Moves the run of a checkpoint to the planned GPUs; rank 0 keeps its plan beside the checkpoint.

    Args:
        planned: the whole run as these GPUs would train it.
        state: the checkpoint: a file, or the output folder of transformers' Trainer; perhaps not there yet.
        rank: of this process; 0 says what it did.
    """
    if state.suffix in _WEIGHTS or (state.is_file() and state.suffix != ".json"):
        raise InputError(
            "is no state to read: give a JSON file with step, or the output folder of transformers' Trainer",
            file=str(state),
        )
    note: Callable[[str], None] = (lambda _: None) if rank else say
    beside = state.with_suffix(".plan.json") if state.suffix == ".json" else state / "isobatch.plan.json"
    step, fields = _place(state, planned.recipe, note)
    is_feasible = planned.status != "infeasible"
    if step and rank and is_feasible:
        _wait_for(beside, rank)
    is_kept, is_over = step > 0 and beside.exists(), False
    moved = running = _loaded(beside) if is_kept else planned
    if is_kept:
        _check_recipe(running.recipe, planned.recipe, beside)
    if step and running.status != "infeasible":
        total = running.total_steps
        if total is not None and step > total and fields.get("schema") != SCHEMA:  # ElasticRun counts its own
            raise InputError(
                f"is at step {step:,}, and this run ends at step {total:,}: it is another run's state. Give "
                "this run a --state of its own",
                file=str(state),
            )
        _check_moves(running, step, fields, state, beside)
    if is_kept:
        if running.total_steps is not None and step >= running.total_steps:
            note(f"the run is over: {step:,} of {running.total_steps:,} steps are done")
            step, is_over = running.total_steps - 1, True  # only its last step is left to these GPUs
        moved = _moved(running, planned, step)
    elif step:
        note(f"{beside} is missing: the run is taken as planned for these GPUs from step 0")
    if rank == 0 and moved.status != "infeasible" and not is_over:
        write_folder(beside.parent, {Path(beside.name): (moved.to_json() + "\n").encode()})
    return moved


def _loaded(beside: Path) -> Plan:
    """Loads the plan beside the checkpoint."""
    try:
        return Plan.load(beside)
    except NotAPlan as error:
        todo = "restore a copy of it: it has the moves of the run, which a new plan does not"
        raise InputError(f"is cut off or damaged: {todo}", file=error.file) from None


def _check_moves(running: Plan, step: int, fields: dict[str, Any], state: Path, beside: Path) -> None:
    """Refuses a plan with other batches or samples than the run's state."""
    is_kept, course, samples = beside.exists(), "", fields.get("samples")
    if fields.get("schema") == SCHEMA:
        legs = _batches([(leg.step, leg.batch) for leg in read(fields).stretches], step)
        if legs != _batches([(start, leg.effective_batch) for start, leg in running.legs], step):
            course = " and ".join(f"{batch:,} samples a step from step {start:,}" for start, batch in legs)
    elif type(samples) is int and not is_kept:
        expected = running.position(step).samples, step * (running.effective_batch or 0)
        if samples not in expected:
            course = f"{samples:,} samples in {step:,} steps, where these GPUs take {expected[0]:,}"
    if course:
        why = "has other batches" if is_kept else "is missing"
        raise InputError(
            f"is of a run of {course}, and {beside} {why}: restore that file. Leave --state out where the "
            "script is an ElasticRun: its own state has its moves",
            file=str(state),
        )


def _batches(legs: Iterable[tuple[int, int | None]], step: int) -> list[tuple[int, int | None]]:
    """Returns the batches up to a step, each with the step where it begins."""
    begun = [(start, batch) for start, batch in legs if start < step]
    return begun[:1] + [leg for last, leg in pairwise(begun) if leg[1] != last[1]]


def _wait_for(beside: Path, rank: int) -> None:
    """Waits until rank 0 has kept the plan beside the checkpoint, and a shared disk shows it."""
    end = time.monotonic() + _SECONDS_TO_WAIT
    while not beside.exists():
        if time.monotonic() >= end:
            todo = "give --state a path on a disk that all ranks share"
            raise InputError(f"is not there for rank {rank}, beside a checkpoint: {todo}", file=str(beside))
        time.sleep(0.1)


def _moved(running: Plan, planned: Plan, step: int) -> Plan:
    """Moves the run at a step; moves behind the step never happened."""
    from isobatch.planning.replan import replan

    while running.moves and running.moves[-1].step > step:
        running = msgspec.structs.replace(running.moves[-1].before, moves=running.moves[:-1])
    if (running.cluster, running.settings) == (planned.cluster, planned.settings):
        return running
    settings: dict[str, Any] = planned.settings._asdict()
    batch = settings.pop("policy") if type(planned.settings.policy) is int else None
    return replan(running, at_step=step, cluster=planned.cluster, effective_batch=batch, **settings)


def _place(state: Path, recipe: Recipe, note: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    """Reads the steps done and the fields of a checkpoint, of a Trainer's the newest whole one; else 0."""
    if not state.exists():
        return 0, {}
    if state.suffix == ".json":
        return _place_in(state, recipe)
    numbers = {int(name[1]): path for path in state.iterdir() if (name := _CHECKPOINT.fullmatch(path.name))}
    folders = [numbers[number] for number in sorted(numbers, reverse=True)]
    for at, folder in enumerate(folders, 1):
        try:
            step, fields = _place_in(folder / "trainer_state.json", recipe)
        except InputError:  # its writer was killed
            if at == len(folders):
                raise
            continue
        if at > 1:
            note(
                f"{folders[0]} is not whole: the run is taken as at step {step}, its newest whole checkpoint"
            )
        return step, fields
    file = state / "trainer_state.json"
    return _place_in(file, recipe) if file.exists() else (0, {})


def _place_in(file: Path, recipe: Recipe) -> tuple[int, dict[str, Any]]:
    """Reads the steps done and the fields of a file."""
    try:
        fields = read_fields(file)
    except InputError as error:
        todo = "restore another copy of the checkpoint, or remove it to start anew"
        raise InputError(f"{error.message}: {todo}", file=error.file) from None
    if isinstance(fields.get("recipe"), dict):  # of ElasticRun
        _check_recipe(Recipe.of(fields["recipe"]), recipe, file)
    step = fields.get("step", fields.get("global_step"))
    if type(step) is not int or step < 0:
        raise must_be("a number of steps", step, field="step (or global_step)", file=str(file))
    return step, fields


def _check_recipe(before: Recipe, now: Recipe, file: Path) -> None:
    """Refuses the checkpoint of another run."""
    for name in Recipe.__struct_fields__:
        then, new = getattr(before, name), getattr(now, name)
        if then != new:
            raise InputError(
                f"is of another run: {name} is {shown(then)} there, and {shown(new)} in FILE. Change it "
                "back, or give this run a --state of its own",
                file=str(file),
            )
