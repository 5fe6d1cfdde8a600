"""The first steps of a training command, beside its flags and files, and a recipe made of them."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence import braces
from isobatch.equivalence.command import cpu_notes, start_as_typed
from isobatch.equivalence.launchers import CommandLine, read_launch
from isobatch.equivalence.records import RankStep, Recording
from isobatch.equivalence.runs import Recorded, SplitRun, start_run
from isobatch.equivalence.settings import ToolSettings, read_source
from isobatch.equivalence.split import Split
from isobatch.errors import InputError

MAX_RANKS = 8
"""Processes that are started here; a command for more is seen on two."""
STEPS = 2
"""Optimizer steps before which the run is seen: at the second one the scheduler has moved as it does in the
run."""


class Running(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A command's real run. A value is None if the run does not show it.

    Attributes:
        title: of the trainer and its version.
        versions: of the libraries that the script imported.
        ranks: in its process group.
        started: processes that were started.
        launcher: that started the ranks; empty where the script may start them itself.
        typed_ranks: as the command says; None where it leaves them to the machine.
        micro_batch: samples of a rank in a pass.
        accumulation: passes of a rank before a step.
        dataset_size: rows of the training data.
        optimizer: its class.
        groups: its parameter groups, each with its values and `tensors`, how many it has.
        clip_norm: the norm above which gradients are scaled down; None: not clipped in these steps.
        scheduler: as the recorder describes it.
        rates: (step, learning rate) of the first group.
        total_steps: of the run.
        parameters: that the optimizer trains.
        arguments: of transformers' Trainer.
        stated: fields of a recipe that the command's flags and file give.
        keys: what the command calls each.
        notes: what was started otherwise, or not seen.
        seconds: that the run took.
    """

    title: str
    versions: dict[str, str]
    ranks: int
    started: int
    launcher: str
    typed_ranks: int | None
    micro_batch: int | None
    accumulation: int
    dataset_size: int | None
    optimizer: str
    groups: list[dict[str, Any]]
    clip_norm: float | None
    scheduler: dict[str, Any] | None
    rates: list[tuple[int, float]]
    total_steps: int | None
    parameters: int
    arguments: dict[str, Any] | None
    stated: dict[str, Any]
    keys: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    @property
    def effective_batch(self) -> int | None:
        """Samples of a step over the started ranks."""
        return None if self.micro_batch is None else self.ranks * self.accumulation * self.micro_batch

    @property
    def lr(self) -> float:
        """The peak learning rate of the first group, before its scheduler moved it."""
        group = self.groups[0]
        return float(group.get("initial_lr", group["lr"]))


def observe(words: Sequence[str], *, tool: str | None = None, limit: float = 600.0) -> Running:
    """Starts a command as typed, ends it before its second optimizer step, and returns its real settings.

    Args:
        words: the command, as a shell gives them.
        tool: whose flags or file it has; None: found by their names.
        limit: seconds until a step must have come.

    Raises:
        InputError: the command has braces, or ended before a step; the message has its last lines.
    """
    launch = read_launch(words)
    if names := braces.names_in(words, launch.environment):
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
        run = start_run(line, environment, settings, Split(ranks, 1, 1), limit, "cpu")
    if run.recording is None:
        how = (
            "took no optimizer step within its time"
            if run.code is None
            else f"ended with exit code {run.code}"
        )
        raise InputError(f"the command {how} before an optimizer of torch took a step:\n{run.output}")
    return _running(run, run.recording, launch, source, ranks, notes)


def _source(launch: CommandLine, tool: str | None) -> tuple[ToolSettings | None, list[str]]:
    """Reads the command's own settings, or a note if they cannot be read."""
    notes = [*launch.notes]
    try:
        source = read_source(launch.program, tool or launch.tool)
    except InputError as error:
        return None, [*notes, f"what the command says was not read: {error}"]
    if source is None:
        notes.append("the flags and files are of no tool that is known here: nothing to compare the run with")
        return None, notes
    return source, [*notes, *cpu_notes(source)]


def _running(
    run: SplitRun,
    recording: Recording,
    launch: CommandLine,
    source: ToolSettings | None,
    ranks: int,
    notes: Sequence[str],
) -> Running:
    number = max(recording.steps, key=lambda optimizer: sum(recording.steps[optimizer][0].first.entries))
    steps = recording.steps[number]
    first, last = steps[0].first, steps[-1].first
    values = last.running or {}
    more = [
        *notes,
        *(
            f"{note} ({times} times)"
            for note, times in recording.notes.items()
            if note == "gloo in the place of NCCL"
        ),
    ]
    if len(recording.steps) > 1:
        more.append(f"{len(recording.steps)} optimizers; this is the one with the most parameters")
    if len(steps) < STEPS:
        more.append("the run has one step: how its scheduler moves was not seen")
    if first.world < ranks:
        more.append(f"{ranks} processes started, and each trains alone: they form no process group")
    loader = recording.training_loader()
    loaders = [] if loader is None else [loader]
    scheduler = values.get("scheduler")
    peak = float(first.groups[0]["lr"])
    rates = [(0, peak), *((at, rate) for at, rate in (scheduler or {}).get("rates", ()) if at)]
    bounds = {limit for step in steps for _, limit in step.first.norms}
    return Running(
        title=_title(values, last.versions),
        versions=last.versions,
        ranks=first.world,
        started=ranks,
        launcher="" if launch.name == "python" else launch.name,
        typed_ranks=launch.ranks,
        micro_batch=_micro_batch(first, [loader.own for loader in loaders]),
        accumulation=len(first.passes),
        dataset_size=loaders[0].rows if loaders else None,
        optimizer=first.kind,
        groups=first.groups,
        clip_norm=min(bounds) if bounds and min(bounds) < float("inf") else None,
        scheduler=scheduler,
        rates=rates,
        total_steps=values.get("total_steps"),
        parameters=sum(entries for entries, own in zip(first.entries, first.own, strict=True) if own),
        arguments=values.get("arguments"),
        stated={} if source is None else source.fields,
        keys={} if source is None else source.keys,
        notes=tuple(more),
        seconds=run.seconds,
    )


def _title(values: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Names the trainer, and the libraries with their versions."""
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    trainer = values.get("trainer")
    return f"{trainer} ({libraries})" if trainer else f"a loop of its own ({libraries})"


def _micro_batch(record: RankStep, draws: Sequence[list[list[int]]]) -> int | None:
    """Samples of a pass: rows that the loader drew at once, else rows that the model got."""
    batches = [len(batch) for loader in draws for batch in loader]
    rows = [len(samples.hashes) for samples in record.passes]
    return max(batches, default=0) or max(rows, default=0) or None
