"""A plan in the command of a known tool: as its own flags, or in a copy of the file that it names."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from isobatch.equivalence.commands.settings import STARTS_ITSELF, read_source, write_values
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.launch.launcher import read_launcher
from isobatch.planning.plan import FeasiblePlan
from isobatch.tools import detect
from isobatch.tools.page import leaves


def set_values(command: Sequence[str], plan: FeasiblePlan, folder: Path) -> tuple[list[str], list[str]]:
    """Sets the plan's values in a command without braces for them.

    Returns the command, as typed where no tool is known by its flags or file, and notes. The copy of a file
    goes into `folder`, which is of this command alone.
    """
    launcher = read_launcher(command, os.environ)
    place, tool = (launcher.program, launcher.tool) if launcher else (0, None)
    program, why = command[place:], "has neither braces nor a known tool's flags"
    try:
        source = read_source(program, tool) if program else None
    except InputError as error:  # perhaps files of another kind, which the command reads itself
        source, why = None, f"is started as typed ({error})"
    if source is None or source.tool == STARTS_ITSELF:  # its data module has a name of its own for the batch
        return [*command], [f"the command {why}: it must read ISOBATCH_PLAN itself"]
    known = detect.tool_of(source.tool)
    export = plan.to(known.name if known.writer is not None else known.written_as)
    values = leaves(export.settings)
    if source.file is None:  # transformers' parser takes a table as JSON
        tables = {name: value for name, value in export.settings.items() if isinstance(value, Mapping)}
        values = {**export.settings, **{name: json.dumps(table) for name, table in tables.items()}}
    if plan.recipe.clip_norm is None:  # the recipe says nothing of it: what is typed stays
        typed = {source.keys.get("clip_norm", "max_grad_norm")} & source.typed.keys()
        values = {name: value for name, value in values.items() if name not in typed}
    split = Split(plan.data_parallel, plan.accumulation, plan.micro_batch)
    notes = [f"{export.tool}: {note}" for note in export.notes if note not in export.of_file]
    return [*command[:place], *write_values(source, program, values, split, folder)], notes
