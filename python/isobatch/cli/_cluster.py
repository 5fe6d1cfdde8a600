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
    where.add_argument("--gpu", metavar="NAME", help="the GPU type, which chooses among several profiles")
    where.add_argument("--memory-gib", type=float, metavar="GIB", help="memory of a GPU")
    where.add_argument("--price-per-gpu-hour", type=float, metavar="PRICE", help="for the cost")


def cluster(args: argparse.Namespace, *, optional: bool = False) -> Any:
    """The Cluster that they give; None where it is optional and not given."""
    from isobatch.errors import InputError
    from isobatch.recipes.cluster import Cluster

    if args.gpus is not None and (args.nodes is not None or args.gpus_per_node is not None):
        raise InputError("give the GPUs either by --gpus or by --nodes and --gpus-per-node", field="--gpus")
    if args.gpus is not None:
        return Cluster(nodes=1, gpus_per_node=args.gpus, **kind(args))
    if args.nodes is not None:
        per_node = 8 if args.gpus_per_node is None else args.gpus_per_node
        return Cluster(nodes=args.nodes, gpus_per_node=per_node, **kind(args))
    if (
        optional
        and args.gpus_per_node is None
        and not any(value is not None for value in kind(args).values())
    ):
        return None
    raise InputError("give the GPUs by --gpus, or by --nodes and --gpus-per-node", field="--gpus")


def kind(args: argparse.Namespace) -> dict[str, Any]:
    """What they give beside the GPU count."""
    return {
        name: getattr(args, name) for name in ("model_parallel", "gpu", "memory_gib", "price_per_gpu_hour")
    }
