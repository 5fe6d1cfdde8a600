"""`isobatch validate`: a real DDP run that confirms a plan."""

import argparse
import os

from isobatch.errors import missing
from isobatch.files.whole import check_place
from isobatch.validate import __main__ as rank_command

DESCRIPTION = (
    "Runs a timed all-reduce and the plan's training step on this machine's GPUs or CPU, and gives a verdict on the plan. "
    "Exit codes: 0 pass or caution, 1 fail or inconclusive, 2 could not run."
)
EXAMPLES = (
    "isobatch validate plan.json --nproc-per-node 8 -o report.json",
    "isobatch validate plan.json --quick",
)

EVERYDAY = (
    "--output --json --quick --full --workload --device --find-micro-batch --nproc-per-node --nnodes --node-rank --rendezvous "
    "--memory-gib --step-seconds"
)


OPTIONS = {
    "validation": rank_command.add,
    "--nproc-per-node N": ("ranks on this host (default 2)", {"type": int, "default": 2}),
    "--nnodes N": ("hosts (default 1)", {"type": int, "default": 1}),
    "--node-rank I": ("which of the hosts this is, from 0", {"type": int, "default": 0}),
    "--rendezvous HOST:PORT": "host 0, and a free port there; host 0 has the report",
}


def run(args: argparse.Namespace) -> int:
    """Validates a plan."""
    if args.plan is None:
        raise missing("PLAN", "pass a plan's JSON file (isobatch plan -o)")
    from isobatch.validate.ranks.network import environment

    if environment(os.environ) is not None:
        return rank_command.rank(args)
    from isobatch.validate.launching import gc_frozen, launch

    if args.output is not None and args.node_rank == 0:
        check_place(args.output)
    report = launch(
        args.plan,
        args.nproc_per_node,
        options=rank_command.options(args),
        nnodes=args.nnodes,
        node_rank=args.node_rank,
        rendezvous=args.rendezvous,
        _fork=True,  # nothing has run here yet, and the ranks need not import torch again
    )
    if args.node_rank == 0:
        with gc_frozen():
            rank_command.publish(report, args)
    return report.exit_code
