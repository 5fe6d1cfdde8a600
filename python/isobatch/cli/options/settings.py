"""The settings as options: names, types and help come from `isobatch.planning.settings`."""

from __future__ import annotations

import argparse
from typing import Any, get_args, get_type_hints

from isobatch.errors import InputError
from isobatch.planning.settings import Settings


def _policy(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


def _micro_batch(text: str) -> int:
    """A number, or what a report of the validator has found."""
    if text.isdecimal():
        return int(text)
    from isobatch.validate import Report

    try:
        return Report.load(text).max_micro_batch
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_READ = {"policy": _policy, "max_micro_batch": _micro_batch}
"""How a text is read where it is not simply of the setting's type."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds an option for each setting, and --profile."""
    group = parser.add_argument_group("how to plan")
    for name, hint in get_type_hints(Settings, include_extras=True).items():
        kind, called, what = get_args(hint)
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            group.add_argument(option, action="store_true", default=None, help=what)
            continue
        types = [it for it in (kind, *get_args(kind)) if it in (int, float)]
        read = _READ.get(name) or (types[0] if types else str)
        if name == "max_micro_batch":
            called, what = (
                "N|REPORT",
                f"{what}; or what `isobatch validate --find-micro-batch -o REPORT` found",
            )
        group.add_argument(option, type=read, metavar=called, help=what)
    group.add_argument(
        "--profile",
        action="append",
        metavar="FILE",
        help="what `isobatch calibrate` wrote, for time, memory and cost; repeat it for several GPU types",
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    found = {name: value for name in Settings._fields if (value := getattr(args, name)) is not None}
    if args.profile:
        from isobatch.forecast.profile import Profile

        found["profile"] = [Profile.load(path) for path in args.profile]
    return found
