"""`isobatch replan`: move a run that is under way to other hardware or another batch."""

import argparse
from typing import Any

from isobatch import words
from isobatch.cli import options
from isobatch.cli.source import FROM, TO, Source, form, job, publish, read, target
from isobatch.cli.terminal import say
from isobatch.errors import InputError, missing
from isobatch.planning.plan import Plan, plan
from isobatch.planning.replan import replan
from isobatch.planning.saved import NotAPlan

DESCRIPTION = "Moves a running job to other hardware or another batch, and says where its data resumes."
EXAMPLES = ("isobatch replan plan.json --at-step 100000 --gpus 128 -o moved.json",)

EVERYDAY = (
    f"--at-step --effective-batch --from --set --to --gpus --nodes {options.EVERYDAY_HARDWARE} "
    f"{options.EVERYDAY_SETTINGS.removesuffix(' --deadline-hours')} --json --output"
)


OPTIONS = {
    "[plan]": "the plan the run follows: a .json file from `plan -o` or `replan -o`; or, in its place, "
    "--from",
    "--at-step N": (
        "optimizer steps done in the checkpoint to resume from (default: read from the checkpoint folder of "
        "--from)",
        {"type": int},
    ),
    "--effective-batch N": "effective batch to move to",
    "recipe": FROM,
    "another tool": TO,
    "target cluster": {**options.CLUSTER, **options.CURRENCY},
    "how to plan (default: as in the plan, policy included)": {"settings": options.add_settings},
    "--force": "with --to and -o: replace the tool's file where it is there",
    "--json": "print the plan as JSON",
    "-o/--output FILE": "also save the plan, as JSON (-: to stdout); with --to, the tool's file in its place",
}


def run(args: argparse.Namespace) -> int:
    """Prints the moved plan; 1 where it is infeasible."""
    tool = target(args)
    suffix = None if tool is None else form(args)
    running, step, checkpoint, recipe_source = _running(args)
    if checkpoint is None:
        _between_checkpoints(running, step)
    how, batch = recipe_source.settings(options.settings(args)), args.effective_batch
    if type(how.get("policy")) is int:  # as `isobatch plan` takes it, and as menus print it
        if batch is not None:
            raise InputError("--policy and --effective-batch both give the batch: give one of the two")
        batch = how.pop("policy")
    cluster = options.cluster(args, optional=True)
    moved = replan(running, at_step=step, cluster=cluster, effective_batch=batch, **how)
    in_words = not args.json and args.output != "-"
    tool = tool or ("transformers" if checkpoint is not None and in_words else None)
    feasible = moved.status != "infeasible"
    if feasible and running.hours is not None and moved.hours is None:
        say("hours are not known any more: a saved plan has no profile, so give --profile again")
    say(*recipe_source.recomputing(how.get("profile", ())))
    export = None
    if tool is not None and feasible:
        export = moved.to(tool, form=suffix, job=job(args, resume=checkpoint, own=recipe_source.own(tool)))
    return publish(moved, export, args, tool or recipe_source.tool)


def _saved(file: str) -> Any:
    """Loads the plan in a file; refuses another tool's file, and names the option for it."""
    try:
        return Plan.load(file)
    except NotAPlan as error:
        raise InputError(f"{error.message}; another tool's file goes with --from", file=file) from None


def _between_checkpoints(running: Any, step: int) -> None:
    """Warns on stderr of a step without a checkpoint."""
    every = running.save_steps
    if every and step > every and step % every and not running.moves:
        last = step // every * every
        say(
            f"the run saves every {words.counted(every, 'step')}: if it resumes from the checkpoint of step "
            f"{words.count(last)}, that is --at-step {last}"
        )


def _running(args: argparse.Namespace) -> tuple[Any, int, str | None, Source]:
    """Reads the plan of the run, its steps done, its checkpoint if any, and its source."""
    if (args.plan is None) == (not args.source):
        todo = "give either the plan that the run follows, or --from with its checkpoint"
        raise InputError(todo, field="plan")
    if not args.source:
        if args.at_step is None:
            raise missing("--at-step", "give the number of optimizer steps done")
        running = _saved(args.plan)
        return running, args.at_step, None, Source(running.recipe)
    recipe_source = read(args)
    recipe, pages = recipe_source.recipe, recipe_source.pages
    step_done = next((page.step for page in pages if page.step is not None), None)
    step = step_done if args.at_step is None else args.at_step
    if step is None:
        raise missing("--at-step", f"{args.source[0]} does not say how many optimizer steps are done")
    if recipe.gpus is None:
        raise missing("gpus", "give the GPUs that the run was on with --set gpus=N")
    folder = next((page.file for page in pages if page.tool == "checkpoint"), None)
    return plan(recipe, recipe.gpus), step, folder, recipe_source
