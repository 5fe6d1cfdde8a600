"""`isobatch --completion SHELL`: the script by which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse

from isobatch.errors import needs_extra

SHELLS = ("bash", "zsh", "tcsh")


def script(top: argparse.ArgumentParser, shell: str) -> str:
    """The shell's script. Raises InputError without shtab, which comes with the extra `fleet`.

    An argument takes a file where its name says so, or where it is none of the options.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise needs_extra("completion scripts", "fleet") from None

    commands = next(it.choices for it in top._actions if isinstance(it, argparse._SubParsersAction))
    for command in commands.values():
        for argument in command._actions:
            named = (
                argument.metavar if isinstance(argument.metavar, str) else " ".join(argument.metavar or ())
            )
            if not argument.option_strings or any(
                word in named for word in ("FILE", "PATH", "REPORT", ".json")
            ):
                argument.complete = shtab.FILE
    text: str = shtab.complete(top, shell)
    return text
