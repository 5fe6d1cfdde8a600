"""The command line. A command is a file here, with `add(subparsers)` and `run(args) -> int`.

Exit codes: 0 done, 1 a negative result, 2 wrong use or unreadable input, 3 a fault of our own.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from isobatch.cli.options.completion import SHELLS, script
from isobatch.cli.options.parsing import Parser
from isobatch.cli.terminal.messages import prepare, say
from isobatch.errors import InputError
from isobatch.words import printable

_ORDER = [
    "plan",
    "fleet",
    "sweep",
    "explain",
    "estimate",
    "elastic",
    "replan",
    "schedule",
    "rules",
    "laws",
    "validate",
    "probe",
    "calibrate",
    "doctor",
    "export",
    "report",
]
"""How the commands are listed; one that is not named comes last."""

_EXTRAS = {
    "pyarrow": "fleet",
    "rich": "fleet",
    "yaml": "fleet",
    "shtab": "fleet",
    "torch": "validate",
    "scipy": "validate",
    "ray": "ray",
    "altair": "report",
    "vl_convert": "report",
    "jinja2": "report",
}
"""Which extra brings a package."""


def commands() -> list[str]:
    """The names of the commands: the files of this folder."""
    found = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    return sorted(found, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="isobatch",
        description="Tune once, train the same at any GPU count.",
        epilog="exit codes: 0 done; 1 a negative result (no feasible plan, or a failed validation); 2 wrong use, a missing extra, "
        "or unreadable input; 3 a fault of isobatch itself (ISOBATCH_TRACEBACK=1 shows where)",
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    top.add_argument(
        "--completion",
        choices=SHELLS,
        metavar="SHELL",
        help="print a completion script for bash, zsh or tcsh and exit",
    )
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name in commands():
        import_module(f"isobatch.cli.{name}").add(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code says how it ended."""
    words = sys.argv[1:] if argv is None else list(argv)
    program = " ".join(["isobatch", *(word for word in words[:1] if word in commands())])
    try:
        return _run(words)
    except InputError as error:
        say(f"{program}: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough.
        _drop_stdout()
        return 0
    except Exception as error:
        # What torch makes of a signal while it watches ranks: an end from outside, as of a scheduler, is no fault.
        signalled = getattr(error, "sigval", None)
        return _failed(program, error) if signalled is None else 128 + int(signalled)


def _run(words: Sequence[str]) -> int:
    if sys.stdout is None:
        raise InputError("stdout is closed: send it to a file, or to /dev/null")
    prepare()
    top = parser()
    args = top.read(words)
    code = 0
    if args.version:
        from isobatch._core import __version__

        print(f"isobatch {__version__}")
    elif args.completion:
        print(script(top, args.completion))
    elif args.command:
        try:
            code = import_module(f"isobatch.cli.{args.command}").run(args)
        except InputError as error:
            raise top.typed(args, error) from None
    else:
        top.print_usage(sys.stderr)
        return 2
    sys.stdout.flush()
    return code


def _failed(program: str, error: Exception) -> int:
    """What no command has foreseen: a package that an extra brings, a stdout that takes no more, or a fault of our own."""
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").split(".")[0])):
        say(f"{program}: {error.name} is not installed: pip install 'isobatch[{extra}]'")
        return 2
    if os.environ.get("ISOBATCH_TRACEBACK") == "1":
        traceback.print_exception(error)
    if isinstance(error, OSError) and error.filename is None:
        _drop_stdout()
        say(f"{program}: cannot write to stdout: {error.strerror or error}")
        return 2
    what = printable(f"{type(error).__name__}: {error}", 200)
    say(
        f"{program}: a fault of isobatch itself ({what}). Please report it with the command and what "
        "ISOBATCH_TRACEBACK=1 shows: see CONTRIBUTING.md"
    )
    return 3


def _drop_stdout() -> None:
    """Python would complain again when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
