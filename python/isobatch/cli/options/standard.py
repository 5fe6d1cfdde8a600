"""`-` as a file: what comes on stdin is put into one, whose suffix says what it is."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isobatch.cli.terminal.messages import called
from isobatch.errors import InputError

_LOOK = 1 << 16
"""Bytes by which the format is told."""


@contextmanager
def stdin_as_file(args: argparse.Namespace, *names: str) -> Iterator[None]:
    """The arguments of these names, one of which may be `-`: while the context lasts it is the path of a file with what stdin holds.

    Raises:
        InputError: more than one is `-`.
    """
    taken = [name for name in names if getattr(args, name) == "-"]
    if len(taken) > 1:
        raise InputError(f"- stands for stdin, and cannot be both {' and '.join(taken)}")
    if not taken:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        raw = Path(folder, "raw")
        with raw.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        path = raw.rename(raw.with_name(f"stdin{_suffix(raw)}"))
        setattr(args, taken[0], str(path))
        with called(str(path), "stdin"):
            yield


def _suffix(path: Path) -> str:
    """What a file's content is: Parquet by its mark, JSON by its brace, of which one document or many lines, or a list's bracket, else
    CSV."""
    with path.open("rb") as file:
        head = file.read(_LOOK)
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.lstrip().startswith(b"["):
        return ".json"
    if not head.lstrip().startswith(b"{"):
        return ".csv"
    first = head.lstrip().split(b"\n", 1)[0]
    try:
        found = json.loads(first)
    except ValueError:
        return ".json"  # its first line is not whole: it is laid out over many
    return ".json" if "schema" in found else ".jsonl"
