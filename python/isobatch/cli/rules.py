"""`isobatch rules`: what is known of how a learning rate follows the batch."""

from __future__ import annotations

import argparse
from typing import Any

from isobatch.cli.terminal.messages import write_json
from isobatch.cli.terminal.tables import show_table


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

    headers = ("rule", "formula", "holds", "source")
    if args.json:
        write_json(
            json.dumps(
                [dict(zip(headers, rule, strict=True)) for rule in _core.rules()],
                ensure_ascii=False,
                indent=2,
            )
        )
    else:
        show_table(headers, _core.rules())
        print("\nk = new effective batch / tuned effective batch. Under policy keep, auto changes nothing.")
    return 0
