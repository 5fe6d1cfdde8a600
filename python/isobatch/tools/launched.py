"""A launch line beside its script or configuration: the processes, and arguments of the script."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isobatch.errors import InputError
from isobatch.files.whole import read_whole
from isobatch.tools.detect import detect
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.parse import SHELLS, Aside, parse
from isobatch.tools.unread import guess_field, is_everywhere
from isobatch.words import few


def read_launch(paths: Sequence[Any]) -> tuple[int, Reading, dict[str, Any]] | None:
    """Reads the launch line among files: its place, its processes, and the flags of what it starts."""
    for place, path in enumerate(paths if len(paths) > 1 else ()):
        file, _, line = str(path).partition(":")
        if Path(file).suffix.lower() not in SHELLS:
            continue
        beside = tuple(
            Path(str(neighbour).partition(":")[0]).name for neighbour in paths if neighbour is not path
        )
        aside = Aside(beside=beside)
        settings = parse(read_whole(Path(file)), file=file, suffix=Path(file).suffix, aside=aside, name=line)
        if aside.tool or _is_of_a_tool(settings, file):
            continue
        reading = Reading("launcher", "a launch line", str(path), settings, notes=aside.notes, job=aside.job)
        SettingsPage(settings, reading, dashes=True).read_launch_line()
        flags = {key: value for key, value in settings.items() if not is_everywhere(key)}
        return place, reading, {key: value for key, value in flags.items() if key not in reading.used}
    return None


def without_parsers(paths: Sequence[Any]) -> Sequence[Any]:
    """Leaves out scripts with nothing but a parser, if another file of the run has its command line."""
    remaining = [path for path in paths if not (str(path).endswith(".py") and _parses_all(path))]
    return remaining or paths


def _parses_all(path: Any) -> bool:
    from isobatch.tools.calls import Script
    from isobatch.tools.scripts import parses_all
    from isobatch.tools.signatures import is_trainers

    text = read_whole(Path(path)) if Path(path).is_file() else ""
    try:
        calls = Script(ast.parse(text)).configuring.values() if parses_all(text) else ()
    except SyntaxError:
        return False
    return parses_all(text) and not any(is_trainers(call.name) for call in calls)


def ask_for_flags(reading: Reading, flags: dict[str, Any]) -> None:
    """Asks for the batch, rate or length in undeclared flags, and names the other flags."""
    page = SettingsPage(flags, reading, dashes=True)
    for key, value in flags.items():
        field = guess_field(key)
        is_launchers = isinstance(value, list) and str(value[-1]).endswith(".py")  # in front of the script
        if field == "accumulation" and is_launchers and "use_deepspeed" not in reading.settings:
            reading.notes.append(f"{page.name(key)} of the launcher has no effect without DeepSpeed")
            continue
        field = "effective_batch" if field in ("batch", "batch_per_gpu") else field
        if field is not None:
            page.ask(field, f"{page.name(key)} {value} is not declared by the script", page.name(key))
    rest = [page.name(key) for key in flags if guess_field(key) is None]
    if rest:
        page.note(f"not understood: {few(rest)}")


def _is_of_a_tool(settings: dict[str, Any], file: str) -> bool:
    try:
        detect(settings, file)
    except InputError:
        return False
    return True
