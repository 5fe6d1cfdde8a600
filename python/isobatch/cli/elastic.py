"""`isobatch elastic`: the batch that works at the most GPU counts."""

import argparse

from isobatch import words
from isobatch.cli.options import numbers
from isobatch.cli.tables import show_table
from isobatch.cli.terminal import say, write_json

DESCRIPTION = "Finds the effective batch under a cap that works at the most GPU counts."
EXAMPLES = ("isobatch elastic --max-batch 1024 --micro-batches 8,12 --gpus 1..64",)


OPTIONS = {
    "--max-batch N": ("largest effective batch to consider", {"required": True}),
    "--micro-batches N,N": ("micro-batches to consider (samples per replica per pass)", {"required": True}),
    "--gpus A..B|N,N": ("GPU counts to consider (default: %(default)s)", "1..64"),
    "--weights W,W": ("how much each GPU count matters, in the order of --gpus", {"type": numbers}),
    "--model-parallel N": ("GPUs per model replica (default: 1)", 1),
    "--gpus-per-node N": "only whole nodes of this size",
    "--prefer-smaller": "of equally good batches take the smallest",
    "--json": "print JSON",
}


def run(args: argparse.Namespace) -> int:
    """Prints the batch and its counts; 1 where no batch works at any count."""
    from isobatch.planning.elastic import elastic
    from isobatch.tools.platforms import torchrun_line

    found = elastic(
        args.gpus,
        max_batch=args.max_batch,
        micro_batches=args.micro_batches,
        model_parallel=args.model_parallel,
        gpus_per_node=args.gpus_per_node,
        prefer_larger=not args.prefer_smaller,
        weights=args.weights,
    )
    if args.json:
        write_json(found)
    elif found.effective_batch is None:
        say("no batch under the cap works at any of these GPU counts")
    else:
        counts = words.counted(len(found.gpus), "GPU count")
        print(f"effective batch {words.count(found.effective_batch)} works at {counts}")
        rows = zip(found.gpus, found.micro_batch, found.accumulation, strict=True)
        show_table(("GPUs", "micro-batch", "accumulation"), [[str(cell) for cell in row] for row in rows])
        print(torchrun_line(found.gpus, args.gpus_per_node or 1, args.model_parallel))
    return 0 if found.effective_batch is not None else 1
