"""A script's checkpoints: files below a folder, by the optimizer step after which they were written."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import torch

NO_STATE = (
    ".txt",
    ".log",
    ".csv",
    ".json",
    ".jsonl",
    ".yaml",
    ".yml",
    ".md",
    ".py",
    ".pyc",
    ".lock",
    ".model",
)
"""Ends of files that hold no state of a training."""


class WrittenFiles:
    """Looks for new and changed files of states at each step."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.by_step: dict[str, list[str]] = {}
        self._seen = dict(_files(folder))

    def look(self, step: int) -> None:
        """Keeps files written since the last look, by the number of steps taken."""
        files = dict(_files(self._folder))
        written = [path for path, state in files.items() if self._seen.get(path) != state]
        self._seen = files
        if written:
            self.by_step[str(step)] = sorted(written)


def _files(folder: str) -> Any:
    """Yields the files of states below a folder, symbolic links left out, with their time and size."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            if name.endswith(NO_STATE) or "tfevents" in name or os.path.islink(path):
                continue
            try:
                status = os.stat(path)
            except OSError:  # it is gone already
                continue
            yield path, (status.st_mtime_ns, status.st_size)


def keep_apart(recorder: Any) -> None:
    """Ends the script before it writes through a link into the user's own files, and tells the driver where.

    The driver then starts it again without that folder.
    """
    root = os.path.join(os.path.abspath(recorder.settings["watched"]), "")
    real_root = os.path.join(os.path.realpath(root), "")

    def check(path: Any) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return
        place = os.path.abspath(os.fsdecode(path))
        real = os.path.realpath(place)
        if not place.startswith(root) or real.startswith(real_root) or "__pycache__" in place:
            return
        folder = os.path.dirname(place)
        apart = place if os.path.realpath(folder) + os.sep == real_root else folder
        recorder.write("elsewhere.txt", os.path.relpath(apart, root))
        os._exit(97)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(args[1], str) and any(letter in args[1] for letter in "wax"):
                check(args[0])
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate"):
            check(args[0])
        elif event == "os.rename":
            check(args[1])

    sys.addaudithook(audit)
    save: Any = torch.save

    @functools.wraps(save)
    def save_apart(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        check(f)  # torch opens it outside of Python
        return save(obj, f, *args, **kwargs)

    torch.save = save_apart
