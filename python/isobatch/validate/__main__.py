"""The command line of a validation.

For `isobatch validate`, and for one rank of `torchrun … -m isobatch.validate` or srun. No torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isobatch.errors import InputError, together
from isobatch.validate.ranks import network

if TYPE_CHECKING:
    from isobatch.validate.options import Options
    from isobatch.validate.report import Report

FLAGS = {"memory_limit_gib": "--memory-limit"}
"""Of options that the command line has by another name."""


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a validation, but for its launch."""
    option = parser.add_argument
    option("plan", metavar="PLAN", nargs="?", help="a plan's JSON file (`isobatch plan -o`)")
    option("-o", "--output", metavar="FILE", type=Path, help="write the report as JSON")
    option("--json", action="store_true", help="print the report as JSON")
    extents = parser.add_mutually_exclusive_group()
    extent: dict[str, Any] = {"dest": "extent", "action": "store_const", "default": "usual"}
    few, more = "correctness only, minimal timing (under 20 s)", "more sizes and number formats"
    extents.add_argument("--quick", const="quick", help=few, **extent)
    extents.add_argument("--full", const="full", help=more, **extent)
    names = "mlp (default, a built-in perceptron), or package.module:factory"
    option("--workload", default="mlp", metavar="NAME", help=names)
    size = "size of the built-in workload (default 1e6)"
    option("--parameters", type=float, default=1e6, metavar="N", help=size)
    option("--device", choices=("auto", "cpu", "cuda"), default="auto")
    wire = "compress gradients on the wire"
    option("--hook", choices=("none", "fp16", "bf16"), default="none", help=wire)
    option("--compile", action="store_true", help="torch.compile around DDP")
    option("--channels-last", action="store_true", help="the convolutions' memory format")
    steps = "steps to measure the noise scale over (default 8; 0: not at all)"
    option("--noise-steps", type=int, default=8, metavar="N", help=steps)
    option("--bus-gb-s", type=float, metavar="X", help="expected all-reduce bus bandwidth, GB/s")
    option("--step-seconds", type=float, metavar="S", help="expected time of an optimizer step, seconds")
    option("--memory-gib", type=float, metavar="X", help="expected peak memory of a rank, GiB")
    search = "search for the largest micro-batch that fits"
    option("--find-micro-batch", action="store_true", help=search)
    limit = "memory that a rank may use, GiB (needed by --find-micro-batch on a CPU)"
    option("--memory-limit", dest="memory_limit_gib", type=float, metavar="GIB", help=limit)
    for name, value in (("caution", 0.10), ("fail", 0.25)):
        text = f"relative deviation that is a {'failure' if name == 'fail' else name} (default {value:g})"
        option(f"--{name}", type=float, default=value, metavar="F", help=text)
    phase = "time limit of each phase, seconds (default 60)"
    option("--phase-seconds", type=float, default=60.0, metavar="S", help=phase)


def options(args: argparse.Namespace) -> Options:
    """Returns the given options.

    Raises:
        InputError: some of them cannot be used; all of those are named.
    """
    from isobatch.validate.options import Options

    try:
        values = {name: getattr(args, name) for name in Options.__struct_fields__}
        return Options(**{**values, "parameters": int(args.parameters)})
    except InputError as error:
        # What was typed, not what it is called inside.
        raise together(
            [cause.at(field=_flag(cause.field or "")) for cause in error.causes or (error,)]
        ) from None


def _flag(field: str) -> str:
    return FLAGS.get(field, f"--{field.replace('_', '-')}")


def publish(report: Report, args: argparse.Namespace) -> None:
    """Writes and prints a report as asked."""
    if args.output is not None:
        report.save(args.output)
    if args.json:
        print(report.to_json())
    else:
        report.show()
    sys.stdout.flush()


def rank(args: argparse.Namespace) -> int:
    """Runs this process's part; rank 0 writes and prints the report. Returns the exit code."""
    from isobatch.planning.plan import Plan
    from isobatch.validate.launching import gc_frozen
    from isobatch.validate.worker import run

    with gc_frozen():
        report = run(Plan.load(args.plan), options(args), publish=lambda report: publish(report, args))
    return report.exit_code


def main() -> int:
    """Runs the command line of one rank."""
    parser = argparse.ArgumentParser(prog="python -m isobatch.validate", description=__doc__)
    add(parser)
    args = parser.parse_args()
    if args.plan is None:
        parser.error("the following arguments are required: PLAN")
    try:
        if network.environment(os.environ) is None:
            raise InputError(
                "started neither by torchrun nor by srun: `isobatch validate` starts the ranks itself"
            )
        return rank(args)
    except InputError as error:
        print(f"isobatch validate: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
