"""What a tool does by itself, without a word in the file: a file for each tool that has a reader, with its `check`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from isobatch.doctor.finding import Case, Finding

_BUILT_ON = {"checkpoint": "transformers", "llama_factory": "transformers"}


def of(tool: str) -> ModuleType:
    """The checks of a reader's tool."""
    return import_module(f"{__name__}.{_BUILT_ON.get(tool, tool)}")


def check(case: Case) -> Iterator[Finding]:
    """The tool's own findings."""
    yield from of(case.found.tool).check(case)
