"""Starts the command at a split with the recorder, and ends every process it started."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.records import Recording, read_recording
from isobatch.equivalence.split import Split
from isobatch.system import end_session

RECORDER = Path(__file__).parent / "recorder"
BUCKETS = 64
"""Buckets of a tensor's sketch."""
GRACE = 5.0
"""Seconds for a launcher to end its workers."""
TAIL = 12
"""Lines of a run's output that an error shows."""

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
    rows: dict[str, Any] | None = None


class SplitRun(msgspec.Struct, frozen=True):
    """A finished run.

    Attributes:
        recording: None where no step was recorded.
        code: the command's exit code, None where its time was over.
        output: the last lines that it printed.
    """

    split: Split
    recording: Recording | None
    code: int | None
    seconds: float
    output: str


def start_run(
    words: Sequence[str],
    environment: Mapping[str, str],
    settings: Recorded,
    split: Split,
    limit: float,
    device: str,
) -> SplitRun:
    """Runs a command until its steps are recorded, it ends, or its time is over; no process stays.

    Args:
        words: the command at this split.
        environment: variables beside those of this process.
        settings: of the recorder.
        split: of the run.
        limit: seconds.
        device: "cpu" hides the GPUs.
    """
    folder = Path(settings.folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    paths = [str(RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    full = {**os.environ, **QUIET, **environment, "PYTHONPATH": os.pathsep.join(paths)}
    full["ISOBATCH_SAME"] = msgspec.json.encode(settings).decode()
    if device == "cpu":
        full["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    code = None
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            list(words),
            env=full,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end_processes(process, folder)
    seconds = time.monotonic() - began
    lines = _last_lines((folder / "output.txt").read_text(errors="replace"))
    return SplitRun(split, read_recording(folder, split, seconds), code, seconds, lines)


def _last_lines(output: str) -> str:
    """Returns the script's last lines, without torchrun's summary."""
    lines = output.strip().splitlines()
    ends = (place for place, line in enumerate(lines) if _OF_TORCHRUN.search(line))
    return "\n".join(lines[: next(ends, len(lines))][-TAIL:])


def _end_processes(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends a run's processes: those of its session, and those that left it, as torchrun's workers do."""
    end_session(process, GRACE)
    if sys.platform != "win32":
        for pid in _strays(folder):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _strays(folder: Path) -> list[int]:
    """Lists the processes with the folder of a run in their environment."""
    marker = os.fsencode(folder)
    strays = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if marker in path.read_bytes() and (pid := int(path.parent.name)) != os.getpid():
                strays.append(pid)
    return strays
