"""The cluster as options."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli.options.values import count
from isobatch.errors import InputError, missing


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Adds them."""
    where = command.add_argument_group("target cluster")
    where.add_argument("--gpus", type=count, metavar="N", help="number of GPUs")
    where.add_argument("--nodes", type=count, metavar="N", help="number of nodes, instead of --gpus")
    where.add_argument("--gpus-per-node", type=count, metavar="N", help="GPUs per node (default: 8)")
    where.add_argument(
        "--model-parallel", type=count, metavar="N", help="GPUs per model replica (default: as the recipe)"
    )
    where.add_argument("--gpu", metavar="NAME", help="GPU type; selects one of several profiles")
    where.add_argument("--memory-gib", type=float, metavar="GIB", help="memory of one GPU")
    where.add_argument(
        "--price-per-gpu-hour", type=float, metavar="PRICE", help="price of a GPU-hour, for the cost"
    )


def cluster(args: argparse.Namespace, *, optional: bool = False) -> Any:
    """The Cluster that they give; None where it is optional and not given."""
    from isobatch.recipes.cluster import Cluster

    if args.gpus is not None and (args.nodes is not None or args.gpus_per_node is not None):
        raise InputError("--gpus goes without --nodes and --gpus-per-node: give one or the other")
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
    raise missing("cluster", "pass --gpus N, or --nodes N --gpus-per-node M")


def kind(args: argparse.Namespace) -> dict[str, Any]:
    """What they give beside the GPU count."""
    return {
        name: getattr(args, name) for name in ("model_parallel", "gpu", "memory_gib", "price_per_gpu_hour")
    }
