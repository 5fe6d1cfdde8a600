"""The command line. A command is a module with `add(subparsers)` and `run(args) -> int`.

Exit codes: 0 done, 1 an honest finding, 2 wrong use or unreadable input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from isobatch.cli.completion import SHELLS, script
from isobatch.errors import InputError

COMMANDS = (
    "plan",
    "export",
    "doctor",
    "fleet",
    "elastic",
    "replan",
    "rules",
    "schedule",
    "validate",
    "calibrate",
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="isobatch",
        description="Tune once, train the same at any GPU count.",
        epilog="exit codes: 0 done, 1 an honest finding (no plan, a failed verdict), 2 wrong use or unreadable input",
    )
    top.add_argument("--version", action="store_true", help="print the version and stop")
    top.add_argument(
        "--completion",
        choices=SHELLS,
        metavar="SHELL",
        help="print a shell's completion script (bash, zsh, tcsh) and stop",
    )
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND")
    for name in COMMANDS:
        command = import_module(f"isobatch.cli.{name}")
        command.add(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command."""
    top = parser()
    args = top.parse_args(argv)
    if args.version:
        from isobatch._core import __version__

        print(f"isobatch {__version__}")
        return 0
    if not (args.command or args.completion):
        top.print_usage(sys.stderr)
        return 2
    try:
        if args.completion:
            print(script(top, args.completion))
            return 0
        code: int = import_module(f"isobatch.cli.{args.command}").run(args)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"isobatch {args.command or ''}".rstrip() + f": {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
