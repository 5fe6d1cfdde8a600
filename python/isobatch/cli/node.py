"""`isobatch node`: a check of one node before a job."""

import argparse
import os
from pathlib import Path

from isobatch.errors import InputError, unknown
from isobatch.files.whole import check_place

DESCRIPTION = (
    "Checks this node alone, without a plan or other nodes: its GPUs, their errors, a matrix product and an all-reduce. "
    "Exit codes: 0 fit, 1 unfit, 2 could not run."
)
EXAMPLES = (
    "isobatch node --thresholds gpus.toml -o report.json",
    "srun --ntasks-per-node=1 isobatch node --device cuda --failing-nodes failing_nodes.txt",
)


OPTIONS = {
    "--only NAMES": ("checks to make, such as gpu,gpu_errors (default all)", ""),
    "--seconds S": ("time for all checks together (default 60)", 60.0),
    "--device": ("cuda: a node without a GPU is unfit", {"choices": ("auto", "cuda"), "default": "auto"}),
    "--thresholds FILE": (
        "the least that figures may be, by GPU model (.toml, .yaml, .json)",
        {"type": Path},
    ),
    "--baseline REPORT": ("what -o wrote on a good node", {"type": Path}),
    "--failing-nodes FILE": (
        "a file with the unfit nodes, one a line: adds this one, or takes it out",
        {"type": Path},
    ),
    "-o/--output FILE": ("write the report as JSON", {"type": Path}),
    "--json": "print the report as JSON",
}


def run(args: argparse.Namespace) -> int:
    """Checks this node."""
    if os.environ.get("SLURM_LOCALID", "0") != "0" or os.environ.get("LOCAL_RANK", "0") != "0":
        raise InputError("another task checks this node: start one a node, as with srun --ntasks-per-node=1")
    from isobatch.validate.__main__ import publish
    from isobatch.validate.host.node_report import Gates, NodeReport, list_unfit, read_thresholds
    from isobatch.validate.node import CHECKS
    from isobatch.validate.node import run as check

    only = tuple(dict.fromkeys(filter(None, args.only.split(","))))
    if wrong := [name for name in only if name not in CHECKS]:
        raise unknown("check", wrong[0], CHECKS)
    for place in filter(None, (args.output, args.failing_nodes)):
        check_place(place)
    thresholds = {} if args.thresholds is None else read_thresholds(args.thresholds)
    gpus = max(thresholds.pop("host", {}).get("gpus", 0), args.device == "cuda")
    baseline = None if args.baseline is None else NodeReport.load(args.baseline)
    file = args.thresholds and str(args.thresholds)
    try:
        gates = Gates(seconds=args.seconds, gpus=gpus, thresholds=thresholds, file=file, baseline=baseline)
    except InputError as error:
        raise error.at(field="--seconds") from None
    report = check(gates, only or tuple(CHECKS))
    if args.failing_nodes is not None:
        list_unfit(args.failing_nodes, report.node, fit=not report.exit_code)
    publish(report, args)
    return report.exit_code
