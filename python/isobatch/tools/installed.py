"""Tools of other distributions, each behind an entry point of `isobatch.tools`, loaded when first needed."""

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.tools.tool import Tool

GROUP = "isobatch.tools"


class Installed(NamedTuple):
    """The working tools of other distributions, and the faults of the others, by their names."""

    tools: dict[str, Tool]
    faults: dict[str, InputError]


@cache
def installed(own: Collection[str]) -> Installed:
    """Loads the tools of other distributions, none with a name in `own`; a faulty one stops no other."""
    tools, faults = dict[str, Tool](), dict[str, InputError]()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        name = plain(entry.name)
        try:
            if name in own or name in tools:
                owner = "isobatch itself" if name in own else "another distribution"
                raise InputError(f"{owner} has a tool of that name")
            tools[name] = _checked(name, entry.load())
        except (Exception, SystemExit) as error:
            why = error if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
            text = (
                f"the tool {entry.name} of {package} cannot be used: {why}. Update or uninstall "
                f"{package.split()[0]}"
            )
            faults.setdefault(name, InputError(text, field="tool"))
    return Installed(tools, {name: fault for name, fault in faults.items() if name not in tools})


def plain(name: str) -> str:
    """Returns a tool's name as it is looked up: `ray-train` is `ray_train`."""
    return name.lower().replace("-", "_")


def _checked(name: str, tool: object) -> Tool:
    if not isinstance(tool, Tool):
        raise InputError(f"its entry point must be an isobatch.tools.tool.Tool, got {type(tool).__name__}")
    if plain(tool.name) != name:
        raise InputError(f"its record is named {tool.name!r}: the entry point must have the same name")
    if not (tool.reader or tool.writer):
        raise InputError("it has neither a reader nor a writer")
    if bool(tool.reader) != bool(tool.keys.own):
        raise InputError("keys.own must name the settings that tell its files, and be empty without a reader")
    return tool
