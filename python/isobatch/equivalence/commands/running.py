"""The first steps of a training command, beside its flags and files, and a recipe made of them."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from isobatch.equivalence.commands.braces import braces_in
from isobatch.equivalence.commands.command import cpu_notes, start_as_typed
from isobatch.equivalence.commands.runs import Recorded, start_run
from isobatch.equivalence.commands.settings import ToolSettings, read_source
from isobatch.equivalence.records import RankStep, RecordedStep, Recording
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.launch.command_line import CommandLine, read_launch, require_command
from isobatch.launch.words import given_settings
from isobatch.limits import within
from isobatch.recipes.recipe import DropLast
from isobatch.tools.unread import guess_field
from isobatch.words import counted, number_of, real

MAX_RANKS = 8
"""Processes that are started here; a command for more is seen on two."""
STEPS = 2
"""Optimizer steps before which the run is seen: at the second one the scheduler has moved as it does in the
run."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A command's real run. A value is None if the run does not show it."""

    title: str
    """The trainer, and the versions of the libraries that the script imported."""
    ranks: int
    """The ranks of its process group."""
    started: int
    launcher: str
    """Empty where the script may start its ranks itself."""
    typed_ranks: int | None
    """None where the command leaves them to the machine."""
    micro_batch: int | None
    accumulation: int
    dataset_size: int | None
    drop_last: DropLast
    optimizer: str
    groups: list[dict[str, Any]]
    """The optimizer's parameter groups, each with its values and `tensors`, their number."""
    clip_norm: float | None
    scheduler: dict[str, Any] | None
    """As the recorder describes it."""
    rates: list[tuple[int, float]]
    """Steps with the learning rate of the first group."""
    total_steps: int | None
    parameters: int
    arguments: dict[str, Any] | None
    """The arguments of transformers' Trainer."""
    stated: dict[str, Any]
    """A recipe's fields in the command's flags and file."""
    keys: dict[str, str]
    """The command's names of these fields."""
    notes: tuple[str, ...]
    seconds: float

    @property
    def effective_batch(self) -> int | None:
        """Samples of a step over the started ranks."""
        return None if self.micro_batch is None else self.ranks * self.accumulation * self.micro_batch

    @property
    def peaks(self) -> list[float]:
        """The peak learning rate of each group, before its scheduler moved it."""
        return [float(group.get("initial_lr", group["lr"])) for group in self.groups]

    @property
    def lr(self) -> float:
        """The peak learning rate of the first group."""
        return self.peaks[0]


def observe(words: Sequence[str], *, tool: str | None = None, limit: float = 600.0) -> Running:
    """Starts a command as typed, ends it before its second step, and returns its real settings."""
    require_command(words)
    launch = read_launch(words)
    if names := braces_in(words, launch.environment):
        raise InputError(f"the command runs as it is here: write a number in the place of {{{min(names)}}}")
    source, notes = _source(launch, tool)
    typed = launch.ranks
    ranks = 2 if typed is None or typed > MAX_RANKS else typed
    if typed is None:
        notes.append(f"the command leaves the number of processes to the machine: started on {ranks}")
    elif ranks != typed:
        notes.append(f"started on {ranks} of {typed} ranks; each of the {typed} is taken to run the same")
    with tempfile.TemporaryDirectory(prefix="isobatch-doctor-") as name:
        folder = Path(name)
        line, environment = start_as_typed(launch, source, ranks, folder)
        settings = Recorded(str(folder / "record"), STEPS, buckets=1, as_is=True, describe=True)
        run = start_run(line, environment, settings, Split(ranks, 1, 1), limit)
    if run.recording is None:
        raise run.no_step("the command")
    running = _running(run.recording, launch, source, ranks, notes)
    scaled = [] if source else _scaled_rates(launch.program, running)
    return msgspec.structs.replace(running, notes=(*running.notes, *scaled))


def _scaled_rates(program: Sequence[str], running: Running) -> Iterator[str]:
    """Describes the learning rates typed by a script's own flags, where its optimizer starts with another."""
    for setting in given_settings(program):
        typed = number_of(str(setting.value)) if guess_field(setting.name) == "lr" else None
        if typed and not any(within(peak - typed, 1e-6 * abs(typed)) for peak in running.peaks):
            flag = program[setting.at].partition("=")[0]
            yield (
                f"{flag} {real(typed)}: the optimizer starts with {real(running.lr)}. If the script scales "
                "its rate by the batch or the GPUs, it scales a plan's rate too: take that out before it "
                "follows a plan, or give it the rate that becomes the plan's"
            )


