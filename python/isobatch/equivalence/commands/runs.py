"""Starts the command at a split with the recorder, and ends every process it started."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.commands.forks import StartServer, read_libraries, read_start
from isobatch.equivalence.records import Recording, read_recording
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.system import end_session
from isobatch.words import counted

RECORDER = Path(__file__).parents[1] / "recorder"
BUCKETS = 64
"""Buckets of a tensor's sketch."""
GRACE = 5.0
"""Seconds for a launcher to end its workers."""
TAIL = 12
"""Lines of a run's output that an error shows."""

_IN_USE = re.compile("address already in use|EADDRINUSE", re.IGNORECASE)
TIME_WAIT = 60.0
"""Seconds that Linux keeps a port from the next process, after a connection was closed on its side."""
CHOSEN = 32768
"""First of the ports that Linux chooses itself, for outgoing connections."""
_OF_TORCHRUN = re.compile(r"^[EW]\d{4} .*(failed \(exitcode|closing signal)")

QUIET = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "SWANLAB_MODE": "disabled",
}
"""The environment of each run: one thread a rank, eager kernels, no logger that writes elsewhere."""


_RUNNING: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
"""By process id, the runs that are not over, each with its folder."""


class Recorded(msgspec.Struct, frozen=True):
    """Settings of the recorder, passed in ISOBATCH_SAME."""

    folder: str
    steps: int
    buckets: int = BUCKETS
    each_pass: bool = False
    alike: bool = False
    freeze: bool = False
    as_is: bool = False
    describe: bool = False
    bits: bool = False
    shake: bool = False
    singles: bool = False
    still: int = 0
    entries: bool = False
    weights: str = ""
    rows: dict[str, Any] | None = None
    rollouts: str = ""
    split: Split | None = None
    sets: tuple[str, ...] = ()
    loader: dict[str, Any] | None = None
    flags: dict[str, str] = {}
    look: int = 0
    details: bool = False
    untouched: bool = False
    dropout: bool = True
    seed: int = 0
    watched: str = ""
    stop: int = 0


class SplitRun(msgspec.Struct, frozen=True):
    """A finished run."""

    split: Split
    recording: Recording | None
    """None where no step was recorded."""
    code: int | None
    """Of its exit; None where its time was over."""
    seconds: float
    output: str
    """Its last lines."""
    left_out: str = ""
    """Why it was not started."""
    steps: int = 0
    """Taken before its time was over."""

    @property
    def failed(self) -> bool:
        """Whether it recorded nothing, or died."""
        return self.recording is None or bool(self.code)

    @property
    def reason(self) -> str:
        """Says why no step was recorded."""
        if self.left_out:
            return self.left_out
        if self.code is None:
            steps = counted(self.steps, "optimizer step") if self.steps else "no optimizer step"
            return f"took {steps} within {self.seconds:.0f} s (--limit)"
        return f"ended with exit code {self.code} before an optimizer of torch took a step"

    def no_step(self, command: str) -> InputError:
        """Makes the error of a run without a step."""
        return InputError(f"{command} {self.reason}:\n{self.output or '(it printed nothing)'}")


def start_run(
    words: Sequence[str],
    environment: Mapping[str, str],
    settings: Recorded,
    split: Split,
    limit: float,
    server: StartServer | None = None,
    place: Path | None = None,
) -> SplitRun:
    """Runs a command until its steps are recorded, it ends, or its time is over; no process stays.

    `environment` has variables beside those of this process; `limit` is in seconds; `server` forks the start
    where that can be done; `place` is the working folder, by default this process's. A run that finds its
    port in TIME_WAIT, as an earlier one left it, is started once more when it is free.
    """
    line = words, environment, settings, split, limit, server, place
    run = _start_once(*line)
    if run.recording is None and _IN_USE.search(run.output) and _wait_for_ports():
        run = _start_once(*line)
    return run


