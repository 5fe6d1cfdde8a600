"""From text to plain values in any format: JSON, YAML, TOML, a command line, literals of a Python file.

Files come from anywhere, so their cost is bounded: their size, their depth, and the expansion of YAML's
aliases. Nothing in them is run, and no variable of a shell is looked up.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isobatch.errors import InputError, must_be, unreadable
from isobatch.files.formats import parse_json, parse_toml, parse_yaml
from isobatch.files.limits import refuse_large, refuse_many_names, too_deep
from isobatch.tools.page import UNKNOWN

MAX_FILE_CHARACTERS = 4 << 20

_TABLE = re.compile(r"^[ \t]*\[[\w.\"'-]+\][ \t]*(#.*)?$", re.MULTILINE)
_ASSIGNED = re.compile(r"^[ \t]*[\w.\"'-]+[ \t]*=[ \t]*\S", re.MULTILINE)
_PYTHON = re.compile(r"^\w+\s*=\s*(dict\(|\[|\{|')|^from \S+ import |^import \S+", re.MULTILINE)
_FLAG = re.compile(r"(?:^|\s)(?:--[A-Za-z][\w-]*|\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=\S)", re.MULTILINE)
_STRING = r'"(?:\\.|[^"\\\n])*+"?'
"""Closed or not: a search for the end of each quote would take the square of the number of quotes."""
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")
SHELLS = (".sh", ".bash", ".sbatch", ".slurm")
_JOBS = ("TrainJob", "PyTorchJob", "Job")
"""Kinds of Kubernetes whose command is read."""
_DEEPSPEEDS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


def parse(
    text: str, *, file: str, suffix: str = "", aside: Aside | None = None, name: str = ""
) -> dict[str, Any]:
    """Parses the table in a file; the format is told by the content, then by the suffix.

    Args:
        aside: filled with what a script says beside its settings.
        name: of the function in a Python file of several, or the line of the training in a script of several.

    >>> parse('{"lr": 2e-5}', file="a.json"), parse("--lr 2e-5", file="a.sh")
    ({'lr': 2e-05}, {'lr': '2e-5'})
    """
    if len(text) > MAX_FILE_CHARACTERS:
        raise InputError(
            f"has {len(text):,} characters, more than the {MAX_FILE_CHARACTERS:,} that a configuration may "
            "have",
            file=file,
        )
    text = text.removeprefix("\ufeff")  # Windows' editors begin a file of UTF-8 with it
    if not text.strip():
        raise InputError("is empty: a configuration must have settings", file=file)
    try:
        data = _read(text, file, suffix, aside or Aside(), name)
    except (RecursionError, MemoryError):  # Python's own parser raises the latter
        raise too_deep(file) from None
    except (ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, file) from None
    if not isinstance(data, dict):
        raise must_be("a table of settings", type(data), field="the file", file=file)
    refuse_large(data, file)
    return data


def _read(text: str, file: str, suffix: str, aside: Aside, name: str) -> Any:
    is_json = text.lstrip()[:1] == "{"
    if suffix in SHELLS or (suffix != ".py" and text.startswith("#!") and "sh" in text.partition("\n")[0]):
        return _command_line(text, file, aside, name)
    if suffix == ".py" or (suffix == "" and not is_json and _PYTHON.search(text)):
        from isobatch.tools.scripts import read_python

        refuse_many_names(text, file, "=")
        settings, aside.tool = read_python(text, file, name, aside.notes, aside.flags)
        return settings
    if is_json:
        data = _json(text, file)
    elif suffix not in (".yaml", ".yml") and (
        suffix == ".toml" or (_TABLE.search(text) and _ASSIGNED.search(text))
    ):
        data = parse_toml(text, file)
    elif suffix in (".yaml", ".yml") or not _FLAG.search(text):
        data = parse_yaml(text, file, tagged=UNKNOWN)
    else:
        data = _command_line(text, file, aside, name)
    if isinstance(data, Mapping) and data.get("kind") in _JOBS and "apiVersion" in data:
        from isobatch.tools import kubernetes

        try:
            line, started = kubernetes.command(data, aside.notes)
        except InputError as error:
            raise error.at(file=file) from None
        return {**started, **_command_line(line, file, aside)}
    return data


def _command_line(text: str, file: str, aside: Aside, line: str = "") -> dict[str, Any]:
    """Reads the settings of a shell script's training."""
    from isobatch.tools.shells.configs import SWIFT
    from isobatch.tools.shells.directives import job_components
    from isobatch.tools.shells.training import FileNamedError, arguments

    refuse_many_names(text, file, "=")
    refuse_many_names(text, file, "--")
    aside.job = job_components(text)[0]
    try:
        number = int(line) if line else None
        settings = _nested(arguments(text, line=number, notes=aside.notes, beside=aside.beside))
    except FileNamedError as error:
        raise error.at(file=file) from None
    except InputError as error:
        start = f"isobatch doctor -- bash {shlex.quote(file)}"
        text = f"{error.message}; {start} runs the script, with its launcher recorded in the place of started"
        raise InputError(text, file=file, field=error.field) from None
    if SWIFT in settings:
        aside.tool = "ms_swift"
    return settings


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Puts `trainer.nnodes` into the table trainer, as Hydra and jsonargparse do, unless it is a value."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        table: Any = nested
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[last] = value
        else:
            nested[name] = value
    return nested


def _json(text: str, file: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError:
        try:
            data = parse_json(without_comments(text))
        except json.JSONDecodeError:
            data = None
        if data is None:
            raise
    if not (isinstance(data, Mapping) and any(key in data for key in _DEEPSPEEDS)):
        raise InputError(
            "has comments or trailing commas, which JSON does not have (only DeepSpeed's files may): remove "
            "them, or save it as YAML",
            file=file,
        )
    return data


def without_comments(text: str) -> str:
    """Removes `//`, `#` and `/* */` from JSON, and commas before a closing bracket; texts stay as they are.

    >>> without_comments('{"a": "//x", // one\\n "b": [1, 2,], }')
    '{"a": "//x",  \\n "b": [1, 2] }'
    """
    plain = _COMMENT.sub(lambda match: match[1] or " ", text)
    return _COMMA.sub(lambda match: match[1] or "", plain)


@dataclass
class Aside:
    """The notes and the tool of a script, beside its settings.

    Attributes:
        notes: what it leaves open.
        tool: whose class a Python script makes, or whose command a shell script runs; empty where the
            settings tell it.
        flags: the settings of the command that starts a Python script; those that it declares are taken out.
        beside: the names of other files of the run.
        job: the numbers of a shell script's #SBATCH lines, by option.
    """

    notes: list[str] = field(default_factory=list)
    tool: str = ""
    flags: dict[str, Any] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    job: dict[str, str] = field(default_factory=dict)
