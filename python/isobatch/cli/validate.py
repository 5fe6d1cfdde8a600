"""`isobatch validate`: a real DDP run that confirms a plan."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any, get_args

from isobatch.cli.options import size
from isobatch.errors import missing
from isobatch.files.whole import check_json, check_place
from isobatch.validate.options import Device, Hook, Options

if TYPE_CHECKING:
    from isobatch.validate.report import Report

DESCRIPTION = (
    "Runs a timed all-reduce and the plan's training step on this machine's GPUs or CPU, and gives a verdict "
    "on the plan. Exit codes: 0 pass or caution, 1 fail or inconclusive, 2 could not run."
)
EXAMPLES = (
    "isobatch validate plan.json --nproc-per-node 8 -o report.json",
    "isobatch validate plan.json --quick",
)
EVERYDAY = (
    "--output --json --quick --full --workload --device --find-micro-batch --nproc-per-node --nnodes "
    "--node-rank --rendezvous --memory-gib --step-seconds"
)
_USUAL = Options()


def _add_extents(parser: argparse.ArgumentParser) -> None:
    """Adds --quick and --full, one of them at most."""
    extents = parser.add_mutually_exclusive_group()
    few, more = "correctness only, minimal timing (under 20 s)", "more sizes and number formats"
    stored: dict[str, Any] = {"dest": "extent", "action": "store_const", "default": _USUAL.extent}
    extents.add_argument("--quick", const="quick", help=few, **stored)
    extents.add_argument("--full", const="full", help=more, **stored)


OPTIONS = {
    "[plan]": ("a plan's JSON file (`isobatch plan -o`)", {"metavar": "PLAN"}),
    "-o/--output FILE": "write the report as JSON",
    "--json": "print the report as JSON",
    "extents": _add_extents,
    "--workload NAME": (
        "mlp (default, a built-in perceptron), or package.module:factory",
        {"default": _USUAL.workload},
    ),
    "--parameters N": (
        "size of the built-in workload, such as 1e6, the default",
        {"type": size, "default": _USUAL.parameters},
    ),
    "--device": ("", {"choices": get_args(Device), "default": _USUAL.device}),
    "--hook": ("compress gradients on the wire", {"choices": get_args(Hook), "default": _USUAL.hook}),
    "--compile": "torch.compile around DDP",
    "--channels-last": "the convolutions' memory format",
    "--noise-steps N": (
        "steps to measure the noise scale over (default 8; 0: not at all)",
        {"type": int, "default": _USUAL.noise_steps},
    ),
    "--bus-gb-s GB": "expected all-reduce bus bandwidth, GB/s",
    "--step-seconds S": ("expected time of an optimizer step, seconds", {"type": float}),
    "--memory-gib GIB": ("expected peak memory of a rank, GiB", {"type": float}),
    "--find-micro-batch": "search for the largest micro-batch that fits",
    "--memory-limit GIB": (
        "memory that a rank may use, GiB (needed by --find-micro-batch on a CPU)",
        {"type": float, "dest": "memory_limit_gib"},
    ),
    "--caution F": ("relative deviation that is a caution (default 0.1)", _USUAL.caution),
    "--fail F": ("relative deviation that is a failure (default 0.25)", _USUAL.fail),
    "--phase-seconds S": ("time limit of each phase, seconds (default 60)", _USUAL.phase_seconds),
    "--nproc-per-node N": ("ranks on this host (default 2)", {"type": int, "default": 2}),
    "--nnodes N": ("hosts (default 1)", {"type": int, "default": 1}),
    "--node-rank I": ("which of the hosts this is, from 0", {"type": int, "default": 0}),
    "--rendezvous HOST:PORT": "host 0, and a free port there; host 0 has the report",
}


def run(args: argparse.Namespace) -> int:
    """Validates a plan; under torchrun or srun, runs the part of one rank."""
    if args.plan is None:
        raise missing("PLAN", "pass a plan's JSON file (isobatch plan -o)")
    from isobatch.launch.environments import rank_variables
    from isobatch.validate.launching import gc_frozen, launch

    values = {name: getattr(args, name) for name in Options.__struct_fields__}
    options = Options(**values)
    if rank_variables(os.environ) is not None:
        return _run_rank(args, options)
    if args.output is not None and args.node_rank == 0:
        check_json(args.output)
        check_place(args.output)
    report = launch(
        args.plan,
        args.nproc_per_node,
        options=options,
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        rendezvous=args.rendezvous,
        _fork=True,  # nothing has run here yet, and the ranks need not import torch again
    )
    if args.node_rank == 0:
        with gc_frozen():
            _publish(report, args)
    return report.exit_code


def _run_rank(args: argparse.Namespace, options: Options) -> int:
    """Runs this process's part of a validation; rank 0 writes and prints the report."""
    from isobatch.planning.plan import Plan
    from isobatch.validate.launching import gc_frozen
    from isobatch.validate.worker import run as run_worker

    with gc_frozen():
        report = run_worker(Plan.load(args.plan), options, publish=lambda report: _publish(report, args))
    return report.exit_code


def _publish(report: Report, args: argparse.Namespace) -> None:
    """Writes and prints a report as the arguments say."""
    if args.output is not None:
        report.save(args.output)
    if args.json:
        print(report.to_json())
    else:
        report.show()
    sys.stdout.flush()
