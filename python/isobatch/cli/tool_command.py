"""A plan in the command of a known tool: as its own flags, or in a copy of the file that it names."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from isobatch.equivalence.settings import STARTS_ITSELF, read_source, write_values
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.planning.plan import FeasiblePlan
from isobatch.tools import detect
from isobatch.tools.export import Export
from isobatch.tools.page import leaves


def set_values(command: Sequence[str], plan: FeasiblePlan, folder: Path) -> tuple[list[str], Export | None]:
    """Sets the plan's values in a command without braces.

    Args:
        command: as typed.
        plan: for its processes.
        folder: of this command alone, for the copy of a file.

    Returns:
        The command, and what was set; None where no tool is known by the command's flags or file.

    Raises:
        InputError: the tool cannot be given this plan.
    """
    try:
        source = read_source(command, None)
    except InputError:  # files of another kind, which the command reads itself
        source = None
    if source is None or source.tool == STARTS_ITSELF:  # its data module has a name of its own for the batch
        return [*command], None
    known = detect.tool_of(source.tool)
    export = plan.to(known.name if known.writer is not None else known.written_as)
    values = leaves(export.settings)
    if source.file is None:  # transformers' parser takes a table as JSON
        tables = {name: value for name, value in export.settings.items() if isinstance(value, Mapping)}
        values = {**export.settings, **{name: json.dumps(table) for name, table in tables.items()}}
    split = Split(plan.data_parallel, plan.accumulation, plan.micro_batch)
    folder.mkdir(parents=True, exist_ok=True)
    return write_values(source, command, values, split, folder), export
