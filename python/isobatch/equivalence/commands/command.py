"""A training command, started at any split of its batch with only the numbers of the split changed."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from isobatch.equivalence.commands.braces import braces_in, fill_braces, settled_by
from isobatch.equivalence.commands.nanogpt import NANOGPT, is_nanogpt, nanogpt_split, write_nanogpt
from isobatch.equivalence.commands.settings import (
    STARTS_ITSELF,
    TOOLS,
    ToolSettings,
    cpu_changes,
    read_source,
    split_changes,
    write_for_cpu,
    write_values,
)
from isobatch.equivalence.split import DEFAULT, MAX_RANKS, Split, shrink
from isobatch.errors import InputError
from isobatch.launch.command_line import CPU, CommandLine, read_launch
from isobatch.launch.words import given_settings
from isobatch.tools.unread import guess_field
from isobatch.words import few, nearest

_BRACES = {
    "batch_per_gpu": "{micro_batch}",
    "batch": "{micro_batch}",
    "accumulation": "{accumulation}",
    "effective_batch": "{effective_batch}",
}
"""By what a flag's name seems to mean, the brace to offer for it."""


_NO_ARGUMENTS = ("torchtune", "deepspeed", STARTS_ITSELF)
"""Tools without transformers' TrainingArguments."""


class Command(msgspec.Struct, frozen=True):
    """A parsed command."""

    words: tuple[str, ...]
    """As they were typed."""
    launch: CommandLine
    tool: str | None = None
    """The tool whose settings are written; None where braces say where the numbers go."""
    own: Split | None = None
    """The split as typed; None under braces."""
    source: ToolSettings | None = None
    """The tool's settings; None under braces."""
    in_code: bool = False
    """Whether the code has numbers of the split: a first run shows them, and the recorder sets them."""

    @property
    def adds_flags(self) -> bool:
        """Whether a split adds further flags of the tool to those typed."""
        if self.source is None or self.source.file is not None:
            return False
        return any(name not in self.source.typed for name in split_changes(self.source, DEFAULT))

    def as_typed(self) -> "Command":
        """Leaves the numbers to the code, where the script does not have the tool's flags."""
        return msgspec.structs.replace(self, tool=None, own=None, source=None, in_code=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Settings with another value on the CPU, for the report."""
        if self.tool == NANOGPT:
            return ("eval_iters 1, dtype float32, compile off",)
        return () if self.source is None else cpu_notes(self.source)

    @property
    def sets(self) -> tuple[str, ...]:
        """The kinds of objects set by the recorder beside the words, from the first run on."""
        built_on = self.source is not None and self.source.tool not in _NO_ARGUMENTS
        return ("arguments",) if built_on else ()

    @property
    def default(self) -> Split:
        """The split to compare by default: the command's own, or DEFAULT's passes, made smaller."""
        ranks = self.launch.ranks or DEFAULT.ranks
        if self.in_code:
            settled = settled_by(self.words, self.launch.environment)
            passes = DEFAULT.accumulation if settled.accumulation else 1
            return Split(min(ranks, MAX_RANKS), passes, DEFAULT.micro_batch)
        return shrink(self.own or Split(ranks, DEFAULT.accumulation, DEFAULT.micro_batch))


def read_command(words: Sequence[str], *, tool: str | None = None) -> Command:
    """Reads a command line and its way to change the split: its braces, else its tool's flags and file.

    Raises:
        InputError: the command cannot be split; the message says what to write.
    """
    launch = read_launch(words)
    names = braces_in(words, launch.environment)
    if names - {"gpus"}:
        return Command(tuple(words), launch, in_code=not all(settled_by(words, launch.environment)))
    if tool is not None:
        tool = _known_tool(tool)
    if tool == NANOGPT or (tool is None and launch.tool is None and is_nanogpt(launch.program)):
        return Command(tuple(words), launch, NANOGPT, nanogpt_split(launch.program, launch.ranks or 1))
    source = read_source(launch.program, tool or launch.tool)
    if source is None:
        if not launch.name and not names:
            raise cannot_split(words, launch, "no tool is recognized by its flags or files")
        return Command(tuple(words), launch, in_code=True)
    ranks = launch.ranks
    if ranks is None or (source.tool == STARTS_ITSELF and launch.name == "python"):
        ranks = source.ranks()
    return Command(tuple(words), launch, source.tool, source.split(ranks or DEFAULT.ranks), source)


def start_line(
    command: Command, split: Split, folder: Path, device: str = "cpu"
) -> tuple[list[str], dict[str, str]]:
    """Returns the words and the environment of a start on a device, with copies of files in `folder`."""
    launch, program, on_cpu = command.launch, list(command.launch.program), device == "cpu"
    if command.tool == NANOGPT:
        program = write_nanogpt(program, split, on_cpu=on_cpu)
    elif command.source is not None:
        values = split_changes(command.source, split) | (cpu_changes(command.source) if on_cpu else {})
        program = write_values(command.source, program, values, split, folder)
    # A program that is handed the number of its ranks starts them itself.
    starts_itself = command.tool == STARTS_ITSELF or any(
        "{gpus}" in word for word in (*launch.program, *launch.environment.values())
    )
    words = launch.start(split.ranks, program, itself=starts_itself)
    environment = {name: fill_braces(value, split) for name, value in launch.environment.items()}
    return [fill_braces(word, split) for word in words], environment | (CPU if on_cpu else {})


def cpu_notes(source: ToolSettings) -> tuple[str, ...]:
    """Lists the settings of a tool changed for the CPU."""
    changes = [f"{name} {str(value).lower()}" for name, value in cpu_changes(source).items()]
    return (f"for the CPU: {few(changes)}",) if changes else ()


def start_as_typed(
    launch: CommandLine, source: ToolSettings | None, ranks: int, folder: Path, device: str = "cpu"
) -> tuple[list[str], dict[str, str]]:
    """Returns the words and the extra environment to start a command as typed on this machine."""
    on_cpu = device == "cpu"
    program = [*launch.program]
    if source is not None and on_cpu:
        program = write_for_cpu(source, launch.program, folder)
    starts_itself = source is not None and source.tool == STARTS_ITSELF
    words = launch.start(ranks, program, itself=starts_itself)
    return words, {**launch.environment, **(CPU if on_cpu else {})}


def _known_tool(tool: str) -> str:
    """Returns a tool's name as the readers have it."""
    plain = tool.lower().replace("-", "_")
    known = (*TOOLS, NANOGPT)
    if plain not in known:
        close = nearest(tool, known)
        hint = f"did you mean {close!r}?" if close else f"there are {few(known, 40)}"
        raise InputError(f"--tool {tool!r} cannot be split by its settings: {hint}", field="--tool")
    return plain


def cannot_split(words: Sequence[str], launch: CommandLine, why: str) -> InputError:
    """Describes a command without numbers to change, with the same command in braces."""
    example, flags = [*words], []
    first = len(words) - len(launch.program) if launch.name in ("torchrun", "python") else 0
    for setting in given_settings(words):
        flag = words[setting.at].partition("=")[0]
        brace = _BRACES.get(guess_field(setting.name) or "")
        if setting.at < first:
            brace = "{gpus}" if setting.name in ("nproc_per_node", "num_processes", "num_gpus") else None
        elif brace is not None and setting.value is not True:
            flags.append(flag)
        if brace is None or setting.value is True:
            continue
        if setting.joined:
            example[setting.at] = f"{flag}={brace}"
        else:
            example[setting.at + 1] = brace
    looks = f"look{'s' if len(flags) == 1 else ''} like a batch"
    for brace, flag in (("{micro_batch}", "--batch-size"), ("{accumulation}", "--accumulation")):
        if not any(brace in word for word in example) and "{effective_batch}" not in example:
            example += [flag, brace]
    return InputError(
        f"the command cannot be split: {why}, and "
        f"{few(flags) if flags else 'no flag'} {looks if flags else 'looks like a batch'}. Write where the "
        "numbers go, by the script's own flags ({effective_batch} where a flag counts the samples of all "
        f"ranks):\n  isobatch same -- {' '.join(example)}\nor name the tool with --tool"
    )
