"""`isobatch doctor`: what a configuration will really do on a given number of GPUs, and what a running script really has."""

import argparse
from collections.abc import Sequence

from isobatch.cli.options import gpu_count
from isobatch.cli.source import TOOL, fields, naming_set
from isobatch.cli.terminal import say, show_lines
from isobatch.errors import missing
from isobatch.files.whole import check_place

DESCRIPTION = (
    "Looks at another tool's configuration before it runs: the batch, the rule of the learning rate, and what the tool does"
    " without a word. With a training command after -- it starts the command, ends it before its second optimizer step, and says"
    " what really runs beside what the command says. Exits with 1 where something stops the run or changes the training, or"
    " runs otherwise than the command says."
)
EXAMPLES = (
    "isobatch doctor training_args.json --gpus 32",
    "isobatch doctor --gpus 8 -o recipe.toml -- torchrun --nproc-per-node 2 train.py --learning_rate 2e-5",
)
LIMIT = 600.0


OPTIONS = {
    "file": (
        "another tool's configuration, or a checkpoint folder of transformers' Trainer; or, after --, a training command",
        {"nargs": "*"},
    ),
    "--gpus N": (
        "number of GPUs that it is to run on (default: every row of a HyperPod recipe); of a command the recipe is planned on them",
        {"type": gpu_count},
    ),
    **TOOL,
    "--limit SECONDS": (f"time of a command until its second step (default {LIMIT:.0f})", LIMIT),
    "-o/--output FILE": "save the recipe of a command: .toml, .yaml or .json",
}


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 where one of them stops the run or changes the training."""
    if "--" in args.words:
        return _run_command(args, args.words[args.words.index("--") + 1 :])
    if len(args.file) != 1:
        raise missing("file", "name a configuration, or a training command after --")
    from isobatch.doctor import examine

    given = {("tuned_gpus" if name == "gpus" else name): value for name, value in fields(args).items()}
    with naming_set(given):
        diagnosis = examine(args.file[0], args.gpus, tool=args.tool, **given)
    show_lines(diagnosis.text)
    return 0 if diagnosis.healthy else 1


def _run_command(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Starts a command, and plans from what it runs; 1 where it runs otherwise than it says, or has no plan."""
    from isobatch.equivalence.running import observe
    from isobatch.equivalence.running_recipe import differences, recipe_of
    from isobatch.equivalence.running_text import text_of
    from isobatch.planning.plan import plan

    if args.output is not None:
        check_place(args.output)
    running = observe(command, tool=args.tool, limit=args.limit)
    different = [*differences(running)]
    show_lines(text_of(running, different))
    code = 1 if different else 0
    if args.output is None and args.gpus is None:
        return code
    recipe = recipe_of(running, fields(args))
    if args.output is not None:
        recipe.save(args.output)
        say(f"the recipe of this run: {args.output}")
    if args.gpus is None:
        return code
    planned = plan(recipe, args.gpus)
    print()
    show_lines(planned.explain(), planned.status)
    return 1 if planned.status == "infeasible" else code
