"""Forked starts: one process imports a script's libraries, and each rank begins as its copy.

Only for a plain `python` or torchrun, on the CPU; wherever anything is odd, a run starts as typed.
"""

import ast
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from isobatch.launch.command_line import TORCHRUN_MODULES, interpreter_of, read_launch

READY = 120.0
"""Seconds for the imports."""


class ForkedStart(msgspec.Struct, frozen=True):
    """A start for a fork: an interpreter's script or module with its arguments, on ranks.

    `ranks`: None where no launcher starts it.
    """

    interpreter: str
    program: tuple[str, ...]
    module: bool
    ranks: int | None

    def environments(self, environment: Mapping[str, str]) -> list[dict[str, str]]:
        """Returns the environment of each rank, with torchrun's variables where it starts them."""
        if self.ranks is None:
            return [dict(environment)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        group = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(self.ranks), "ROLE_WORLD_SIZE": str(self.ranks), "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }  # fmt: skip
        return [
            {**environment, **group, **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))}
            for rank in range(self.ranks)
        ]


def read_start(words: Sequence[str]) -> ForkedStart | None:
    """Reads the words of a start; None where it cannot be a fork."""
    if not sys.platform.startswith("linux"):
        return None
    launch = read_launch(words)
    ranks, options, interpreter = launch.ranks, [*launch.options], ""
    program = [*launch.program]
    if launch.name == "python":
        ranks, options, interpreter = None, [], launch.alone[0]
        if launch.alone[1:] not in ((), ("-u",)):
            return None
    elif launch.name == "torchrun" and launch.head[1:] == ("-m", TORCHRUN_MODULES[0]):
        interpreter = launch.head[0]
    elif launch.name == "torchrun" and len(launch.head) == 1:
        interpreter = interpreter_of(launch.head[0])
    if options == ["--no-python"]:
        options = []
        if program.pop(0) != interpreter:
            return None
        if program[:1] == ["-u"]:
            del program[0]
    if program[:1] == ["-m"]:
        options, program = ["-m"], program[1:]
    path = shutil.which(interpreter) if interpreter else None
    is_file = program[:1] != [] and Path(program[0]).is_file()
    is_file = is_file and (program[0].endswith(".py") or interpreter_of(program[0]) == interpreter)
    if path is None or options not in ([], ["-m"]) or not program or not (options or is_file):
        return None
    return ForkedStart(path, tuple(program), bool(options), ranks)


def read_libraries(script: Path) -> list[str]:
    """Lists the names imported at a script's top as `module:name`, with attributes of modules.

    Nothing where it sets variables of the environment, which a library may read at its import. A module
    beside the script is not listed.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    names: dict[str, None] = {}
    modules: dict[str, str] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names |= dict.fromkeys(f"{alias.name}:" for alias in statement.names)
            modules |= {alias.asname or alias.name: alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names |= dict.fromkeys(f"{statement.module}:{alias.name.strip('*')}" for alias in statement.names)
    for node in ast.walk(tree):
        if _sets_environment(node):
            return []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            names[f"{modules[node.value.id]}:{node.attr}"] = None  # some packages import when they are asked
    beside = {path.stem for path in script.parent.iterdir()}
    return [name for name in names if re.split("[.:]", name)[0] not in beside]


def _sets_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and ast.unparse(node.value).endswith("environ")
    return isinstance(node, ast.Attribute) and (
        node.attr == "putenv"
        or (node.attr not in ("get", "copy", "items") and ast.unparse(node.value).endswith("environ"))
    )


class StartServer:
    """The process to fork: it ends with its session, and its forks with it."""

    def __init__(
        self, server: Path, interpreter: str, environment: Mapping[str, str], modules: Sequence[str]
    ):
        self._lock, self._ended = threading.Lock(), threading.Condition()
        self._codes: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._count, self._is_ready = 0, threading.Event()
        self.odd = ""
        self.process = subprocess.Popen(
            [interpreter, str(server)],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._send({"modules": modules})

    def preload(self, modules: Sequence[str]) -> None:
        """Imports more, before the next start."""
        self._is_ready.clear()
        self._send({"modules": modules})

    def is_ready(self) -> bool:
        """Waits for the imports; False where a fork would be odd."""
        return self._is_ready.wait(READY) and not self.odd

    def run(
        self,
        start: ForkedStart,
        environment: Mapping[str, str],
        output: Path,
        limit: float,
        place: Path | None = None,
    ) -> int | None:
        """Starts ranks and waits for their end; returns the exit code, None where their time was over."""
        with self._lock:
            self._count += 1
            number = self._count
        request = {
            "number": number,
            "ranks": start.environments(environment),
            "program": start.program,
            "module": start.module,
            "output": str(output),
            "place": None if place is None else str(place),
        }
        self._send(request)
        try:
            with self._ended:
                self._ended.wait_for(lambda: number in self._codes or bool(self.odd), limit)
                return self._codes.get(number)
        finally:
            if (pid := self._pids.get(number)) is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, 9)

    def close(self) -> None:
        """Closes its pipes, after its end."""
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _send(self, request: Any) -> None:
        with self._lock, suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            with self._ended:
                if "ready" in answer:
                    self.odd = answer["odd"]
                    self._is_ready.set()
                elif "pid" in answer:
                    self._pids[answer["number"]] = answer["pid"]
                else:
                    self._codes[answer["number"]] = answer["code"]
                self._ended.notify_all()
        with self._ended:
            self.odd = self.odd or "it ended"
            self._is_ready.set()
            self._ended.notify_all()
