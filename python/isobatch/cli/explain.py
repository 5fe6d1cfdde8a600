"""`isobatch explain`: a row of a fleet's plans in plain words, and the scaling rules."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from isobatch.cli.options import DECIMAL
from isobatch.cli.source import is_plan, refuse_recipe
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import show_lines, stdin_as_file, write_json
from isobatch.errors import InputError, missing, unknown
from isobatch.words import counted, few

if TYPE_CHECKING:
    from isobatch.fleet.explain import Inputs

MAX_ROWS = 10
"""Rows that are explained at once."""
MAX_PLACES = 5
"""Rows of one kind of illegal value that are named."""

DESCRIPTION = (
    "Says in words what rows of a table of plans, or a saved plan, mean: how to train there, or why not and "
    "what is nearest."
)
EXAMPLES = (
    "isobatch explain plans.parquet --job resnet50 --gpus 7",
    "isobatch explain plans/ --cluster h100-8",
    "isobatch explain plans.parquet --jobs jobs.csv --illegal",
    "isobatch explain --rules",
)


OPTIONS = {
    "[plans]": "what `isobatch fleet` wrote: a CSV, Parquet or JSON lines file, a folder or a glob; -: "
    "stdin; or a plan that `isobatch plan -o` saved",
    "--job ID": "only this job's rows",
    "--cluster ID": "only rows on this cluster",
    "--gpus N": "only rows on this many GPUs",
    "--jobs FILE": "the jobs that were planned: of a row whose values are illegal, name the field, its "
    "value and what is legal",
    "--clusters FILE": "their clusters likewise (needs --jobs)",
    **DECIMAL,
    "--illegal": "list the illegal values by kind, the most frequent first, with their jobs (needs --jobs)",
    "--rules": "list the scaling rules with their formulas, ranges and sources",
    "--json": "print the rules as JSON",
}


def run(args: argparse.Namespace) -> int:
    """Prints the rows; 1 where all of them are infeasible."""
    if args.rules:
        return _rules(as_json=args.json)
    if args.json:
        raise InputError("--json goes with --rules; rows of a fleet come as JSON from isobatch fleet --json")
    if args.plans is None:
        raise missing("PLANS", "pass what isobatch fleet or isobatch plan -o wrote")
    refuse_recipe(args.plans)
    if is_plan(args.plans):
        return _one(args)
    with stdin_as_file(args, "plans"):
        return _explained(args)


def _rules(*, as_json: bool) -> int:
    """Lists the scaling rules: how a learning rate follows the batch."""
    from isobatch.planning.published import PUBLISHED_RATES
    from isobatch.planning.settings import ScalingRule, rules

    if as_json:
        write_json([each._asdict() for each in rules()])
    else:
        show_table(ScalingRule._fields, rules())
        show_lines(
            "\nk = new effective batch / tuned effective batch. Under policy keep, auto changes nothing.\n\n"
            "Planned by auto over used, from each workload's smallest batch to its larger ones (MLPerf "
            "Training 2.1 to 6.1). Above 1 the plan is too high, as it always was for LoRA, detection and "
            "segmentation.\n"
        )
        rows = []
        for each in PUBLISHED_RATES:
            ends = f"{each.lowest:.2f} to {each.highest:.2f}"
            rows.append((each.family, each.rule, f"{each.pairs}", f"{each.k:g}", ends, f"{each.within_2}"))
        show_table(("family", "rule", "pairs", "k up to", "planned / used", "within 2 ×"), rows)
    return 0


def _one(args: argparse.Namespace) -> int:
    """Explains a plan saved by `isobatch plan -o`."""
    from isobatch.planning.plan import Plan

    for name in ("job", "cluster", "gpus"):
        if getattr(args, name) is not None:
            why = f"--{name} picks rows of a table, and this is one plan"
            raise InputError(why, file=args.plans, field=f"--{name}")
    plan = Plan.load(args.plans)
    show_lines(plan.explain(), plan.status)
    return 1 if plan.status == "infeasible" else 0


def _explained(args: argparse.Namespace) -> int:
    from isobatch.files.read import read_table
    from isobatch.fleet.explain import Inputs, explain

    for name, value in (("--clusters", args.clusters), ("--illegal", args.illegal)):
        if value and args.jobs is None:
            raise InputError(f"{name} needs --jobs FILE, the jobs that were planned")
    table = read_table(args.plans)
    inputs = None if args.jobs is None else Inputs(args.jobs, args.clusters, decimal=args.decimal)
    filters = {"job": args.job, "cluster": args.cluster, "world_size": args.gpus}
    rows = _matching(table, {name: value for name, value in filters.items() if value is not None}, args.plans)
    if args.illegal and inputs is not None:
        _refuse_lacks(table, args)
        return _listed(table, rows, inputs)
    if len(rows) > MAX_ROWS:
        raise InputError(
            f"{len(rows):,} rows match, more than the {MAX_ROWS} that are shown: add --job, --cluster or "
            "--gpus",
            file=args.plans,
        )
    show_lines("\n\n".join(explain(table, row, jobs=inputs) for row in rows))
    return 1 if all(table["status"][row].as_py() == "infeasible" for row in rows) else 0


def _refuse_lacks(table: Any, args: argparse.Namespace) -> None:
    """Refuses plans without a column for --illegal."""
    for name in ("job", *(["cluster"] if args.clusters else []), "reasons"):
        if name not in table.column_names:
            todo = "name it in --columns of isobatch fleet, or leave --columns out"
            why = f"--illegal needs the column {name}, which the plans lack: {todo}"
            raise InputError(why, file=args.plans)


def _listed(table: Any, rows: list[int], inputs: Inputs) -> int:
    """Prints the illegal values by kind, the most frequent first, each with its jobs; 1 if there are any."""
    from isobatch.fleet.explain import is_illegal, kinds_of_faults
    from isobatch.fleet.rows import decimal_hint

    names = [name for name in ("job", "cluster") if name in table.column_names]
    columns = [table[name].to_pylist() for name in names]
    reasons = table["reasons"].to_pylist()
    faults: dict[tuple[str, str], None] = {}  # each once: a job has the same on every cluster
    for row in rows:
        if not is_illegal(reasons[row]):
            continue
        ids = {name: column[row] for name, column in zip(names, columns, strict=True)}
        if ids["job"] in (None, ""):
            why = "the job has no id: each row of the jobs needs one"
            faults[f"row {row + 1:,} of the plans", why] = None
        else:
            faults |= dict.fromkeys(inputs.faults(**ids))
    for text, places in kinds_of_faults(faults):
        show_lines(f"{counted(len(places), 'row')}: {text}{decimal_hint([text])}")
        show_lines(f"  {few(places, MAX_PLACES)}")
    return 1 if faults else 0


def _matching(table: Any, filters: dict[str, Any], file: str) -> list[int]:
    """Finds the rows asked for."""
    rows = list(range(table.num_rows))
    for name, value in filters.items():
        typed = "--gpus" if name == "world_size" else f"--{name}"
        if name not in table.column_names:
            raise InputError(f"has no column {name!r}", file=file, field=typed)
        values = [str(each) for each in table[name].to_pylist()]
        matching = [row for row in rows if values[row] == str(value)]
        if not matching:
            legal = list(dict.fromkeys(values[row] for row in rows))
            raise unknown(name, str(value), legal, field=typed, file=file)
        rows = matching
    return rows
