"""Defaults of a project: the table `[tool.isobatch]` of the nearest pyproject.toml that has one."""

import argparse
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isobatch.cli import options
from isobatch.cli.parser import Parser
from isobatch.cli.terminal import say
from isobatch.errors import InputError, must_be, unknown, unreadable
from isobatch.system import is_planted
from isobatch.words import printable

KEYS = (
    "profile", "gpu", "gpus_per_node", "memory_gib", "price_per_gpu_hour", "currency", "inter_gb_s",
    "intra_gb_s", "tuned_gpus",
)  # fmt: skip
"""Keys of the table: options by their names, and the GPUs of the tuned run (`--set gpus=N`)."""
MAX_BYTES = 1 << 20
"""Bytes of a pyproject.toml that is looked at."""
_MENTION = re.compile(
    rb"""(?m)^[ \t]*(?:\[+[ \t]*["']?tool["']?[ \t]*\.[ \t]*["']?isobatch(?![\w-])"""
    rb"""|(?:["']?tool["']?[ \t]*\.[ \t]*)?["']?isobatch["']?[ \t]*[.=])"""
)
"""Where a table `tool.isobatch` may begin, even a broken one; no file without one is parsed."""
_ANOTHER_MEANING = {("isobatch validate", "memory_gib")}
"""Options with a key's name that are about something else: a measured peak."""


class Project(NamedTuple):
    """A project's table, by key, and its pyproject.toml, relative to the working folder."""

    file: str
    values: Mapping[str, Any]


def find() -> Project | None:
    """Finds the table in the working folder or the nearest folder above it; None without one.

    Files without the table are passed over. So is, with a note, a file that is too large to look at, cannot
    be read, or is somebody else's in a folder where everybody may write.
    """
    try:
        working = Path.cwd()
    except OSError:
        return None  # the folder is gone
    for path in (folder / "pyproject.toml" for folder in (working, *working.parents)):
        try:
            status = path.stat()
        except OSError:
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        file = os.path.relpath(path, working)
        try:
            why = _distrusted(path, status)
            data = b"" if why else path.read_bytes()
        except OSError as error:
            why, data = printable(error.strerror or str(error)), b""
        if why:
            say(f"{file}: passed over: {why}")
        if _MENTION.search(data) and (table := _table(data, file)) is not None:
            return Project(file, table)
    return None


def _distrusted(path: Path, status: os.stat_result) -> str:
    if status.st_size > MAX_BYTES:
        return f"it has more than {MAX_BYTES:,} bytes"
    if is_planted(path, status):
        return "it is another user's, in a folder where everybody may write"
    return ""


def _table(data: bytes, file: str) -> dict[str, Any] | None:
    """Reads the table of a pyproject.toml; None where the name means something else there."""
    import tomllib

    try:
        tool = tomllib.loads(data.decode()).get("tool")
    except (ValueError, RecursionError) as error:
        raise unreadable(error, file) from None
    if not isinstance(tool, dict) or "isobatch" not in tool:
        return None
    table = tool["isobatch"]
    if not isinstance(table, dict):
        raise must_be("a table", table, field="tool.isobatch", file=file)
    for key in table:
        if key not in KEYS:
            raise unknown("key of [tool.isobatch]", key, KEYS, field=key, file=file)
    return table


def read(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Reads the typed words, with the project's values as defaults.

    In the result, `project` has the values that were taken, by option, and `project_file` is their file.
    """
    project = find()
    if project is None:
        return parser.read(words)
    actions = {action.dest: action for action in parser._actions if action.option_strings}
    replaced = {
        key: (actions[key], actions[key].default)
        for key in project.values
        if key in actions and (parser.prog, key) not in _ANOTHER_MEANING
    }
    for action, _ in replaced.values():
        action.default = argparse.SUPPRESS  # an option that is typed is then the only one that is there
    args = parser.read(words)
    own = {key: action for key, (action, _) in replaced.items() if not hasattr(args, key)}
    values = {key: _value(project, key, action) for key, action in own.items()}
    if "tuned_gpus" in project.values and "set" in actions:
        values["tuned_gpus"] = _read(project, "tuned_gpus", options.count, project.values["tuned_gpus"])
    for name, value in values.items():
        setattr(args, name, value)
    args.project, args.project_file = values, project.file
    args.unset = {key: replaced[key][1] for key in own}
    return args


def _value(project: Project, key: str, action: argparse.Action) -> Any:
    """Reads a key as its option does; paths are relative to the folder of the file."""
    value = project.values[key]
    if key != "profile":
        return _read(project, key, action.type, value)
    paths = value if isinstance(value, list) else [value]
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise must_be("a path, or a list of paths", value, field=key, file=project.file)
    return [str(Path(project.file).parent / path) for path in paths]


def _read(project: Project, key: str, reader: Any, value: Any) -> Any:
    is_text = reader in (str, None)
    if isinstance(value, bool) or not isinstance(value, str if is_text else str | int | float):
        raise must_be("a text" if is_text else "a number", value, field=key, file=project.file)
    try:
        return value if is_text else reader(str(value))
    except (argparse.ArgumentTypeError, ValueError) as error:
        is_said = isinstance(error, argparse.ArgumentTypeError)
        text = str(error) if is_said else f"must be a number, got {value!r}"
        raise InputError(f"{key} {text}", field=key, file=project.file) from None


def drop(args: argparse.Namespace, names: Iterable[str] = KEYS) -> None:
    """Restores the defaults of options in the place of the project's values."""
    for name in {*names} & {*getattr(args, "project", ())}:
        del args.project[name]
        setattr(args, name, args.unset.get(name))


def refuse_hardware(args: argparse.Namespace, needs: str, table: str) -> None:
    """Refuses the options of a cluster beside a table with such columns; drops a project's."""
    about = {"gpus_per_node": args.gpus_per_node, **options.hardware(args)}
    own = options.typed(about, args)
    drop(args, about)
    for name in own:
        option = f"--{name.replace('_', '-')}"
        raise InputError(f"{option} needs {needs}: a table of {table} has the column {name}")


def note(args: argparse.Namespace) -> str:
    """Lists the project's values in a line; empty without any."""
    project = getattr(args, "project", {})
    values = ", ".join(f"{name} {_shown(value)}" for name, value in project.items())
    return printable(f"defaults of {args.project_file}: {values}", 300) if project else ""


def placed(error: InputError, args: argparse.Namespace) -> InputError:
    """Names the project's file in an error about a value of it."""
    is_of_project = error.file is None and error.field in getattr(args, "project", {})
    return error.at(file=args.project_file) if is_of_project else error


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
