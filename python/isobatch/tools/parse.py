"""From text to plain values, whatever the format: JSON, YAML, TOML, a command line, or the literals of a Python file.

Files come from anywhere, so what they may cost is bounded: their size, their depth, what YAML's aliases expand to, and the number of
files that one builds on. Nothing in them is run, and no variable of a shell is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be, unreadable
from isobatch.files.formats import parse_json, parse_toml, parse_yaml
from isobatch.files.limits import refuse_large, too_deep
from isobatch.files.whole import read_whole
from isobatch.tools.page import UNKNOWN

MAX_FILE_CHARACTERS = 4 << 20
MAX_BASE_FILES = 50
"""That one configuration builds on, one after the other."""

_TABLE = re.compile(r"^[ \t]*\[[\w.\"'-]+\][ \t]*(#.*)?$", re.MULTILINE)
_ASSIGNED = re.compile(r"^[ \t]*[\w.\"'-]+[ \t]*=[ \t]*\S", re.MULTILINE)
_PYTHON = re.compile(r"^\w+\s*=\s*(dict\(|\[|\{|')|^from \S+ import |^import \S+", re.MULTILINE)
_ELSEWHERE = re.compile(r"[/~\\]|\w+:")
"""An absolute path, a home, an address or another package's (`mmdet::`): only what lies beside a file is read."""
_FLAG = re.compile(r"(?:^|\s)(?:--[A-Za-z][\w-]*|\+{0,2}[A-Za-z_]\w*(?:\.\w+)+=\S)", re.MULTILINE)
_STRING = r'"(?:\\.|[^"\\\n])*+"?'
"""Closed or not: what searches for the end of each quote anew takes the square of their number."""
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")
_JOBS = ("TrainJob", "PyTorchJob", "Job")
"""Kinds of Kubernetes whose command is read."""
_DEEPSPEEDS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


def parse(
    text: str, *, file: str, suffix: str = "", bases: Bases | None = None, name: str = ""
) -> dict[str, Any]:
    """Parses the table in a file; the format is found by its content, then by its suffix.

    Args:
        bases: reads the files that this one builds on; None: they stay names.
        name: of the function, in a Python file of several configurations; the line of the training, in a script of several.

    Raises:
        InputError: it has no such format, is too large or too deep, or holds no table.

    >>> parse('{"learning_rate": 2e-5}', file="a.json"), parse("lr: 2e-5", file="a.yaml"), parse("--lr 2e-5", file="a.sh")
    ({'learning_rate': 2e-05}, {'lr': 2e-05}, {'lr': '2e-5'})
    """
    if len(text) > MAX_FILE_CHARACTERS:
        raise InputError(
            f"has {len(text):,} characters, more than the {MAX_FILE_CHARACTERS:,} that a configuration may have",
            file=file,
        )
    text = text.removeprefix("\ufeff")  # Windows' editors begin a file of UTF-8 with it
    if not text.strip():
        raise InputError("is empty: a configuration must have settings", file=file)
    try:
        data = _read(text, file, suffix, bases, name)
    except (RecursionError, MemoryError):  # the latter is the word of Python's own parser
        raise too_deep(file) from None
    except (ValueError, SyntaxError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, file) from None
    if not isinstance(data, dict):
        raise must_be("a table of settings", type(data), field="the file", file=file)
    refuse_large(data, file)
    return data


