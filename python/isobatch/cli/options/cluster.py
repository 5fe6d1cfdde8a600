"""The cluster as options."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli.options.values import count, gpu_count
from isobatch.errors import InputError, missing

PER_NODE = 8
"""GPUs of a node where nothing else is said."""


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Adds them."""
    where = command.add_argument_group("target cluster")
    where.add_argument(
        "--gpus", type=gpu_count, metavar="N", help="number of GPUs: one node, or nodes of --gpus-per-node"
    )
    where.add_argument("--nodes", type=count, metavar="N", help="number of nodes, instead of --gpus")
    where.add_argument(
        "--gpus-per-node", type=count, metavar="N", help=f"GPUs per node (with --nodes {PER_NODE} by default)"
    )
    add_kind(where)


def add_kind(where: Any) -> None:
    """Adds what says more of a cluster than its GPU count."""
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

    if args.gpus is not None and args.nodes is not None:
        raise InputError("--gpus goes without --nodes: give one or the other")
    if args.gpus is not None:
        return in_nodes(args.gpus, args)
    if args.nodes is not None:
        per_node = PER_NODE if args.gpus_per_node is None else args.gpus_per_node
        return Cluster(nodes=args.nodes, gpus_per_node=per_node, **kind(args))
    if (
        optional
        and args.gpus_per_node is None
        and not any(value is not None for value in kind(args).values())
    ):
        return None
    raise missing("cluster", "pass --gpus N, or --nodes N --gpus-per-node M")


def in_nodes(gpus: int, args: argparse.Namespace) -> Any:
    """The Cluster of this many GPUs: in nodes of --gpus-per-node, else one node.

    Raises:
        InputError: they are more than a node and fill no whole nodes.
    """
    from isobatch.recipes.cluster import Cluster

    per_node = min(gpus, args.gpus_per_node or gpus)
    if gpus % per_node:
        below = gpus // per_node * per_node
        raise InputError(
            f"--gpus {gpus:,} fills no whole nodes of --gpus-per-node {per_node:,}: use {below:,} or {below + per_node:,} GPUs, or "
            "another --gpus-per-node"
        )
    return Cluster(nodes=gpus // per_node, gpus_per_node=per_node, **kind(args))


def one_node(most: int, args: argparse.Namespace) -> str | None:
    """What is said of times where a GPU count of more than a usual node was taken for one node; None where it was not."""
    if most <= PER_NODE or args.gpus_per_node is not None:
        return None
    return f"--gpus {most:,} is one node here, so its times have no network between nodes: add --gpus-per-node {PER_NODE} if it has"


def kind(args: argparse.Namespace) -> dict[str, Any]:
    """What they give beside the GPU count."""
    return {
        name: getattr(args, name) for name in ("model_parallel", "gpu", "memory_gib", "price_per_gpu_hour")
    }
