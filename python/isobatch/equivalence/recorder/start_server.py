"""Starts a script's ranks as forks of one process with the script's libraries imported.

Standard input has a request in JSON a line, `modules` to import or a start; a line of standard output answers
each: `ready`, or the exit code of the start. It ends, and all that it started, with its standard input.
"""

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pkgutil
import re
import runpy
import select
import signal
import sys
import types
from typing import Any, NoReturn

import isobatch_recorder  # type: ignore[import-not-found]

_POLL = 0.02
"""Seconds between two looks at the processes, while one runs."""


def main() -> None:
    """Keeps standard output for answers, and serves the requests."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    serve(answers)


def preload(modules: list[str]) -> str:
    """Imports modules in order; returns a reason against forks, or nothing.

    A name with a colon, `module:name`, is out of the script's text: only a library's is imported.
    """
    import torch  # with the recorder

    before = torch.get_rng_state()
    for name in modules:
        # Names such as six.moves belong to no file; a module that fails alone is left to the script.
        with contextlib.suppress(Exception, SystemExit):
            if ":" not in name:
                importlib.import_module(name)
            elif is_library(name):
                pkgutil.resolve_name(name)
    gc.collect()
    gc.freeze()  # a fork's own collections leave these objects, and their memory, alone
    if not torch.equal(before, torch.get_rng_state()):
        return "a module draws random numbers when it is imported"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a module starts a thread when it is imported"
    return ""


def is_library(name: str) -> bool:
    """Whether a package is in Python's own folders: the user's modules are the script's to import."""
    spec = importlib.util.find_spec(re.split("[.:]", name)[0])
    folders = isobatch_recorder.record.library_folders()  # it is there once torch is imported
    return spec is not None and (spec.origin or "").startswith(folders)


def serve(answers: Any) -> None:
    """Imports modules, or starts a session and answers when its ranks have ended, for each request."""
    running: dict[int, int] = {}
    pending = b""
    while True:
        ready, _, _ = select.select([0], [], [], _POLL if running else None)
        if ready:
            part = os.read(0, 1 << 16)
            if not part:
                break
            *lines, pending = (pending + part).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "modules" in request:
                    odd = preload(request["modules"])
                    answers.write(json.dumps({"ready": not odd, "odd": odd}) + "\n")
                    continue
                pid = os.fork()
                if pid == 0:
                    os.close(answers.fileno())
                    _lead(request)
                running[pid] = request["number"]
                answers.write(json.dumps({"number": request["number"], "pid": pid}) + "\n")
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            answers.write(json.dumps({"number": running.pop(pid), "code": code}) + "\n")
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _lead(request: dict[str, Any]) -> NoReturn:
    """Leads a session of ranks, as torchrun does: the first that fails ends the others, and is its code."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    ranks = set()
    for environment in request["ranks"]:
        pid = os.fork()
        if pid == 0:
            _become(request, environment)
        ranks.add(pid)
    first = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first = code
            for rank in ranks:
                os.kill(rank, signal.SIGTERM)
    os._exit(first if first >= 0 else 128 - first)


def _become(request: dict[str, Any], environment: dict[str, str]) -> NoReturn:
    """Becomes a rank: a fresh __main__ with the recorder installed."""
    os.environ.clear()
    os.environ.update(environment)
    if request["place"] is not None:
        os.chdir(request["place"])
    sys.argv = [*request["program"]]  # the recorder reads the script
    isobatch_recorder.begin()
    code = 0
    try:
        _run(request["program"], is_module=request["module"])
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next
        sys.excepthook(type(error), error, trace)
        code = 1
    with contextlib.suppress(Exception):
        import atexit
        import threading

        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(program: list[str], *, is_module: bool) -> None:
    """Runs a script or a module as Python does."""
    if is_module:
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(program[0], alter_argv=True)  # type: ignore[attr-defined]
        return
    path = os.path.abspath(program[0])  # as Python does: rows and seeds are kept by file and line
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = path, builtins  # type: ignore[attr-defined]
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
