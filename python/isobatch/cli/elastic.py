"""`isobatch elastic`: the batch that works at the most GPU counts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from isobatch.cli._show import show_table
from isobatch.errors import InputError
from isobatch.words import few


def add(subparsers: Any) -> None:
    """Registers the command."""
    parser = subparsers.add_parser(
        "elastic",
        help="the effective batch under a cap that works at the most GPU counts",
        description="Finds the effective batch under a cap that works at the most GPU counts.",
    )
    parser.add_argument(
        "--max-batch", type=int, required=True, metavar="N", help="no effective batch above this"
    )
    parser.add_argument(
        "--micro-batches", required=True, metavar="N,N", help="samples per replica per pass that are allowed"
    )
    parser.add_argument(
        "--gpus", default="1..64", metavar="A..B|N,N", help="the GPU counts to serve (default: %(default)s)"
    )
    parser.add_argument(
        "--weights", metavar="W,W", help="how much each count matters, in the order of --gpus"
    )
    parser.add_argument(
        "--model-parallel", type=int, default=1, metavar="N", help="GPUs that hold one replica"
    )
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="whole nodes of this size only")
    parser.add_argument("--prefer-smaller", action="store_true", help="the smallest of equally good batches")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the batch and its counts; 1 where no batch works at any count."""
    import msgspec

    from isobatch.planning.elastic import elastic

    found = elastic(
        gpu_counts(args.gpus, "--gpus"),
        max_batch=args.max_batch,
        micro_batches=_numbers(args.micro_batches, "--micro-batches", int),
        model_parallel=args.model_parallel,
        gpus_per_node=args.gpus_per_node,
        prefer_larger=not args.prefer_smaller,
        weights=None if args.weights is None else _numbers(args.weights, "--weights", float),
    )
    if args.json:
        print(json.dumps(msgspec.to_builtins(found)))
    elif found.effective_batch is None:
        print("no batch under the cap works at any of these GPU counts", file=sys.stderr)
    else:
        print(f"effective batch {found.effective_batch}, works at {len(found.gpus)} GPU counts")
        rows = zip(found.gpus, found.micro_batch, found.accumulation, strict=True)
        show_table(("GPUs", "micro-batch", "accumulation"), [[str(cell) for cell in row] for row in rows])
        print(torchrun_line(found.gpus, args.gpus_per_node or 1))
    return 0 if found.effective_batch is not None else 1


def torchrun_line(gpus: Sequence[int], per_node: int) -> str:
    """torchrun's flags for a run that lives on these GPU counts, and what happens at the counts between that do not divide.

    >>> torchrun_line((8, 16, 32), per_node=8)
    'torchrun --nnodes 1:4 --nproc-per-node 8 (3 nodes do not divide it: there ElasticRun needs uneven=True)'
    """
    nodes = sorted(count // per_node for count in gpus)
    line = f"torchrun --nnodes {nodes[0]}:{nodes[-1]} --nproc-per-node {per_node}"
    between = [str(count) for count in range(nodes[0], nodes[-1]) if count not in nodes]
    if not between:
        return line
    return f"{line} ({few(between, 8)} nodes do not divide it: there ElasticRun needs uneven=True)"


def gpu_counts(text: str, option: str) -> range | list[int]:
    """``"1..64"`` as a range (both ends in it), ``"8,16,24"`` as a list."""
    first, dots, last = text.partition("..")
    if not dots:
        return _numbers(text, option, int)
    ends = _numbers(f"{first},{last}", option, int)
    return range(ends[0], ends[1] + 1)


def _numbers(text: str, option: str, kind: type) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is not a list such as 2,4,6", field=option) from None
