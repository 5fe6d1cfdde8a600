"""`isobatch allocate`: a pool of GPUs divided over jobs."""

import argparse
from collections import Counter
from typing import Any

from isobatch import words
from isobatch.cli import options, project
from isobatch.cli.tables import rows_to_stdout
from isobatch.cli.terminal import say, write_json
from isobatch.errors import InputError
from isobatch.recipes.cluster import NODE_GPUS, Cluster

DESCRIPTION = "Divides a pool of GPUs over jobs: who gets how many, on which nodes, and who waits."
EXAMPLES = (
    "isobatch allocate jobs.csv nodes.csv --profile profile.json",
    "isobatch allocate jobs.csv nodes.csv --held held.csv --objective finish -o allocation.csv",
    "isobatch allocate jobs.csv nodes.csv --json | jq .changes",
)
EVERYDAY = (
    "--held --objective --p --policy --rule --max-micro-batch --batch-tolerance --split --profile "
    "--deadline-hours --output --json"
)
_SHOWN = (
    "job", "status", "gpus", "nodes", "micro_batch", "accumulation", "lr", "speedup", "hours_left", "why",
)  # fmt: skip


OPTIONS = {
    "jobs": (
        "a table of jobs (CSV, Parquet, JSON lines): a Recipe's fields, and min_gpus, max_gpus, weight, "
        "profile (a file) …",
        {"type": options.path},
    ),
    "nodes": (
        "a table of nodes: node, gpus, gpu, price_per_gpu_hour …; or a number of GPUs",
        {"type": lambda text: options.count(text) if text.isdecimal() else options.path(text)},
    ),
    "--held FILE": "what each job has now: a table of job, node, gpus",
    "--objective WHICH": ("fair (default), throughput, finish or cost", "fair"),
    **options.DECIMAL,
    "--p P": ("of fair, the exponent of the mean, from -10 to 1 (default: -1)", -1.0),
    "pool, where nodes is a number": {
        "--gpus-per-node N": f"GPUs per node (default: {NODE_GPUS})",
        **options.HARDWARE,
    },
    "how to plan": {"settings": options.add_settings},
    "-o/--output FILE": "write the rows to a .parquet, .csv, .tsv or .jsonl file",
    "--json": "print the whole answer as JSON: rows, value, bound, prices, changes",
}


def run(args: argparse.Namespace) -> int:
    """Prints a row a job; the sum and the changes go to stderr."""
    from isobatch.allocation.allocate import allocate
    from isobatch.files.write import table_writer
    from isobatch.fleet.rows import UNCAPPED

    nodes = _pool(args)
    if args.json and args.output:
        raise InputError(
            "--json prints the whole answer, and --output writes the rows: give one or the other"
        )
    how = {
        "objective": args.objective,
        "held": args.held,
        "p": args.p,
        "decimal": args.decimal,
        **options.settings(args),
    }
    allocation = allocate(args.jobs, nodes, **how)
    if args.json:
        write_json(allocation.to_json())
    elif args.output:
        with table_writer(args.output, {}) as write:
            write(allocation.table)
    else:
        with rows_to_stdout(_SHOWN) as write:
            write(allocation.table)
    idle = allocation.idle_why and f" ({allocation.idle_why})"
    running = words.counted(len(allocation.placement), "job")
    say(f"{running} on {words.counted(allocation.used, 'GPU')}, {allocation.idle:,} idle{idle}")
    status, reasons = (allocation.table[name].to_pylist() for name in ("status", "why"))
    waiting = Counter(why for each, why in zip(status, reasons, strict=True) if each == "waits")
    if waiting:
        every, verb = waiting.total(), "waits" if waiting.total() == 1 else "wait"
        most = words.few((f"{why} ({jobs:,})" for why, jobs in waiting.most_common()), 3)
        say(f"{words.counted(every, 'job')} {verb}: {most}")
    value = words.figure(allocation.value)
    if allocation.objective == "cost":
        value = f"{words.figure(allocation.of_running)} of the jobs that run"
        value += f" ({words.figure(allocation.value)} with a penalty for each that waits)" if waiting else ""
    say(f"{allocation.objective} {value}, at most {words.percent(allocation.gap)} from the best")
    unknown = sum(why.startswith("no profile") for why in reasons)
    if unknown:
        todo = "give --profile FILE or a column profile; isobatch estimate makes one from a data sheet"
        say(f"{words.counted(unknown, 'job')} without a profile cannot run: {todo}")
    if allocation.uncapped:
        say(f"{words.counted(allocation.uncapped, 'job')}: {UNCAPPED}")
    say(*allocation.notes)
    return 0


def _pool(args: argparse.Namespace) -> Any:
    """Returns the Cluster of a number of GPUs, or the path of the table of nodes."""
    if type(args.nodes) is int:
        nodes, per_node = options.nodes_of(args.nodes, args.gpus_per_node, is_timed=True, name="nodes")
        return Cluster(nodes=nodes, gpus_per_node=per_node, **options.hardware(args))
    project.refuse_hardware(args, "a number of GPUs in the place of nodes", "nodes")
    return args.nodes
