"""`isobatch doctor`: the real effect of a configuration on a number of GPUs, or of a running script."""

from __future__ import annotations

import argparse
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.cli import options
from isobatch.cli.source import TOOL, fields, naming_set
from isobatch.cli.terminal import heard_sigterm, say, show_lines, write_json
from isobatch.doctor.examine import Examination, examine
from isobatch.doctor.record import FileRecord
from isobatch.errors import InputError, missing
from isobatch.files.whole import check_place
from isobatch.planning.plan import plan
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.tools.page import Reading
from isobatch.tools.tool import MAX_LINE_CHARACTERS, Issue
from isobatch.words import printable

if TYPE_CHECKING:
    from isobatch.equivalence.commands.recipe import Mismatch
    from isobatch.equivalence.commands.running import Running
    from isobatch.equivalence.commands.shell_lines import LaunchLine

DESCRIPTION = (
    "Checks another tool's configuration before it runs: the batch, the learning rate's rule, what isobatch "
    "plan refuses, and what the tool does silently. With a training command after --, it starts the command, "
    "ends it before its second optimizer step, and compares what runs with what the command says. Exit "
    "codes: 0 nothing found, or what the file leaves open, 1 something stops the run, changes the training, "
    "is refused by isobatch plan, or differs from the command, 2 cannot be read; of several files, each "
    "examined by itself (with --from together), the highest."
)
EXAMPLES = (
    "isobatch doctor training_args.json --gpus 32",
    "isobatch doctor training_args.json --nodes 4 --gpus-per-node 8 --set effective_batch=64 --json",
    "isobatch doctor --gpus 32 -- bash launch.sh",
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
    "--from FILE": (
        "another file of the same run, compared with each: again for a second",
        {"dest": "source", "action": "append", "default": []},
    ),
    **TOOL,
    "--limit SECONDS": (f"time of a command until its second step (default {LIMIT:.0f})", LIMIT),
    "--start": "of a shell script behind --: start what it launches; else its launcher is recorded, and the "
    "recorded line examined",
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
    args: argparse.Namespace,
    file: str,
    cluster: Cluster | None,
    recipe_fields: Mapping[str, Any],
    *,
    shown: str = "",
) -> int:
    """Prints the findings on one file, by another name if `shown`; 1 where one is more than good to know."""
    tuned_gpus = getattr(args, "tuned_gpus", None)
    with naming_set(recipe_fields):
        examination = examine(file, cluster, tool=args.tool, beside=args.source, **recipe_fields)
        lacks_gpus = examination.tuned is None and examination.reading.fields.get("gpus") is None
        if tuned_gpus is not None and cluster is not None and lacks_gpus:
            own = {"tuned_gpus": tuned_gpus, **recipe_fields}
            examination = examine(file, cluster, tool=args.tool, beside=args.source, **own)
    if args.json:
        write_json({**examination.to_json(), **({"file": shown} if shown else {})})
    else:
        show_lines(examination.text.replace(file, shown) if shown else examination.text)
    return 0 if examination.healthy else 1


def _run_command(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Starts a command and plans its run; 1 if the run differs from the command, or has no plan.

    Of a shell script the launch line is recorded, and examined as a file with that line alone.
    """
    from isobatch.equivalence.commands.recipe import (
        differences,
        rate_difference,
        recipe_of,
        text_of,
        unseen_end,
    )
    from isobatch.equivalence.commands.running import observe
    from isobatch.equivalence.commands.shell_lines import recorded_line, shell_script

    if args.output is not None:
        check_place(args.output)
    script = shell_script(command)
    if script is not None:
        with heard_sigterm():
            line = recorded_line(command, args.limit)
        if not args.start:
            return _examine_line(args, command, script, line)
        command = line.command
        os.chdir(line.folder)
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
    if "lr" not in fields(args) and (difference := rate_difference(running, recipe)) is not None:
        say(f"isobatch doctor: {difference}")
        code = 1
    if (end := unseen_end(running, recipe)) is not None:
        say(f"isobatch doctor: {end}")
    if recipe.duration is None:
        say("isobatch doctor: the run's length was not seen: give it by --set duration=3ep, or 1000st")
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


def _examine_line(args: argparse.Namespace, typed: Sequence[str], script: str, line: LaunchLine) -> int:
    """Examines the recorded launch line of a shell script, and plans from it."""
    from isobatch.tools.read import read_file

    words = shlex.join(line.words)
    say(f"{script}: its launcher was recorded, not started: {printable(words, MAX_LINE_CHARACTERS)}")
    again = f"isobatch doctor --start -- {shlex.join(typed)} starts it on a CPU, up to its second step"
    os.chdir(line.folder)
    with tempfile.TemporaryDirectory(prefix="isobatch-doctor-") as folder:
        file = Path(folder, f"{Path(script).stem}.launch.sh")
        file.write_text(line.text, encoding="utf-8")
        try:
            gpus = read_file(file, args.tool).fields.get("gpus")
            cluster = options.cluster(args, optional=True) or (gpus and Cluster(gpus_per_node=gpus))
            recipe_fields = fields(args)
            tuned = {"tuned_gpus": recipe_fields.pop("gpus")} if "gpus" in recipe_fields else {}
            code = _examine_file(args, str(file), cluster or None, {**recipe_fields, **tuned}, shown=script)
            if args.output is not None:
                Recipe.read(file, tool=args.tool, **fields(args)).save(args.output)
                say(f"the recipe of this line: {args.output}")
        except InputError as error:
            raise InputError(f"{error.message}\n{again}", file=script, field=error.field) from None
    say(again)
    return code


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
