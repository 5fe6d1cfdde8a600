"""The command line. Each command is a file here, which is imported when it is called.

A command has DESCRIPTION, EXAMPLES, OPTIONS and `run(args) -> int`.

Exit codes: 0 done, 1 a negative result, 2 wrong use or unreadable input, 3 a fault of our own.
"""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from isobatch.cli.parser import Parser, coloured, completion
from isobatch.cli.terminal import leave, prepare, say
from isobatch.errors import InputError, unknown
from isobatch.words import nearest, printable

GROUPS = {
    "plan a run": {
        "plan": "plan one recipe on one cluster, also as another tool's file",
        "counts": "list the GPU counts that work; find a batch for the most of them",
        "replan": "move a running job to other hardware or another batch",
        "exec": "start a training command with the plan for the GPUs that there are",
        "store": "run the store where ranks meet that survive the loss of others",
    },
    "plan many": {
        "fleet": "plan every job on every cluster",
        "allocate": "divide a pool of GPUs over jobs",
        "explain": "say what rows of a fleet's plans mean; list the scaling rules",
    },
    "check": {
        "same": "check whether a training script trains the same at another split",
        "doctor": "say what a tool's configuration will really do on a number of GPUs",
        "validate": "confirm a plan by a real DDP run",
        "probe": "measure the learning rate at the planned batch by short trainings",
    },
    "learn": {
        "estimate": "estimate a profile from a data sheet; list published laws",
        "calibrate": "fit a profile to measurements",
    },
    "show": {
        "report": "write plans, counts or a validation as a page, picture or files",
        "schedule": "print or draw a learning-rate schedule",
    },
}
"""The commands, by what a person wants."""
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}

_EXTRAS = {
    **dict.fromkeys(("pyarrow", "rich", "yaml", "shtab"), "fleet"),
    **dict.fromkeys(("torch", "scipy"), "validate"),
    **dict.fromkeys(("altair", "vl_convert", "jinja2"), "report"),
    "ray": "ray",
}
"""The extra that brings a package."""


def parser_of(command: str) -> Parser:
    """Makes the parser of one command; no other command is imported."""
    from isobatch.cli.options import add_options

    module = import_module(f"isobatch.cli.{command}")
    everyday = getattr(module, "EVERYDAY", None)
    parser = Parser(f"isobatch {command}", module.DESCRIPTION, module.EXAMPLES, everyday)
    add_options(parser, module.OPTIONS)
    return parser


def command() -> NoReturn:
    """Runs one command, and ends the process with its exit code."""
    leave(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code says how it ended."""
    words = sys.argv[1:] if argv is None else list(argv)
    program = " ".join(["isobatch", *(word for word in words[:1] if word in COMMANDS)])
    try:
        return _run(words)
    except InputError as error:
        say(f"{program}: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough.
        _drop_stdout()
        return 0
    except Exception as error:
        # torch's exception for a signal while it watches ranks: an end from outside, as of a
        # scheduler, is no fault.
        signalled = getattr(error, "sigval", None)
        return _failed(program, error) if signalled is None else 128 + int(signalled)


def _run(words: list[str]) -> int:
    if sys.stdout is None:
        raise InputError("stdout is closed: send it to a file, or to /dev/null")
    prepare()
    name = words[0] if words else ""
    if name == "help":  # as --help behind the command
        words = [*words[1:2], "--help", *words[2:]]
        name = words[0]
    if name in COMMANDS:
        from isobatch.cli import project

        parser = parser_of(name)
        args = project.read(parser, words[1:])
        try:
            code: int = import_module(f"isobatch.cli.{name}").run(args)
        except InputError as error:
            raise parser.typed(project.placed(error, args)) from None
        finally:
            if defaults := project.note(args):
                say(defaults)
    else:
        code = _top(words)
    sys.stdout.flush()
    return code


def _top(words: list[str]) -> int:
    """Answers words without a command: the list of them, the version, a completion script."""
    if not words:
        print(coloured(_help(), sys.stderr), file=sys.stderr)
        return 2
    if not words[0].startswith("-") and words[0] != "version":
        close = nearest(words[0], COMMANDS)
        does = f" It can {COMMANDS[close]}." if close else ""
        raise InputError(f"{unknown('command', words[0], COMMANDS)}{does}")
    top = Parser("isobatch")
    top.add_argument("-V", "--version", action="store_true")
    top.add_argument("--completion", choices=("bash", "zsh", "tcsh"))
    top.format_help = lambda: coloured(_help(), sys.stdout) + "\n"  # type: ignore[method-assign]
    args = top.read(["--version"] if words[0] == "version" else words)
    if args.completion:
        parsers = {name: (parser_of(name), line) for name, line in COMMANDS.items()}
        print(completion(top, parsers, args.completion))
    else:
        from isobatch._core import __version__

        print(f"isobatch {__version__}")
    return 0


def _help() -> str:
    lines = ["usage: isobatch COMMAND [options]", "", "Tune once, train the same at any GPU count."]
    for title, group in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<10} {line}" for name, line in group.items())]
    return "\n".join([*lines, _BELOW])


_BELOW = """
isobatch COMMAND --help shows its everyday options and examples,
--help all every option. isobatch --completion bash|zsh|tcsh completes them.

exit codes: 0 done; 1 a negative result (no feasible plan, a failed validation);
2 wrong use, a missing extra or unreadable input; 3 a fault of isobatch itself
(ISOBATCH_TRACEBACK=1 shows where)"""


def _failed(program: str, error: Exception) -> int:
    """Reports an unforeseen error: a missing extra, a stdout that is full, or a fault of our own."""
    if isinstance(error, ModuleNotFoundError) and (extra := _EXTRAS.get((error.name or "").split(".")[0])):
        say(f"{program}: {error.name} is not installed: pip install '.[{extra}]'", error=True)
        return 2
    if os.environ.get("ISOBATCH_TRACEBACK") == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, OSError) and error.filename is None:
        _drop_stdout()
        if sys.platform == "win32" and error.errno == errno.EINVAL:
            return 0  # Windows' broken pipe: the reader has seen enough
        say(f"{program}: cannot write to stdout: {error.strerror or error}", error=True)
        return 2
    fault = printable(f"{type(error).__name__}: {error}", 200)
    say(
        f"{program}: a fault of isobatch itself ({fault}). Please report it with the command and what "
        "ISOBATCH_TRACEBACK=1 shows: see CONTRIBUTING.md",
        error=True,
    )
    return 3


def _drop_stdout() -> None:
    """Keeps Python from complaining again when it flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
