"""``isobatch elastic``: the batch that works at the most GPU counts."""

import argparse
import json
import sys
from typing import Any


def add(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the parser."""
    parser = subparsers.add_parser(
        "elastic",
        help="the effective batch under a cap that works at the most GPU counts",
        description=__doc__,
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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the batch and its counts; 1 where no batch works at any count."""
    import msgspec

    from isobatch._elastic import elastic

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
        _print_table(zip(found.gpus, found.micro_batch, found.accumulation, strict=True))
    return 0 if found.effective_batch is not None else 1


def gpu_counts(text: str, option: str) -> range | list[int]:
    """``"1..64"`` as a range (both ends in it), ``"8,16,24"`` as a list."""
    first, dots, last = text.partition("..")
    if not dots:
        return _numbers(text, option, int)
    ends = _numbers(f"{first},{last}", option, int)
    return range(ends[0], ends[1] + 1)


def _numbers(text: str, option: str, kind: type) -> list[Any]:
    from isobatch.errors import InputError

    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} is not a list such as 2,4,6", field=option) from None


def _print_table(rows: Any) -> None:
    header = ("GPUs", "micro-batch", "accumulation")
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*header)
        for row in rows:
            table.add_row(*map(str, row))
        Console().print(table)
    else:
        print(*header, sep="\t")
        for row in rows:
            print(*row, sep="\t")
