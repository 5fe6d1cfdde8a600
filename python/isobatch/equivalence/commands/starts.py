"""A command, started as typed, or at a split where braces or options say where its numbers go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.commands.braces import braces_in
from isobatch.equivalence.commands.command import Command, read_command, start_as_typed, start_line
from isobatch.equivalence.commands.environments import Environment
from isobatch.equivalence.commands.runs import Recorded, SplitRun, Starter, start_run
from isobatch.equivalence.commands.settings import ToolSettings, read_source
from isobatch.equivalence.commands.typed import read_typed
from isobatch.equivalence.records import Recording, read_rollouts
from isobatch.equivalence.split import MAX_RANKS, MAX_SAMPLES, Split
from isobatch.errors import InputError
from isobatch.launch.command_line import CommandLine, read_launch, require_command


class TypedCommand(msgspec.Struct, frozen=True):
    """A command of a question without other splits.

    Attributes:
        words: as they were typed.
        launch: the words taken apart.
        split: of each start; as typed, its ranks alone.
        command: the reading of braces or options; None where it starts as typed.
        source: the settings of a known tool, some of which are others on the CPU.
    """

    words: tuple[str, ...]
    launch: CommandLine
    split: Split
    command: Command | None = None
    source: ToolSettings | None = None

    def line(
        self, launch: CommandLine, split: Split, folder: Path, device: str
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the words and the environment of a start, with copies of files in `folder`."""
        if self.command is not None:
            return start_line(msgspec.structs.replace(self.command, launch=launch), split, folder, device)
        return start_as_typed(launch, self.source, split.ranks, folder, device)


def read_typed_command(words: Sequence[str], split: Split | None, tool: str | None) -> TypedCommand:
    """Reads a command; a requested split needs braces in it, or a tool's options."""
    require_command(words)
    launch = read_launch(words)
    if split is not None or braces_in(words, launch.environment):
        command = read_command(words, tool=tool)
        return TypedCommand(tuple(words), launch, split or command.default, command)
    try:
        source = read_source(launch.program, tool or launch.tool)
    except InputError:  # the script says itself why a file cannot be read
        source = None
    ranks = launch.ranks or (1 if launch.name == "python" else 2)
    return TypedCommand(tuple(words), launch, Split(min(ranks, MAX_RANKS), 1, 1), source=source)


def as_observed(recording: Recording) -> Recording:
    """Gives a recording the split of its first step."""
    shape = recording.shape(next(iter(recording.steps)))
    rows = max((count for rank in shape for count in rank), default=1)
    loader = recording.training_loader()
    drawn = [len(batch) for batch in loader.own] if loader is not None else []
    split = Split(len(shape), max(map(len, shape), default=1), max(rows, 1, *drawn))
    return msgspec.structs.replace(recording, split=split)


def with_rollouts(settings: Recorded, record: Path) -> Recorded:
    """Gives a run's completions to all later ones."""
    played = read_rollouts(record)
    if not played:
        return settings
    path = Path(settings.folder) / "rollouts.json"
    path.write_bytes(msgspec.json.encode(played))
    return msgspec.structs.replace(settings, rollouts=str(path))


class OrderedRuns:
    """Starts of one command in several environments, each in a folder of its own."""

    def __init__(self, typed: TypedCommand, settings: Recorded, limit: float, device: str) -> None:
        self.typed, self.settings, self.limit, self.device = typed, settings, limit, device
        self.starters: dict[str, Starter] = {}
        self.changes: list[str] = []  # in the code

    def start(
        self, environment: Environment, name: str, starter: Starter | None = None, **switches: Any
    ) -> SplitRun:
        """Starts the command once, by a starter for the environment where there is one."""
        folder = Path(self.settings.folder) / name
        folder.mkdir(exist_ok=True)
        launch = environment.launch(self.typed.launch)
        words, variables = self.typed.line(launch, self.typed.split, folder, self.device)
        settings = msgspec.structs.replace(self.settings, folder=str(folder / "record"), **switches)
        line = words, environment.variables(variables), settings, self.typed.split
        starter = starter or self.starters.get(environment.label)
        run = start_run(*line, self.limit) if starter is None else starter.start(*line)
        if run.recording is None:
            return run
        return msgspec.structs.replace(run, recording=as_observed(run.recording))

    def repeat(self, environment: Environment, name: str) -> SplitRun:
        """Starts the command a second time in one environment, with noise of the size of rounding."""
        self.settings = with_rollouts(self.settings, Path(self.settings.folder) / name / "record")
        return self.start(environment, f"{name}-again", shake=True)

    def keep(self, environment: Environment) -> None:
        """Keeps a process for the further starts in an environment."""
        self.starters.setdefault(environment.label, Starter(self.limit, self.device))

    def look(self, environment: Environment) -> None:
        """Sets the split where the code has its numbers, as a first start shows them."""
        command = self.typed.command
        if command is None or not command.in_code:
            return
        run = self.at(command.default).start(environment, "typed", look=MAX_SAMPLES)
        seen, self.changes = set_in_code(self.settings, command, Path(self.settings.folder) / "typed", run)
        self.settings = msgspec.structs.replace(seen, split=self.typed.split)

    def at(self, split: Split) -> "OrderedRuns":
        """Returns the starts at another split, by the same processes."""
        settings = msgspec.structs.replace(self.settings, split=split)
        runs = OrderedRuns(
            msgspec.structs.replace(self.typed, split=split), settings, self.limit, self.device
        )
        runs.starters = self.starters
        return runs

    def close(self) -> None:
        """Ends the processes for forked starts."""
        for starter in self.starters.values():
            starter.close()


def set_in_code(
    settings: Recorded, command: Command, folder: Path, run: SplitRun
) -> tuple[Recorded, list[str]]:
    """Reads where the code has the numbers of a split: settings to set them, and the changes in words.

    Args:
        settings: of the recorder.
        command: whose code has the numbers.
        folder: of a start that looked at the code.
        run: that start.
    """
    seen = read_typed(command, folder / "record")
    if seen is None:
        raise run.no_step("the command")
    sets = {"sets": seen.sets, "loader": seen.loader, "flags": seen.flags}
    return msgspec.structs.replace(settings, **sets), seen.changes
