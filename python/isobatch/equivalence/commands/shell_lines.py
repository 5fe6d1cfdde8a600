"""The launch line of a shell script, recorded in the place of being started."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath

import msgspec

from isobatch.equivalence.commands.runs import GRACE, RECORDER, TAIL
from isobatch.errors import InputError
from isobatch.system import end_session
from isobatch.words import counted

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
LAUNCHERS = (
    *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "srun", "mpirun", "mpiexec", "composer"),
    *("axolotl", "llamafactory-cli", "llamafactory", "trl", "swift", "tune", "litgpt", "torchx", "ray"),
    *("python", "python3", "sbatch", "qsub", "bsub"),
)
"""Commands that are recorded; Python only where it starts a script."""
_WRAPPERS = ("env", "nohup", "time", "timeout", "nice", "stdbuf", "setsid")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_OPTION = re.compile(r"-\w.*|--\w.*|\d+(\.\d+)?[smhd]?")
"""Options of a wrapper, and their numbers."""
_OWN = re.compile(r"PATH|BASH_ENV|SHLVL|_|PWD|OLDPWD|BASH_FUNC_.*|.*(TOKEN|KEY|SECRET|PASSWORD|PASSWD).*")
"""Variables of the recording and of the shell, and secrets."""


class LaunchLine(msgspec.Struct, frozen=True):
    """A launcher's call.

    Attributes:
        words: with all variables of the script replaced.
        folder: where it was called.
        environment: all of its variables; those that the script set are in `text`.
    """

    words: tuple[str, ...]
    folder: str
    environment: dict[str, str]

    @property
    def variables(self) -> dict[str, str]:
        """Returns the script's own variables."""
        return {
            name: value
            for name, value in self.environment.items()
            if os.environ.get(name) != value and not _OWN.fullmatch(name)
        }

    @property
    def command(self) -> list[str]:
        """Returns the words as a command with its variables."""
        return [*(f"{name}={value}" for name, value in self.variables.items()), *self.words]

    @property
    def text(self) -> str:
        """Writes a shell script of this line alone."""
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items())
        return f"{exports}{shlex.join(self.words)}\n"


def shell_script(command: Sequence[str]) -> str | None:
    """Returns a shell's script, also behind `env` and variables; None for another command.

    >>> shell_script(["bash", "-x", "train.sh", "8"]), shell_script(["bash", "-c", "ls"])
    ('train.sh', None)
    >>> shell_script(["env", "GPUS=8", "bash", "train.sh"]), shell_script(["timeout", "60", "./train.sh"])
    ('train.sh', './train.sh')
    """
    words = list(command)
    while words and (_VARIABLE.match(words[0]) or PurePath(words[0]).name in _WRAPPERS):
        wrapper = PurePath(words.pop(0)).name
        while words and wrapper in ("timeout", "nice", "env") and _OPTION.fullmatch(words[0]):
            words.pop(0)
    if not words:
        return None
    if words[0].endswith((".sh", ".bash")):
        return words[0]
    if PurePath(words[0]).name not in SHELLS:
        return None
    rest = [word for word in words[1:] if not re.fullmatch(r"-[a-bd-z]+|--\w+", word)]
    return rest[0] if rest and not rest[0].startswith("-") else None


def recorded_line(command: Sequence[str], limit: float, ask: str = "isobatch doctor") -> LaunchLine:
    """Runs a shell script with recorded launchers, and returns the training's line; `ask` is the command.

    Raises:
        InputError: none was called, or several that differ.
    """
    with tempfile.TemporaryDirectory(prefix="isobatch-launches-") as name:
        folder = Path(name)
        output, code = _run(command, folder, limit)
        lines = [
            msgspec.json.decode(file.read_bytes(), type=LaunchLine)
            for file in sorted(folder.glob("launch-*.json"))
        ]
    trains = [line for line in lines if _trains(line.words)]
    by_launcher = [line for line in trains if not line.words[0].startswith("python")] or trains
    distinct = {line.words: line for line in by_launcher}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    script = shell_script(command)
    if not distinct:
        ended = f"was ended after {limit:.0f} s (--limit)" if code is None else f"ended with exit code {code}"
        tail = "\n".join(output.splitlines()[-TAIL:])
        raise InputError(
            f"{ended} without starting a training{tail and ': its last lines'}\n{tail}", file=script
        )
    listed = "\n".join(f"  {ask} -- {shlex.join(words)}" for words in distinct)
    text = f"starts {counted(len(distinct), 'training')}: ask about one of them\n{listed}"
    raise InputError(text, file=script)


def launch_words(command: Sequence[str], limit: float, say: Callable[[str], None]) -> Sequence[str]:
    """Returns the launch line of a shell script, or the command itself: of another program, or with braces.

    Raises:
        InputError: no training is started, or several, or in another folder.
    """
    script = shell_script(command)
    if script is None or any(re.search(r"\{\w+\}", word) for word in command):
        return command
    line = recorded_line(command, limit, "isobatch same")
    typed = shlex.join(line.command)
    if Path(line.folder).resolve() != Path.cwd().resolve():
        ask = f"cd {shlex.quote(line.folder)} && isobatch same -- {typed}"
        raise InputError(f"starts its training in another folder: ask there\n  {ask}", file=script)
    say(f"{script} starts: {typed}")
    return line.command


def _trains(words: Sequence[str]) -> bool:
    """Tells whether a call starts a training: a script, a module, or a tool's own command."""
    is_launchers = any(PurePath(word).name in LAUNCHERS[:3] for word in words)
    return is_launchers or any(
        word.endswith((".py", ".sh", ".sbatch")) or word in ("-m", "train", "sft") for word in words
    )


def _run(command: Sequence[str], folder: Path, limit: float) -> tuple[str, int | None]:
    """Runs a command with launchers of `folder` in front of all others: its output, and its exit code."""
    call = f"{shlex.quote(sys.executable)} -IS {shlex.quote(str(RECORDER / 'record_launch.py'))}"
    functions = []
    for name in LAUNCHERS:
        stub = folder / name
        stub.write_text(f'#!/bin/sh\nexec {call} {shlex.quote(str(folder))} {name} "$@"\n')
        stub.chmod(0o700)
        functions.append(f'{name}() {{ {shlex.quote(str(stub))} "$@"; }}\n')
    (folder / "functions.sh").write_text("".join(functions))
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "BASH_ENV": str(folder / "functions.sh"),  # a script may set a PATH of its own
    }
    log = folder / "output.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["env", *command] if _VARIABLE.match(command[0]) else command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit)
        end_session(process, GRACE)
    return log.read_text(encoding="utf-8", errors="replace"), code
