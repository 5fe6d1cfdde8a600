"""`isobatch doctor`: the real effect of a configuration on a number of GPUs, or of a running script."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isobatch.cli import options
from isobatch.cli.source import TOOL, fields, naming_set
from isobatch.cli.terminal import heard_sigterm, say, show_lines, write_json
from isobatch.doctor import Examination, examine
from isobatch.doctor_record import FileRecord
from isobatch.errors import InputError, missing
from isobatch.files.whole import check_place
from isobatch.planning.plan import plan
from isobatch.recipes.cluster import Cluster
from isobatch.tools.page import Reading
from isobatch.tools.tool import Issue

if TYPE_CHECKING:
    from isobatch.equivalence.running import Running
    from isobatch.equivalence.running_recipe import Mismatch

DESCRIPTION = (
    "Checks another tool's configuration before it runs: the batch, the learning rate's rule, what isobatch "
    "plan refuses, and what the tool does silently. With a training command after --, it starts the command, "
    "ends it before its second optimizer step, and compares what runs with what the command says. Exit "
    "codes: 0 nothing found, 1 something stops the run, changes the training, cannot be planned, or differs "
    "from the command, 2 cannot be read; of several files, each examined by itself, the highest."
)
EXAMPLES = (
    "isobatch doctor training_args.json --gpus 32",
    "isobatch doctor training_args.json --nodes 4 --gpus-per-node 8 --set effective_batch=64 --json",
    "isobatch doctor --gpus 8 -o recipe.toml -- torchrun --nproc-per-node 2 train.py --learning_rate 2e-5",
)
LIMIT = 600.0


OPTIONS = {
    "file": (
        "another tool's configuration, or several; a checkpoint folder of transformers' Trainer; or, after "
        "--, a training command",
        {"nargs": "*"},
    ),
    "GPUs to run on (default: every row of a HyperPod recipe; of a command, none)": options.GPUS,
    **TOOL,
    "--limit SECONDS": (f"time of a command until its second step (default {LIMIT:.0f})", LIMIT),
    "--json": "print the findings as JSON, a line for each file",
    "-o/--output FILE": "save the recipe of a command: .toml, .yaml or .json",
}


def run(args: argparse.Namespace) -> int:
    """Prints the findings on each file; the highest code of all files."""
    if "--" in args.words:
        return _run_command(args, args.words[args.words.index("--") + 1 :])
    if not args.file:
        raise missing("file", "name a configuration, or a training command after --")
    cluster = options.cluster(args, optional=True)
    recipe_fields = {
        ("tuned_gpus" if name == "gpus" else name): value for name, value in fields(args).items()
    }
    codes = list[int]()
    for file in args.file:
        if codes and not args.json:
            print()
        try:
            codes.append(_examine_file(args, file, cluster, recipe_fields))
        except InputError as error:
            if error.file is None or (len(args.file) == 1 and not args.json):
                raise
            if args.json:
                why = error.message if error.file == file else str(error)
                write_json(FileRecord(file=file, error=why))
            say(f"isobatch doctor: {error}", error=True)
            codes.append(2)
    return max(codes)


def _examine_file(
    args: argparse.Namespace, file: str, cluster: Cluster | None, recipe_fields: Mapping[str, Any]
) -> int:
    """Prints the findings on one file; 1 where one of them is more than good to know."""
    tuned_gpus = getattr(args, "tuned_gpus", None)
    with naming_set(recipe_fields):
        examination = examine(file, cluster, tool=args.tool, **recipe_fields)
        lacks_gpus = examination.tuned is None and examination.reading.fields.get("gpus") is None
        if tuned_gpus is not None and cluster is not None and lacks_gpus:
            own = {"tuned_gpus": tuned_gpus, **recipe_fields}
            examination = examine(file, cluster, tool=args.tool, **own)
    if args.json:
        write_json(examination.to_json())
    else:
        show_lines(examination.text)
    return 0 if examination.healthy else 1


def _run_command(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Starts a command and plans its run; 1 if the run differs from the command, or has no plan."""
    from isobatch.equivalence.running import observe
    from isobatch.equivalence.running_recipe import differences, recipe_of, text_of

    if args.output is not None:
        check_place(args.output)
    cluster = options.cluster(args, optional=True)
    with heard_sigterm():
        running = observe(command, tool=args.tool, limit=args.limit)
    mismatches = [*differences(running)]
    if args.json:
        write_json(_examination(running, mismatches).to_json())
    else:
        show_lines(text_of(running, mismatches))
    code = 1 if mismatches else 0
    if args.output is None and cluster is None:
        return code
    recipe = recipe_of(running, fields(args))
    if args.output is not None:
        recipe.save(args.output)
        say(f"the recipe of this run: {args.output}")
    if cluster is None:
        return code
    planned = plan(recipe, cluster)
    if args.json:
        write_json(planned.to_json())
    else:
        print()
        show_lines(planned.explain(), planned.status)
    return 1 if planned.status == "infeasible" else code


def _examination(running: Running, mismatches: Sequence[Mismatch]) -> Examination:
    """Converts the mismatches of a run into findings, for JSON."""
    findings = tuple(
        Issue(
            f"{mismatch.field}: expected {mismatch.stated}, runs {mismatch.observed}",
            "the script decides otherwise than its command says",
            "its first two optimizer steps",
            f"say {mismatch.observed} in the command, or change the script",
            field=mismatch.field,
        )
        for mismatch in mismatches
    )
    reading = Reading("", running.title, "", {}, notes=[*running.notes])
    return Examination(reading, running.started, running.effective_batch, None, findings, "")
