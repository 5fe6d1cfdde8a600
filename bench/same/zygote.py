"""Starts scripts for `isobatch same` from a process that has imported torch and what its optimizers import.

That costs four seconds of a core for each rank.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from isobatch.equivalence import runs
from isobatch.equivalence.records import read_recording


class Zygote:
    """A process with torch that forks the ranks of each run.

    The recorder is installed in each, as behind an import of torch.
    """

    def __init__(self, place: Path, modules: tuple[str, ...] = ()) -> None:
        self.place, self.pid = place, 0
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place))
        listener.listen(8)
        self.pid = os.fork()
        if not self.pid:
            os.environ.update(runs.QUIET, CUDA_VISIBLE_DEVICES="")
            for name in (
                "torch",
                "torch._dynamo",
                "torch.distributed.fsdp",
                "torch.utils.checkpoint",
                "numpy",
                *modules,
            ):
                importlib.import_module(name)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                connection, _ = listener.accept()
                if not os.fork():
                    _serve(connection)
                connection.close()
        listener.close()

    def start_run(self, words, environment, settings, split, limit, device):
        """Takes the place of `runs.start_run`; the words are those of torchrun or of python."""
        folder = Path(settings.folder)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        program = list(words[next(i for i, word in enumerate(words) if word.endswith(".py")) :])
        environment = {**environment, "ISOBATCH_SAME": runs.msgspec.json.encode(settings).decode()}
        began = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.place))
            request = {
                "program": program,
                "environment": environment,
                "ranks": split.ranks,
                "folder": str(folder),
                "limit": limit,
            }
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(connection.makefile().readline())
        text = (folder / "output.txt").read_text(errors="replace").strip()
        seconds = time.monotonic() - began
        lines = "\n".join(text.splitlines()[-runs.TAIL :])
        return runs.Run(split, read_recording(folder, split, seconds), reply["code"], seconds, lines)

    def close(self) -> None:
        """Ends the process."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _serve(connection) -> None:
    """Forks the ranks of a request, and replies with the first exit code that is not 0."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.makefile().readline())
    output = os.open(Path(request["folder"]) / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(request["ranks"]):
        pid = os.fork()
        if not pid:
            os.dup2(output, 1)
            os.dup2(output, 2)
            _run(request, rank, port)
        ranks[pid] = rank
    deadline, code = time.monotonic() + request["limit"], 0
    while ranks and time.monotonic() < deadline and not code:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ranks.pop(pid)
            code = code or os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.02)
    over = bool(ranks) and not code
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    connection.sendall(json.dumps({"code": None if over else code}).encode() + b"\n")
    os._exit(0)


def _run(request, rank: int, port: int) -> None:
    code = 1
    try:
        os.environ.update(request["environment"])
        if request["ranks"] > 1:
            world = str(request["ranks"])
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=world, LOCAL_WORLD_SIZE=world)
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        sys.argv = request["program"]
        sys.path[0:0] = [str(runs.RECORDER), str(Path(sys.argv[0]).parent.resolve())]
        importlib.import_module("isobatch_recorder").install()
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
