"""The keywords of `ib.plan` as options."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.errors import InputError

_NAMES = (
    "policy",
    "rule",
    "max_micro_batch",
    "max_batch",
    "batch_tolerance",
    "micro_batch_multiple",
    "require_multiple",
    "ragged",
    "uneven",
    "beta_half_life",
    "deadline_hours",
    "budget",
)


def _policy(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _micro_batch(text: str) -> int:
    if text.isdecimal():
        return int(text)
    from isobatch.validate import Report

    try:
        return Report.load(text).max_micro_batch
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds them."""
    group = parser.add_argument_group("how to plan")
    group.add_argument(
        "--policy",
        type=_policy,
        help="keep (default): hold batch and learning rate; grow: hold the samples per replica; goodput: reach the same loss "
        "soonest (needs a profile and a noise scale); or a batch to reach",
    )
    group.add_argument(
        "--rule", help="how the learning rate follows the batch: see `isobatch rules` (default auto)"
    )
    group.add_argument(
        "--max-micro-batch",
        type=_micro_batch,
        metavar="N|REPORT",
        help="samples in a forward pass that fit; or what `isobatch validate --find-micro-batch -o REPORT` has found",
    )
    group.add_argument("--max-batch", type=int, metavar="N", help="no effective batch above it")
    group.add_argument(
        "--batch-tolerance",
        type=float,
        metavar="FRACTION",
        help="let the batch move by it to one that divides",
    )
    group.add_argument(
        "--micro-batch-multiple", type=int, metavar="N", help="preferred divisor of the micro-batch"
    )
    group.add_argument("--require-multiple", action="store_true", default=None, help="demand that divisor")
    group.add_argument(
        "--ragged",
        action="store_true",
        default=None,
        help="allow micro-batches that differ in size (needs loss weights)",
    )
    group.add_argument(
        "--uneven",
        action="store_true",
        default=None,
        help="allow some replicas one more micro-batch (needs loss weights)",
    )
    group.add_argument(
        "--beta-half-life", action="store_true", default=None, help="hold the half-life of beta2 in samples"
    )
    group.add_argument("--deadline-hours", type=float, metavar="H", help="no plan that takes longer")
    group.add_argument("--budget", type=float, metavar="COST", help="no plan that costs more")
    group.add_argument(
        "--profile",
        action="append",
        metavar="FILE",
        help="what `isobatch calibrate` made, for time, memory and cost; several for several GPU types",
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    found = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    if args.profile:
        from isobatch.forecast.profile import Profile

        found["profile"] = [Profile.load(path) for path in args.profile]
    return found
