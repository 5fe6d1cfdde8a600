"""The parser of every command: its help, its errors, and its completion in a shell.

What it cannot read is an InputError that names what was typed, and the nearest that is known.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from isobatch.cli.terminal import has_colours, paint, say
from isobatch.errors import InputError, missing, needs_extra, successor_of, together, unknown
from isobatch.words import OURS, nearest, printable

_KINDS = {"int": "a whole number", "float": "a number"}


class _Help(argparse.Action):
    """Prints the everyday options, or with `all` every one, and ends the command."""

    def __call__(self, parser: Any, _namespace: Any, values: Any, _option: str | None = None) -> None:
        parser.shows_all = values == "all"
        parser.print_help()
        parser.exit()


def coloured(text: str, stream: Any) -> str:
    """Paints a help's headings, commands and options where the stream takes colours."""
    if not has_colours(stream):
        return text
    text = re.sub(r"^\S[^\n]*:$", lambda match: paint(match[0], "title"), text, flags=re.MULTILINE)
    text = re.sub(r"^usage:", lambda match: paint(match[0], "title"), text)
    names = r"(?<=^  )(?:-[^\n]*?|[a-z]+)(?=  |$)"
    return re.sub(names, lambda match: paint(match[0], "typed"), text, flags=re.MULTILINE)


def _current(word: str) -> str:
    """Returns a word of the command with the present name of a deprecated option."""
    name, equals, value = word.partition("=")
    return f"{successor_of(name, say) or name}{equals}{value}" if name.startswith("--") else word


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations, since the next option may change one.

    `everyday` are the options that `--help` shows, where there are too many for one look; None: all of them.
    """

    def __init__(
        self, prog: str, description: str = "", examples: Sequence[str] = (), everyday: str | None = None
    ) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            exit_on_error=False,
            add_help=False,
        )
        self.examples, self.shows_all = examples, False
        self.everyday = None if everyday is None else everyday.split()
        text = "show this help" if everyday is None else "show this help; `--help all` shows every option"
        self.add_argument("-h", "--help", action=_Help, nargs="?", metavar="all", help=text)

    def format_help(self) -> str:
        """Writes the help: usage, options, the fields of a recipe, and examples."""
        self.description = textwrap.fill(self.description or "", 78)
        hidden = 0
        if self.everyday is not None and not self.shows_all:
            for action in self._actions:
                if action.option_strings and {*action.option_strings}.isdisjoint(("--help", *self.everyday)):
                    action.help = argparse.SUPPRESS
                    hidden += 1
        self.usage, self.epilog = self._short_usage(), self._below(hidden)
        return coloured(super().format_help(), sys.stdout)

    def _short_usage(self) -> str:
        parts = [self.prog]
        for action in self._actions:
            name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            if action.option_strings:
                parts += [f"{action.option_strings[-1]} {name}"] if action.required else []
            else:
                parts.append({"?": f"[{name}]", "+": f"{name} ..."}.get(str(action.nargs), name))
        command = ["-- COMMAND"] if "COMMAND" in parts else []
        return " ".join([*(part for part in parts if part != "COMMAND"), "[options]", *command])

    def _below(self, hidden: int) -> str:
        lines = [f"{hidden} more options: {self.prog} --help all", ""] if hidden else []
        lines += ["examples:", *(f"  {_continued(line)}" for line in self.examples)]
        options = {option for action in self._actions for option in action.option_strings}
        if "--set" in options:
            title = "fields of a recipe, for its file and --set (docs/planning.md says more):"
            lines += ["", title, *_wrapped(_recipe_fields())]
        if not hidden and "--tool" in options:
            from isobatch.tools.detect import readers, writers

            lines += ["", "tools whose files are read (docs/tools.md says more):", *_wrapped(readers())]
            if "--script" in options:  # --to writes a plan there, and not a table of many counts
                lines += ["", "tools that --to writes files for:", *_wrapped(writers())]
        return "\n".join(lines)

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Reads the arguments; `words` are as typed."""
        words = [*(argv or ())]
        takes_command = any(action.dest == "command" for action in self._actions)
        end = words.index("--") if takes_command and "--" in words else len(words)
        words[:end] = map(_current, words[:end])
        try:
            args, unknown_words = self.parse_known_args(words[:end])
        except argparse.ArgumentError as error:
            raise self._unreadable(error) from None
        if unknown_words and "--" in words and not takes_command:
            raise InputError(
                "it takes no training command: isobatch doctor --gpus N -o recipe.toml -- COMMAND reads "
                "one into a recipe, isobatch exec FILE -- COMMAND starts one with its plan"
            )
        if unknown_words:
            raise self._left_over(unknown_words[0])
        args.words = words
        if words[end:]:  # argparse would look for options in it
            args.command = words[end + 1 :]
        return args

    def typed(self, error: InputError) -> InputError:
        """Names the option as it was typed, in the place of the keyword behind it."""
        if error.file is not None or error.row is not None:
            return error
        if error.causes:
            return together([self.typed(cause) for cause in error.causes])
        for action in self._actions:
            if action.dest == error.field and action.option_strings:
                return error.at(field=action.option_strings[-1])
        return error

    def error(self, message: str) -> NoReturn:
        """Raises argparse's message as an InputError."""
        needed = message.partition("the following arguments are required: ")[2]
        if needed:
            first = needed.split(", ")[0]
            raise missing(first, f"see {self.prog} --help")
        raise InputError(message)

    def _unreadable(self, error: argparse.ArgumentError) -> InputError:
        name, message = error.argument_name or "", str(error.message)
        option = name.split("/")[0]
        choice = re.fullmatch(r"invalid choice: (.*) \(choose from (.*)\)", message)
        if choice:
            return unknown(option, choice[1].strip("'\""), re.findall(r"[\w.+-]+", choice[2]))
        kind = re.fullmatch(r"invalid (\w+) value: (.*)", message)
        if kind:
            value = printable(kind[2], 100)
            return InputError(f"{option} must be {_KINDS.get(kind[1], kind[1])}, got {value}", field=option)
        if message.startswith("expected "):
            count = message.split()[1]
            needed = "a value" if count in ("one", "1") else f"{count} values"
            return InputError(f"{option} needs {needed}: see {self.prog} --help", field=option)
        return InputError(f"{option} {message}", field=option)

    def _left_over(self, word: str) -> InputError:
        if not word.startswith("-"):
            is_count = word[0].isdigit() and any(
                "--gpus" in action.option_strings for action in self._actions
            )
            see = f"use --gpus {word}" if is_count else f"see {self.prog} --help"
            return InputError(f"unexpected argument {word!r}: {see}")
        name = word.partition("=")[0]
        plain = name.lstrip("-").replace("-", "_")
        options = [option for action in self._actions for option in action.option_strings]
        field = plain if plain in _recipe_fields() else OURS.get(plain)
        if "--set" in options and field in _recipe_fields():
            close = nearest(name, options) if plain not in OURS else None  # --batch is no --max-batch
            hint = f"did you mean {close!r}? R" if close else "r"
            return InputError(f"unknown option {name!r}: {hint}ecipe fields go with --set {field}=VALUE")
        if (begun := _GPUS.get(name)) in options:
            return InputError(f"unknown option {name!r}: did you mean {begun!r}?")
        longer = [option for option in options if option.startswith(name)]
        if len(name) > 3 and 0 < len(longer) <= 3:
            return InputError(f"unknown option {name!r}: did you mean {' or '.join(map(repr, longer))}?")
        if nearest(name, options) is None:
            return InputError(f"unknown option {name!r}: {self.prog} --help all lists every option")
        return unknown("option", name, options)


