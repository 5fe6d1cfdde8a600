"""`isobatch fleet`: every job on every cluster."""

import argparse
import json
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from isobatch import words
from isobatch.cli import options, project
from isobatch.cli.tables import rows_to_stdout
from isobatch.cli.terminal import heard_sigterm, progress, say, stdin_as_file
from isobatch.errors import InputError
from isobatch.files.whole import read_bytes
from isobatch.reason import Reason
from isobatch.recipes.cluster import NODE_GPUS

DESCRIPTION = "Plans every job on every cluster. A row that cannot be planned says why and stops no other."
EXAMPLES = (
    "isobatch fleet jobs.csv clusters.csv -o plans.parquet",
    "isobatch fleet jobs.csv --gpus 8,16,64 --columns job,cluster,status,lr",
    "cat jobs.jsonl | isobatch fleet - clusters.csv --json",
    "isobatch fleet jobs/ clusters.csv -o plans/ --policy grow",
)

EVERYDAY = (
    "--gpus --gpus-per-node --model-parallel --memory-gib --price-per-gpu-hour --pairs --columns --policy "
    "--rule --max-micro-batch --batch-tolerance --profile --deadline-hours --select --top --output --json "
    "--strict"
)


OPTIONS = {
    "jobs": (
        "jobs as CSV, Parquet or JSON lines, columns as a Recipe's fields: a file, folder, glob or URL "
        "(s3://…); -: stdin",
        {"type": options.path},
    ),
    "[clusters]": (
        "clusters likewise, columns as a Cluster's fields; left out: each row of the jobs has its own "
        "cluster's",
        {"type": options.path},
    ),
    "--gpus A..B|N,N": "plan each job on these numbers of GPUs, in the place of clusters",
    "--pairs FILE": "plan only these pairs: a table with the columns job, cluster",
    "--columns A,B,…": ("compute and write only these columns of the result", {"type": options.names}),
    **options.DECIMAL,
    "target cluster, with --gpus": {
        "--gpus-per-node N": f"GPUs per node (default: {NODE_GPUS})",
        **options.HARDWARE,
    },
    "how to plan": {"settings": options.add_settings},
    "--select WHICH": ("rows to keep per job: all (default), fastest, cheapest or goodput", "all"),
    "--top N": "keep the best N rows per job (needs --select; default: 1)",
    "output": {
        "-o/--output PATH": "write a .parquet, .csv, .tsv or .jsonl file, or a folder: one Parquet file "
        "for each file of jobs (default: stdout)",
        "--json": "write JSON lines to stdout",
        "--escape-formulas": "in CSV and TSV put ' before texts that begin with = + - @, which "
        "spreadsheets would run",
        "--strict": "exit with 1 if any row is infeasible",
    },
    "output into a folder": {
        "--resume": (
            "leave plans as they are that the same command made of the same jobs (default)",
            {"action": argparse.BooleanOptionalAction, "default": True},
        ),
        "--engine ENGINE": ("local (default), or ray: run on a Ray cluster", "local"),
        "--address ADDRESS": "address of the Ray cluster: auto, or host:port (default: start one on this "
        "machine)",
    },
}


def run(args: argparse.Namespace) -> int:
    """Plans block by block; the summary goes to stderr."""
    if args.output == "-":
        args.output = None
    if args.clusters is not None and args.clusters.isdecimal() and not Path(args.clusters).exists():
        raise InputError(
            f"clusters must be a file, got {args.clusters}: for that number of GPUs, --gpus {args.clusters}"
        )
    if args.gpus is not None and args.clusters is not None:
        raise InputError("--gpus goes without clusters: give one or the other")
    with stdin_as_file(args, "jobs", "clusters", "pairs"):
        _refuse_recipe(args.jobs)
        return _planned(args)


def _refuse_recipe(jobs: str) -> None:
    """Refuses a single recipe and a JSON list, since jobs are a table."""
    if Path(jobs).suffix.lower() not in (".toml", ".yaml", ".yml", ".json"):
        return
    content: object = None
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_bytes(jobs))
    if isinstance(content, list):
        many, how = words.counted(len(content), "value"), "jq -c '.[]' FILE > jobs.jsonl"
        todo = f"give each job a line of its own, in a .jsonl file ({how})"
        raise InputError(f"this is a list of {many}: {todo}", file=jobs)
    todo = "use isobatch plan or isobatch counts, or put its fields into columns"
    raise InputError(f"this is one recipe, not a table of jobs: {todo}", file=jobs)


