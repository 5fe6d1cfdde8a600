"""The parser of every command: what it cannot read is an InputError that names what was typed, and the nearest that is known."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from isobatch.cli.options.examples import epilog
from isobatch.errors import InputError, missing, unknown
from isobatch.words import printable

_KINDS = {"int": "a whole number", "float": "a number"}


class _Help(argparse.HelpFormatter):
    """Help whose examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An argument parser without abbreviations, which would change their meaning with the next option, and without the usage in
    front of an error."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(
            **{"formatter_class": _Help, **keywords, "allow_abbrev": False, "exit_on_error": False}
        )

    def format_help(self) -> str:
        """The help, with examples below it."""
        self.epilog = epilog(self.prog.rpartition(" ")[2]) or self.epilog
        return super().format_help()

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The arguments.

        Raises:
            InputError: they cannot be read.
        """
        try:
            args, left = self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            raise self._said(error) from None
        if left:
            raise self._left(args, left[0])
        return args

    def typed(self, args: argparse.Namespace, error: InputError) -> InputError:
        """An error that names the option that was typed, where it would name the keyword that the option stands for."""
        if error.file is not None or error.row is not None or error.field is None:
            return error
        for action in self.commands()[args.command]._actions:
            if action.dest == error.field and action.option_strings:
                return error.at(field=action.option_strings[-1])
        return error

    def error(self, message: str) -> NoReturn:
        """Raises InputError with what argparse says."""
        needed = message.partition("the following arguments are required: ")[2]
        if needed:
            first = needed.split(", ")[0]
            raise missing(first, f"see {self.prog} --help")
        raise InputError(message)

    def commands(self) -> dict[str, argparse.ArgumentParser]:
        """The commands' parsers by name."""
        actions = (
            action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction)
        )
        return dict(next(actions, {}))

    def _said(self, error: argparse.ArgumentError) -> InputError:
        name, message = error.argument_name or "", str(error.message)
        option = name.split("/")[0]
        choice = re.fullmatch(r"invalid choice: (.*) \(choose from (.*)\)", message)
        if choice:
            known = re.findall(r"[\w.+-]+", choice[2])
            typed = _unquoted(choice[1])
            return unknown("command", typed, known) if option == "COMMAND" else unknown(option, typed, known)
        kind = re.fullmatch(r"invalid (\w+) value: (.*)", message)
        if kind:
            got = printable(kind[2], 100)
            return InputError(f"{option} must be {_KINDS.get(kind[1], kind[1])}, got {got}", field=option)
        if message.startswith("expected "):
            return InputError(f"{option} needs {_value(message)}: see {self.prog} --help", field=option)
        return InputError(f"{option} {message}", field=option)

    def _left(self, args: argparse.Namespace, word: str) -> InputError:
        command = self.commands().get(getattr(args, "command", None) or "", self)
        if not word.startswith("-"):
            return InputError(f"unexpected argument {word!r}: see {command.prog} --help")
        options = [option for action in command._actions for option in action.option_strings]
        return unknown("option", word.partition("=")[0], options)


def _unquoted(text: str) -> str:
    return text[1:-1] if text[:1] in ("'", '"') else text


def _value(message: str) -> str:
    count = message.removeprefix("expected ").split()[0]
    return "a value" if count in ("one", "1") else f"{count} values"