def _start_once(
    words: Sequence[str],
    environment: Mapping[str, str],
    settings: Recorded,
    split: Split,
    limit: float,
    server: StartServer | None,
    place: Path | None,
) -> SplitRun:
    folder = Path(settings.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    full = _environment(environment, settings)
    began = time.monotonic()
    start = None if server is None else read_start(words)
    if server is not None and start is not None and server.is_ready():
        code = server.run(start, full, folder / "output.txt", limit, place)
        run = _read_run(folder, split, settings, code, time.monotonic() - began)
        if run.recording is not None or code is None:
            return run
        shutil.rmtree(folder)  # being a fork may be what fails: as typed it says
        folder.mkdir()
    with (folder / "output.txt").open("wb") as output:
        try:
            process = subprocess.Popen(
                list(words),
                env=full,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise InputError(f"{words[0]}: {(error.strerror or str(error)).lower()}") from None
        _RUNNING[process.pid] = process, folder
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_processes(process, folder)
            _RUNNING.pop(process.pid, None)
    return _read_run(folder, split, settings, code, time.monotonic() - began)


def start_server(
    words: Sequence[str], environment: Mapping[str, str], settings: Recorded, modules: Sequence[str] = ()
) -> StartServer | None:
    """Starts the process for later forks; None where none can be a fork.

    `modules` are to be imported, by default those of the script's text.
    """
    start = read_start(words)
    if start is None:
        return None
    modules = modules or ([] if start.module else read_libraries(Path(start.program[0])))
    if not modules:
        return None
    folder = Path(settings.folder).with_name("server")
    full = _environment(environment, msgspec.structs.replace(settings, folder=str(folder)))
    server = StartServer(RECORDER / "start_server.py", start.interpreter, full, modules)
    _RUNNING[server.process.pid] = server.process, folder
    return server


def read_modules(settings: Recorded) -> list[str]:
    """Reads the libraries' modules imported by a run; nothing where it did not come to its end."""
    path = Path(settings.folder) / "modules.json"
    return json.loads(path.read_text()) if path.exists() else []


def end_server(server: StartServer) -> None:
    """Ends the process for forks, and its forks."""
    process, folder = _RUNNING.pop(server.process.pid)
    _end_processes(process, folder)
    server.close()


def run_both(first: Callable[[], SplitRun], second: Callable[[], SplitRun]) -> list[SplitRun]:
    """Makes two runs at once; a signal or an error ends every run, as the pool waits for its own.

    One that fails is made once more alone: both may want the same port, lock or folder.
    """
    starts = first, second
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(start) for start in starts]
        try:
            runs = [future.result() for future in futures]
        except BaseException:
            end_runs()
            raise
    return [start() if run.failed else run for start, run in zip(starts, runs, strict=True)]


class Starter:
    """Starts the runs of one question: as forks of one process, where they can be.

    The process imports what the script's text names, then what the first run imported besides.
    """

    def __init__(self, limit: float, device: str) -> None:
        self.limit, self.forks = limit, device == "cpu"
        self._server: StartServer | None = None
        self._is_first = True
        self._lock = threading.Lock()

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        settings: Recorded,
        split: Split,
        place: Path | None = None,
    ) -> SplitRun:
        """Runs a command, see `start_run`."""
        is_first, self._is_first = self._is_first, False
        if is_first and self.forks:
            self._server = start_server(words, environment, settings)
        run = start_run(words, environment, settings, split, self.limit, self._server, place)
        if self.forks and run.recording is not None and (modules := read_modules(settings)):
            with self._lock:
                if self._server is None:
                    self._server = start_server(words, environment, settings, modules)
                elif is_first:
                    self._server.preload(modules)
        return run

    def close(self) -> None:
        """Ends the process for forks."""
        if self._server is not None:
            end_server(self._server)
            self._server = None


def _environment(environment: Mapping[str, str], settings: Recorded) -> dict[str, str]:
    own = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
    paths = [str(RECORDER), *filter(None, [own])]
    full = {**os.environ, **QUIET, **environment, "PYTHONPATH": os.pathsep.join(paths)}
    return full | {"ISOBATCH_SAME": msgspec.json.encode(settings).decode()}


def _read_run(folder: Path, split: Split, settings: Recorded, code: int | None, seconds: float) -> SplitRun:
    lines = _last_lines((folder / "output.txt").read_text(errors="replace"))
    recording = read_recording(folder, split, seconds)
    steps = 0 if recording is None else len(recording.last_steps)
    has_all = steps >= settings.steps or settings.watched or settings.still
    if code is None and not has_all:  # its later steps are not known
        recording = None
    return SplitRun(split, recording, code, seconds, lines, steps=steps)


def _wait_for_ports() -> bool:
    """Waits until no fixed port is in TIME_WAIT; returns whether one was. Only Linux lists them."""
    deadline, waited = time.monotonic() + TIME_WAIT + 5, False
    while time.monotonic() < deadline:
        text = "".join(path.read_text("ascii") for path in Path("/proc/net").glob("tcp*"))
        sockets = map(str.split, text.splitlines())
        ports = [int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in sockets if state == "06"]
        if min(ports, default=CHOSEN) >= CHOSEN:
            break
        waited = True
        time.sleep(0.5)
    return waited


def end_runs() -> None:
    """Ends every run of this process with all of its processes, after a signal or an error."""
    for process, folder in [*_RUNNING.values()]:
        _end_processes(process, folder)


def _last_lines(output: str) -> str:
    """Returns the script's last lines, without torchrun's summary."""
    lines = output.strip().splitlines()
    ends = (place for place, line in enumerate(lines) if _OF_TORCHRUN.search(line))
    return "\n".join(lines[: next(ends, len(lines))][-TAIL:])


def _end_processes(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends a run's processes: of its session, and those with its folder in their environment."""
    end_session(process, GRACE)
    marker = os.fsencode(folder)
    for path in Path("/proc").glob("[0-9]*/environ"):  # none outside of Linux
        with suppress(OSError):
            if marker in path.read_bytes() and (pid := int(path.parent.name)) != os.getpid():
                os.kill(pid, signal.SIGKILL)
