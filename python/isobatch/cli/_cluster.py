"""The cluster as options."""

from __future__ import annotations

import argparse
from typing import Any


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Adds them."""
    where = command.add_argument_group("where it shall run")
    where.add_argument("--gpus", type=int, metavar="N", help="so many GPUs")
    where.add_argument("--nodes", type=int, metavar="N", help="or: nodes")
    where.add_argument("--gpus-per-node", type=int, metavar="N", help="each with so many GPUs (default 8)")
    where.add_argument(
        "--model-parallel", type=int, metavar="N", help="GPUs that hold one replica (default the recipe's)"
    )


def cluster(args: argparse.Namespace, *, optional: bool = False) -> Any:
    """The Cluster that they give; None where it is optional and not given."""
    from isobatch.errors import InputError
    from isobatch.recipe import Cluster

    if args.gpus is not None and (args.nodes is not None or args.gpus_per_node is not None):
        raise InputError("give the GPUs either by --gpus or by --nodes and --gpus-per-node", field="--gpus")
    if args.gpus is not None:
        return Cluster(nodes=1, gpus_per_node=args.gpus, model_parallel=args.model_parallel)
    if args.nodes is not None:
        per_node = 8 if args.gpus_per_node is None else args.gpus_per_node
        return Cluster(nodes=args.nodes, gpus_per_node=per_node, model_parallel=args.model_parallel)
    if optional and args.gpus_per_node is None and args.model_parallel is None:
        return None
    raise InputError("give the GPUs by --gpus, or by --nodes and --gpus-per-node", field="--gpus")