_GPUS = {"-g": "--gpus", "-n": "--nodes"}
"""Short forms that others have."""


def _recipe_fields() -> list[str]:
    from isobatch._core import fields

    return [name for name, record, _ in fields() if record == "recipe"]


def _wrapped(names: Sequence[str]) -> list[str]:
    text = textwrap.wrap(", ".join(names), 76, break_on_hyphens=False, break_long_words=False)
    return [f"  {line}" for line in text]


def _continued(command: str, room: int = 76) -> str:
    """Breaks a command before an option, to fit the line; it can still be copied."""
    cut = command.rfind(" -", 0, room)
    if len(command) <= room + 2 or cut < 0:
        return command
    return f"{command[:cut]} \\\n      {_continued(command[cut + 1 :], room - 4)}"


def completion(
    top: argparse.ArgumentParser, commands: Mapping[str, tuple[argparse.ArgumentParser, str]], shell: str
) -> str:
    """Writes a shell's script to complete commands, options and file names.

    An argument takes a file where its name says so, or where it is none of the options.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise needs_extra("completion scripts", "fleet") from None

    listed = top.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, (parser, line) in commands.items():
        for argument in parser._actions:
            named = str(argument.metavar)
            if not argument.option_strings or any(word in named for word in ("FILE", "PATH", "REPORT")):
                argument.complete = shtab.FILE  # type: ignore[attr-defined]
        listed.add_parser(name, help=line, add_help=False, parents=[parser])
    text: str = shtab.complete(top, shell)
    return text
