"""`isobatch rules`: what is known of how a learning rate follows the batch."""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    """Registers the command."""
    command = subparsers.add_parser(
        "rules",
        help="the scaling rules, with formula, range and source",
        description="Lists the scaling rules with their formulas, ranges and sources.",
    )
    command.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints them."""
    import json

    from isobatch import _core
    from isobatch.cli._show import show_table

    headers = ("rule", "formula", "holds", "source")
    if args.json:
        print(
            json.dumps(
                [dict(zip(headers, rule, strict=True)) for rule in _core.rules()],
                ensure_ascii=False,
                indent=2,
            )
        )
    else:
        show_table(headers, _core.rules())
        print("\nk = new effective batch / tuned effective batch; auto under policy keep: nothing moves.")
    return 0
