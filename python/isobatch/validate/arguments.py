"""The command line's options: one list for `isobatch validate` and `python -m isobatch.validate`. No torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isobatch.validate.options import Options
    from isobatch.validate.report.document import Report


def add(parser: argparse.ArgumentParser) -> None:
    """The options of a validation that do not concern its launch."""
    parser.add_argument("plan", metavar="PLAN", nargs="?", help="a plan's JSON file (`isobatch plan -o`)")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the report as JSON")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="correctness only, minimal timing (under 20 s)")
    extent.add_argument(
        "--full", action="store_true", help="more sizes and number formats, and double precision"
    )
    parser.add_argument(
        "--workload",
        default="mlp",
        metavar="NAME",
        help="mlp (default), convnet, transformer, or package.module:factory",
    )
    parser.add_argument(
        "--parameters", type=float, default=1e6, metavar="N", help="size of a built-in workload (default 1e6)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--hook", choices=("none", "fp16", "bf16"), default="none", help="compress gradients on the wire"
    )
    parser.add_argument("--compile", action="store_true", help="torch.compile around DDP")
    parser.add_argument("--channels-last", action="store_true", help="the convolutions' memory format")
    parser.add_argument(
        "--noise-steps",
        type=int,
        default=8,
        metavar="N",
        help="steps to measure the noise scale over (default 8; 0: not at all)",
    )
    parser.add_argument(
        "--soak",
        type=float,
        default=0.0,
        metavar="MINUTES",
        help="repeat the plan's step for so long: does it slow down, and does it give the same bits?",
    )
    _add_limits(parser)


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """What is expected, and how far off is too far."""
    parser.add_argument("--bus-gb-s", type=float, metavar="X", help="expected all-reduce bus bandwidth, GB/s")
    parser.add_argument(
        "--step-seconds", type=float, metavar="S", help="expected time of an optimizer step, seconds"
    )
    parser.add_argument("--memory-gib", type=float, metavar="X", help="expected peak memory of a rank, GiB")
    parser.add_argument(
        "--find-micro-batch", action="store_true", help="search for the largest micro-batch that fits"
    )
    parser.add_argument(
        "--memory-limit",
        type=float,
        metavar="GIB",
        help="memory that a rank may use, GiB (needed by --find-micro-batch on a CPU)",
    )
    parser.add_argument(
        "--caution",
        type=float,
        default=0.10,
        metavar="F",
        help="relative deviation that is a caution (default 0.1)",
    )
    parser.add_argument(
        "--fail",
        type=float,
        default=0.25,
        metavar="F",
        help="relative deviation that is a failure (default 0.25)",
    )
    parser.add_argument(
        "--phase-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit of each phase, seconds (default 60)",
    )


def options(args: argparse.Namespace) -> Options:
    """The options that were given.

    Raises:
        InputError: some of them cannot be used; all of those are named.
    """
    from isobatch.errors import InputError, together

    try:
        return _options(args)
    except InputError as error:
        # What was typed, not what it is called inside.
        raise together([one.at(field=_flag(one.field)) for one in error.causes or (error,)]) from None


def _flag(field: str | None) -> str:
    return {"memory_limit_gib": "--memory-limit", "soak_minutes": "--soak"}.get(
        field or "", f"--{(field or '').replace('_', '-')}"
    )


def _options(args: argparse.Namespace) -> Options:
    from isobatch.validate.options import Options

    return Options(
        extent="quick" if args.quick else "full" if args.full else "usual",
        workload=args.workload,
        parameters=int(args.parameters),
        device=args.device,
        compile=args.compile,
        channels_last=args.channels_last,
        hook=args.hook,
        noise_steps=args.noise_steps,
        bus_gb_s=args.bus_gb_s,
        step_seconds=args.step_seconds,
        memory_gib=args.memory_gib,
        find_micro_batch=args.find_micro_batch,
        memory_limit_gib=args.memory_limit,
        soak_minutes=args.soak,
        caution=args.caution,
        fail=args.fail,
        phase_seconds=args.phase_seconds,
    )


def publish(report: Report, args: argparse.Namespace) -> None:
    """Writes and prints a report as asked."""
    if args.output is not None:
        report.save(args.output)
    if args.json:
        print(report.to_json())
    else:
        report.show()
    sys.stdout.flush()