def _planned(args: argparse.Namespace) -> int:
    from isobatch.fleet.query import query

    names = ("columns", "select", "top", "decimal")
    fleet_query = query(
        _clusters(args), **{name: getattr(args, name) for name in names}, **options.settings(args)
    )
    failed: dict[str, str] = {}
    into_folder = bool(args.output) and _is_folder(args.output)
    try:
        with heard_sigterm():
            if into_folder:
                plans = _into_folder(args, fleet_query)
                summary, failed = plans.summary, plans.failed
            else:
                summary = _into_one(args, fleet_query)
    except (KeyboardInterrupt, SystemExit):
        say(f"isobatch fleet: {_what_is_left(args.output, is_folder=into_folder)}")
        raise
    say(*summary.lines())
    models = dict.fromkeys(profile.model for profile in fleet_query.profiles if profile.model)
    if models and Reason.OTHER_HARDWARE in summary.reasons:
        of = "; ".join(models)
        say(f"--profile is of {of}: jobs of another size or length have no times by it, nor memory")
    if args.profile and (fleet_query.clusters is None or not fleet_query.clusters.has("memory_gib")):
        say(*options.sheet_memory(fleet_query.profiles))
    say(*(f"isobatch fleet: {why}" for why in failed.values()))
    if failed:
        say(f"{words.counted(len(failed), 'file')} failed; fix them and rerun the same command")
        return 2
    return 1 if args.strict and summary.infeasible else 0


def _what_is_left(output: str | None, *, is_folder: bool) -> str:
    """Says how far a run stopped by Ctrl-C or SIGTERM has come."""
    if output is None:
        return "stopped: the rows written so far are incomplete"
    if is_folder:
        return f"stopped. What is done is kept in {output}: rerun the same command to continue"
    return f"stopped: {output} is as it was before; one file is not resumed, a folder is (-o FOLDER)"


def _clusters(args: argparse.Namespace) -> Any:
    """Returns the clusters of the options, or their file; None if each row of the jobs has its own."""
    if args.gpus is None:
        project.refuse_hardware(args, "--gpus", "clusters")
        return args.clusters
    # Clusters are called by their GPU counts. Columns, as there may be millions of rows.
    import numpy as np

    counts, note = options.counts_in_nodes(args)
    each = args.gpus_per_node or NODE_GPUS
    if note:
        say(note)
    if not counts.size:
        raise InputError(f"no count fills whole nodes of {each:,} GPUs", field="--gpus")
    per_node = np.where(counts % each, counts, np.minimum(counts, each))
    sizes = {"cluster": counts, "nodes": counts // per_node, "gpus_per_node": per_node}
    hardware = {name: value for name, value in options.hardware(args).items() if value is not None}
    return sizes | {name: [value] * len(counts) for name, value in hardware.items()}


def _is_folder(output: str) -> bool:
    from isobatch.files.find import location
    from isobatch.files.whole import refuse_special

    fs, place = location(output)
    if fs.type_name == "local":
        refuse_special(place)
    from pyarrow.fs import FileType

    is_named = place.endswith("/") or not PurePosixPath(place).suffix
    return is_named or fs.get_file_info(place).type == FileType.Directory


def _into_folder(args: argparse.Namespace, fleet_query: Any) -> Any:
    from isobatch.fleet.plan_folder import connect
    from isobatch.fleet.plan_folder import run as plan_into

    for name, value in (("--pairs", args.pairs), ("--escape-formulas", args.escape_formulas)):
        if value:
            raise InputError(f"{name} needs a file as the output, not a folder")
    if args.address:
        if args.engine != "ray":
            raise InputError("--address needs --engine ray")
        connect(args.address)
    how = {"engine": args.engine, "resume": args.resume, "note": say}
    with progress("files") as advance:
        return plan_into(fleet_query, args.jobs, args.output, progress=advance, **how)


def _into_one(args: argparse.Namespace, fleet_query: Any) -> Any:
    """Into one file, or to stdout."""
    from isobatch.files.find import find, location, refuse_output
    from isobatch.files.write import table_writer
    from isobatch.fleet.rows import Summary
    from isobatch.fleet.stream import BLOCK_ROWS, plan_blocks, stream

    is_given = {"--engine": args.engine != "local", "--address": args.address is not None}
    is_given["--no-resume"] = not args.resume
    for name, is_set in is_given.items():
        if is_set:
            raise InputError(f"{name} needs a folder as the output: -o FOLDER")
    jobs = find(args.jobs)
    if args.output:
        inputs = (find(place) for place in (args.clusters, args.pairs) if place is not None)
        for files in (jobs, *inputs):
            refuse_output(files, *location(args.output))
    if args.pairs:
        fleets = fleet_query.fleet(args.jobs, pairs=args.pairs).blocks(BLOCK_ROWS)
    else:
        fleets = stream(fleet_query, jobs, note=say)
    summary = Summary()
    escape = {"escape_formulas": args.escape_formulas}
    if args.output:
        sink = table_writer(args.output, fleet_query.metadata, **escape)
    else:
        sink = rows_to_stdout(fleet_query.columns, json=args.json, **escape)
    with sink as write, progress("rows") as advance:
        for fleet, table, *counts in plan_blocks(fleets):
            write(table)
            summary.add(fleet, *counts)
            advance(summary.rows, None)
    return summary
