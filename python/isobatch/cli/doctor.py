"""`isobatch doctor`: what a configuration will really do on a given number of GPUs."""

import argparse

from isobatch.cli.options import gpu_count
from isobatch.cli.source import TOOL, fields, naming_set
from isobatch.cli.terminal import show_lines

DESCRIPTION = (
    "Looks at another tool's configuration before it runs: the batch, the rule of the learning rate, and what the tool does"
    " without a word. Exits with 1 where something stops the run or changes the training."
)
EXAMPLES = ("isobatch doctor training_args.json --gpus 32",)


OPTIONS = {
    "file": "another tool's configuration, or a checkpoint folder of transformers' Trainer",
    "--gpus N": (
        "number of GPUs that it is to run on (default: every row of a HyperPod recipe)",
        {"type": gpu_count},
    ),
    **TOOL,
}


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 where one of them stops the run or changes the training."""
    from isobatch.doctor import examine

    given = {("tuned_gpus" if name == "gpus" else name): value for name, value in fields(args).items()}
    with naming_set(given):
        diagnosis = examine(args.file, args.gpus, tool=args.tool, **given)
    show_lines(diagnosis.text)
    return 0 if diagnosis.healthy else 1
