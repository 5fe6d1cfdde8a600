"""A plan in the command of a known tool: as its own flags, or in a copy of its file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isobatch.equivalence.settings import given_settings, read_source
from isobatch.errors import InputError
from isobatch.files.formats import read_fields
from isobatch.files.texts import write_fields
from isobatch.planning.plan import Plan
from isobatch.tools import detect
from isobatch.tools.export import Export
from isobatch.tools.read import complete, read_file
from isobatch.words import real

_TRAINERS = ("transformers", "trl", "ms_swift", "llama_factory")
"""Tools whose flags are TrainingArguments."""


def set_values(
    command: Sequence[str], plan: Plan, page: Any, folder: Path
) -> tuple[list[str], Export | None]:
    """Sets the plan's values in a command without braces.

    Args:
        command: as typed.
        plan: a feasible one.
        page: the reading of FILE, where that is a tool's.
        folder: for a copy of FILE, where the command names it.

    Returns:
        The command, and what was written; None where no tool is known by the command's flags or file.

    Raises:
        InputError: the tool cannot be given this plan.
    """
    if page is not None and any(page.file in (word, word.partition("=")[2]) for word in command):
        export = _export(plan, page.tool)
        copy = _copy(page, export, plan, folder)
        words = [
            word.removesuffix(page.file) + copy if word.endswith(page.file) else word for word in command
        ]
        return words, export
    try:
        source = read_source(command, None)
    except InputError:  # files of another kind, which the command reads itself
        source = None
    if source is None or source.file is not None or source.tool not in _TRAINERS:
        return [*command], None
    export = _export(plan, source.tool)
    return _with_flags(command, export.settings), export


def _export(plan: Plan, tool: str) -> Export:
    known = detect.tool_of(tool)
    return plan.to(known.name if known.writer is not None else known.written_as)


def _with_flags(command: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """Writes settings as flags: in the place of the typed value, else at the end."""
    words, rest = [*command], dict(settings)
    for given in given_settings(command):
        if given.name in settings and given.value is not True:
            value = str(rest.pop(given.name, settings[given.name]))
            place = given.at + (0 if given.joined else 1)
            words[place] = f"{command[given.at].partition('=')[0]}={value}" if given.joined else value
    return [*words, *(word for name, value in rest.items() for word in (f"--{name}", str(value)))]


def _copy(page: Any, export: Export, plan: Plan, folder: Path) -> str:
    """Writes a copy of a tool's file with the plan's values, and returns its path.

    Raises:
        InputError: the tool's own reader finds another batch or rate in the copy.
    """
    content = _merged(read_fields(page.file), export.settings)
    for field in ("warmup", "duration"):  # the same length by another name would contradict the plan's
        if (key := page.keys.get(field, "")) not in export.settings:
            content.pop(key, None)
    copy = folder / f"{plan.world_size}-{Path(page.file).name}"
    write_fields(copy, content)
    fields = complete({**read_file(copy, page.tool).fields, "gpus": plan.world_size})
    for name in ("micro_batch", "accumulation", "lr"):
        if fields.get(name) not in (None, getattr(plan, name)):
            raise InputError(
                f"cannot be written for {plan.world_size} GPUs: {name} would be {real(fields[name])}, not "
                f"{real(getattr(plan, name))}; write braces into the command",
                file=page.file,
            )
    return str(copy)


def _merged(own: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Puts changes over a table, and into its tables."""
    tables = {
        name: _merged(own[name], value)
        for name, value in changes.items()
        if isinstance(value, Mapping) and isinstance(own.get(name), Mapping)
    }
    return {**own, **changes, **tables}