def _source(launch: CommandLine, tool: str | None) -> tuple[ToolSettings | None, list[str]]:
    """Reads the command's own settings, or a note if they cannot be read."""
    try:
        source = read_source(launch.program, tool or launch.tool)
    except InputError as error:
        return None, [*launch.notes, f"what the command says was not read: {error}"]
    if source is None:
        note = "the flags and files are of no tool that is known here: nothing to compare the run with"
        return None, [*launch.notes, note]
    return source, [*launch.notes, *cpu_notes(source)]


def _running(
    recording: Recording, launch: CommandLine, source: ToolSettings | None, ranks: int, notes: list[str]
) -> Running:
    optimizers = {optimizer for optimizer, _ in recording.steps}
    steps = max(map(recording.of, sorted(optimizers)), key=lambda steps: _own_entries(steps[0].first))
    first, last = steps[0].first, steps[-1].first
    gloo = "gloo in the place of NCCL"
    if times := recording.notes("change")[gloo]:
        notes.append(f"{gloo} ({times} times)")
    if len(optimizers) > 1:
        notes.append(f"{len(optimizers)} optimizers; this is the one with the most parameters")
    if len(steps) < STEPS:
        notes.append("the run has one step: how its scheduler moves was not seen")
    if first.world < ranks:
        notes.append(f"{ranks} processes started, and each trains alone: they form no process group")
    loader = recording.training_loader()
    drawn = max(map(len, loader.own), default=0) if loader else 0
    micro_batch, accumulation = _split_of(steps, drawn)
    if accumulation < len(first.passes):
        given = counted(accumulation, "batch", "batches")
        notes.append(f"{len(first.passes)} passes in a step over {given} of the loader: a batch counts once")
    running = last.running or {}
    scheduler = running.get("scheduler")
    peak = float(first.groups[0]["lr"])
    clip_norm = min((limit for step in steps for _, limit in step.first.clips), default=float("inf"))
    libraries = ", ".join(f"{name} {version}" for name, version in last.versions.items())
    return Running(
        title=f"{running.get('trainer') or 'a loop of its own'} ({libraries})",
        ranks=first.world,
        started=ranks,
        launcher="" if launch.name == "python" else launch.name,
        typed_ranks=launch.ranks,
        micro_batch=micro_batch or None,
        accumulation=accumulation,
        dataset_size=loader.rows if loader else None,
        drop_last=_drops(loader.drops) if loader else False,
        optimizer=first.kind,
        groups=first.groups,
        clip_norm=clip_norm if clip_norm < float("inf") else None,
        scheduler=scheduler,
        rates=[(0, peak), *((at, rate) for at, rate in (scheduler or {}).get("rates", ()) if at)],
        total_steps=running.get("total_steps"),
        parameters=_own_entries(first),
        arguments=running.get("arguments"),
        stated={} if source is None else source.fields,
        keys={} if source is None else source.keys,
        notes=tuple(notes),
        seconds=recording.seconds,
    )


def _own_entries(step: RankStep) -> int:
    """Counts the parameters of a step's optimizer."""
    return sum(entries for entries, own in zip(step.entries, step.own, strict=True) if own)


def _split_of(steps: Sequence[RecordedStep], drawn: int) -> tuple[int, int]:
    """Returns the samples of a pass and the passes of a step; 0 samples where none were seen.

    A batch that a loader gave counts once: a GAN passes back twice over it, and a large one may be cut into
    passes. The fewest batches of a step count, since loops read ahead before the first.
    """
    passes = steps[0].first.passes
    passed = max((len(samples.hashes) for samples in passes), default=0)
    given = min(sum(samples.batches for samples in step.first.passes) for step in steps)
    if not drawn or not 0 < given < len(passes):
        return drawn or passed, len(passes)
    if passed * len(passes) == given * drawn:
        return passed, len(passes)
    return drawn, given


def _drops(drops: Mapping[str, bool]) -> DropLast:
    """Returns a recipe's `drop_last`; a loader alone drops as its sampler would."""
    dropping = [name for name, drop in drops.items() if drop]
    if len(dropping) == len(drops):
        return bool(dropping)
    return cast("DropLast", dropping[0]) if dropping else False
