"""The commands started by a script."""

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from isobatch.tools.shells.state import Shell

LAUNCHERS = ("NPROC_PER_NODE", "NNODES")
"""Variables by which a command, ms-swift's, starts processes of its own."""
DEVICES = "CUDA_VISIBLE_DEVICES"

_SHELLS = ("bash", "sh", "zsh", "dash")


class Launch(NamedTuple):
    """A command started by the script.

    Attributes:
        line: in the script, of the outermost command.
        words: it and its arguments; what is not known in them is a mark.
        when: the conditions under which it runs that only the run knows.
        environment: the variables of LAUNCHERS and DEVICES that it sees.
    """

    line: int
    words: tuple[str, ...]
    when: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def inner_script(words: Sequence[str], document: str | None) -> tuple[str, tuple[str, ...]]:
    """The script inside of `bash -c TEXT`, or a here-document of `bash` or `sbatch`; and its arguments."""
    for place, word in enumerate(words[:-2]):
        option = words[place + 1]
        if PurePosixPath(word).name in _SHELLS and option[:1] == "-" != option[1:2] and "c" in option:
            return words[place + 2], tuple(words[place + 4 :])
    if document and (words[0] == "sbatch" or PurePosixPath(words[-1]).name in _SHELLS):
        return document, ()
    return "", ()


def launcher_variables(shell: Shell) -> tuple[tuple[str, str], ...]:
    """Lists LAUNCHERS and DEVICES as a command sees them, with their values."""
    names = [name for name in (*LAUNCHERS, DEVICES) if name in shell.exported]
    values = [(name, shell.variables.get(name)) for name in names]
    return tuple((name, value) for name, value in values if isinstance(value, str))
