"""Files of a script, written during a run, and its loads of a checkpoint: for the report."""

from __future__ import annotations

import os
import site
import sys
import tempfile
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from .record import Recorder

CONTINUES = "continued from a checkpoint"
_CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
"""Events of Python's audit that change files without opening one."""
WRITES = 98
"""Exit code of a script, ended before it writes a file."""
_MOST = 5
"""Folders that are named."""


def install(recorder: Recorder) -> None:
    """Watches files opened for writing, and states loaded into an optimizer."""
    load_state_dict = optimizers.Optimizer.load_state_dict

    def load(self: Any, state_dict: Any) -> None:
        if state_dict.get("state"):  # Accelerate loads an empty one into every optimizer
            recorder.note(CONTINUES)
        load_state_dict(self, state_dict)

    optimizers.Optimizer.load_state_dict = load  # type: ignore[method-assign]
    folder = os.getcwd()
    elsewhere = [tempfile.gettempdir(), os.path.expanduser("~/.cache"), "/dev", "/proc", "/sys", sys.prefix]
    skipped = tuple(os.path.join(place, "") for place in [*elsewhere, *site.getsitepackages()])
    inside = os.path.join(folder, "")
    own, named = str(recorder.folder), set[str]()

    def is_apart(path: str) -> bool:
        outside = path.startswith(skipped) and not path.startswith(inside)
        return "__pycache__" in path or path.startswith(own) or outside

    def stop_before(path: Any) -> None:
        """Ends a run to the end of an epoch before it writes more than a short one."""
        after = recorder.settings["still"]
        if not after or max(recorder.steps.values(), default=0) < after or recorder.busy:
            return
        if isinstance(path, (str, bytes, os.PathLike)) and not is_apart(os.path.abspath(os.fsdecode(path))):
            os._exit(WRITES)

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in _CHANGES:
            stop_before(args[0])
        if event != "open" or not isinstance(args[0], (str, bytes)) or not _writes(args[1], args[2]):
            return
        stop_before(args[0])
        path = os.path.abspath(os.fsdecode(args[0]))
        if len(named) >= _MOST or is_apart(path):
            return
        place = os.path.relpath(path, folder) if path.startswith(inside) else path
        top = place.split(os.sep)[0] if path.startswith(inside) else os.path.dirname(place)
        if top not in named:
            named.add(top)
            existed = "over what was there" if os.path.exists(path) else "by the script"
            recorder.note(f"{top} written {existed}")

    sys.addaudithook(watch)
    if recorder.settings["still"]:
        save: Any = torch.save

        def save_or_stop(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            stop_before(f)  # torch opens it outside of Python
            return save(obj, f, *args, **kwargs)

        torch.save = save_or_stop


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR))