def _read(text: str, file: str, suffix: str, bases: Bases | None, name: str) -> Any:
    is_json = text.lstrip()[:1] == "{"
    if suffix == ".py" or (suffix == "" and not is_json and _PYTHON.search(text)):
        from isobatch.tools.literals import configuration, has_functions, python_literals
        from isobatch.tools.scripts import is_script, script_settings

        if (name and not name.isdecimal()) or has_functions(text):
            return configuration(text, file, name)
        if bases is not None and is_script(text):
            settings, bases.tool = script_settings(text, file, name, bases.notes)
            if settings:
                return settings
        return python_literals(text, file, None if bases is None else bases.settings)
    if is_json:
        data = _json(text, file)
    elif suffix not in (".yaml", ".yml") and (
        suffix == ".toml" or (_TABLE.search(text) and _ASSIGNED.search(text))
    ):
        data = parse_toml(text)
    elif suffix in (".yaml", ".yml") or not _FLAG.search(text):
        data = parse_yaml(text, file, tagged=UNKNOWN)
    else:
        data = _command_line(text, file, bases, int(name) if name else None)
    if isinstance(data, Mapping) and data.get("kind") in _JOBS and "apiVersion" in data:
        from isobatch.tools import kubernetes

        try:
            line, started = kubernetes.command(data, [] if bases is None else bases.notes)
        except InputError as error:
            raise error.at(file=file) from None
        return {**started, **_command_line(line, file, bases)}
    for key in ("_base_", "_BASE_"):
        if bases is not None and isinstance(data, dict) and key in data:
            refuse_large(data, file)
            from isobatch.tools.literals import merge

            data = merge(data, bases.settings(data.pop(key), key))
    return data


def _command_line(text: str, file: str, bases: Bases | None, line: int | None = None) -> dict[str, Any]:
    """The settings of a shell script's training."""
    from isobatch.tools.shells.training import SWIFT, arguments

    try:
        settings = _nested(arguments(text, line=line, notes=None if bases is None else bases.notes))
    except InputError as error:
        raise error.at(file=file) from None
    if bases is not None and SWIFT in settings:
        bases.tool = "ms_swift"
    return settings


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Puts `trainer.nnodes` into the table trainer, as Hydra and jsonargparse do; a name beside a table of its name stays as it is."""
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
            "has comments or trailing commas, which JSON does not have (only DeepSpeed's files may): remove them, or save it as YAML",
            file=file,
        )
    return data


def without_comments(text: str) -> str:
    """Removes `//`, `#` and `/* */` from JSON, and commas before a closing bracket; texts stay as they are.

    >>> without_comments('{"a": "//x", // one\\n "b": [1, 2,], }')
    '{"a": "//x",  \\n "b": [1, 2] }'
    """
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    return _COMMA.sub(lambda found: found[1] or "", plain)


@dataclass
class Bases:
    """Reads the base files of a file, by paths relative to it.

    Attributes:
        file: that names them.
        chain: the files that led here, by their real paths; none may come again.
        seen: all files that were read for the first one.
        unread: by the setting that names them, files that are not beside the one that does.
        notes: what a script leaves open.
        tool: whose class a Python script makes, or whose command a shell script runs; empty where it is found by the settings.
    """

    file: Path
    chain: tuple[Path, ...] = ()
    seen: list[Path] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tool: str = ""

    def settings(self, names: Any, key: str = "_base_") -> dict[str, Any]:
        """Reads the named files together.

        Raises:
            InputError: one is missing, names itself, or cannot be read; or two of mmengine's set the same.
        """
        together: dict[str, Any] = {}
        for name in names if isinstance(names, list | tuple) else [names]:
            if not isinstance(name, str):
                raise must_be("a path, or a list of them", name, field=key, file=str(self.file))
            for setting, value in self._one(name, key).items():
                if setting in together and key == "_base_":
                    raise InputError(
                        f"two of the files that it names set {setting!r}: mmengine refuses that",
                        field=key,
                        file=str(self.file),
                    )
                together[setting] = value
        refuse_large(together, str(self.file))
        return together

    def _one(self, name: str, key: str) -> dict[str, Any]:
        if _ELSEWHERE.match(name):
            self.unread.setdefault(key, []).append(name)
            return {}
        path = self.file.parent / name
        real = path.resolve()
        if not real.is_file():
            raise InputError(
                f"names {name!r}, and there is no such file: {path}", field=key, file=str(self.file)
            )
        if real in (*self.chain, self.file.resolve()):
            raise InputError(
                f"names {name!r}, which builds on this file again", field=key, file=str(self.file)
            )
        if len(self.seen) >= MAX_BASE_FILES:
            raise InputError(f"builds on more than {MAX_BASE_FILES} files", field=key, file=str(self.file))
        self.seen.append(real)
        inner = Bases(path, (*self.chain, self.file.resolve()), self.seen, self.unread)
        return parse(read_whole(path), file=str(path), suffix=path.suffix.lower(), bases=inner)
