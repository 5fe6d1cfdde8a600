"""What a training command really runs, seen in its first steps, beside what its flags and files say; and a recipe made of it."""

import inspect
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from isobatch import schedules
from isobatch.equivalence import braces
from isobatch.equivalence.command import start_as_typed
from isobatch.equivalence.launchers import Launch, read_launch
from isobatch.equivalence.records import RankStep, Recording
from isobatch.equivalence.runs import Recorded, Run, start_run
from isobatch.equivalence.settings import Source, read_source
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.planning.plan import plan
from isobatch.recipes.recipe import Recipe
from isobatch.tools.read import read_file
from isobatch.words import count, counted, few, real

MAX_RANKS = 8
"""Processes that are started here; a command for more is seen on two."""
STEPS = 2
"""Optimizer steps before which the run is seen: at the second one the scheduler has moved as it does in the run."""
_OPTIMIZERS = {
    "sgd": ("SGD",),
    "adam": ("Adam",),
    "adamw": ("AdamW", "AdamW8bit", "PagedAdamW8bit", "DeepSpeedCPUAdam", "FusedAdam"),
    "rmsprop": ("RMSprop",),
    "lamb": ("LAMB", "Lamb", "FusedLamb"),
    "lion": ("Lion",),
    "muon": ("Muon",),
    "adafactor": ("Adafactor",),
}
"""By a recipe's name, the classes that are it."""
_CLOSE = 1e-6
"""Relative distance of two equal numbers, one of which may have been text."""
_SAID = (
    "gpus",
    "micro_batch",
    "accumulation",
    "effective_batch",
    "lr",
    "optimizer",
    "betas",
    "eps",
    "weight_decay",
    "momentum",
)
_WORDS = {
    "gpus": "ranks",
    "lr": "learning rate",
    "micro_batch": "micro-batch",
    "effective_batch": "effective batch",
}


class Difference(msgspec.Struct, frozen=True):
    """A setting that runs otherwise than the command says.

    Attributes:
        field: of a recipe, or "schedule".
        said: by the command, with the name of the flag or of the setting in its file.
        seen: in the run.
    """

    field: str
    said: str
    seen: str


class Running(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a command runs. A value is None where the run does not show it.

    Attributes:
        title: of the trainer and its version.
        versions: of the libraries that the script imported.
        ranks: in its process group.
        started: processes that were started.
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
        said: fields of a recipe that the command's flags and file give.
        keys: what the command calls each.
        notes: what was started otherwise, or not seen.
        seconds: that the run took.
    """

    title: str
    versions: dict[str, str]
    ranks: int
    started: int
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
    said: dict[str, Any]
    keys: dict[str, str]
    notes: tuple[str, ...]
    seconds: float

    @property
    def effective_batch(self) -> int | None:
        """Samples of a step over the ranks that ran."""
        return None if self.micro_batch is None else self.ranks * self.accumulation * self.micro_batch

    @property
    def lr(self) -> float:
        """The peak learning rate of the first group, before its scheduler moved it."""
        group = self.groups[0]
        return float(group.get("initial_lr", group["lr"]))

    @cached_property
    def differences(self) -> tuple[Difference, ...]:
        """What runs otherwise than the command says."""
        return tuple(_differences(self))

    def recipe(self, given: Mapping[str, Any] | None = None) -> Recipe:
        """Makes the recipe of the run: what was seen, and of its length and schedule what its trainer's arguments or the command say.

        Args:
            given: fields that win over what was seen.

        Raises:
            InputError: the run does not show a field that a recipe needs; the message has the --set that gives it.
        """
        return Recipe(**_recipe_fields(self, given or {}))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def observe(words: Sequence[str], *, tool: str | None = None, limit: float = 600.0) -> Running:
    """Starts a command as it is, ends it before its second optimizer step, and returns what it ran with.

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
        settings = Recorded(str(folder / "record"), STEPS, ranks, buckets=1, as_is=True, describe=True)
        run = start_run(line, environment, settings, Split(ranks, 1, 1), limit, "cpu")
    if run.recording is None:
        how = (
            "took no optimizer step within its time"
            if run.code is None
            else f"ended with exit code {run.code}"
        )
        raise InputError(f"the command {how} before an optimizer of torch took a step:\n{run.output}")
    return _running(run, run.recording, launch, source, ranks, notes)


def _source(launch: Launch, tool: str | None) -> tuple[Source | None, list[str]]:
    """Reads what the command says; a note where that cannot be read."""
    notes = [*launch.notes]
    try:
        source = read_source(launch.program, tool or launch.tool)
    except InputError as error:
        return None, [*notes, f"what the command says was not read: {error}"]
    if source is None:
        notes.append("the flags and files are of no tool that is known here: nothing to compare the run with")
    return source, notes


def _running(
    run: Run, recording: Recording, launch: Launch, source: Source | None, ranks: int, notes: Sequence[str]
) -> Running:
    number = max(recording.steps, key=lambda one: sum(recording.steps[one][0].first.entries))
    steps = recording.steps[number]
    first, last = steps[0].first, steps[-1].first
    seen = last.running or {}
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
    loaders = last.drawn if loader is None else last.drawn[loader : loader + 1]
    scheduler = seen.get("scheduler")
    peak = float(first.groups[0]["lr"])
    rates = [(0, peak), *((at, rate) for at, rate in (scheduler or {}).get("rates", ()) if at)]
    bounds = {limit for step in steps for _, limit in step.first.norms}
    return Running(
        title=_title(seen, last.versions),
        versions=last.versions,
        ranks=first.world,
        started=ranks,
        typed_ranks=launch.ranks,
        micro_batch=_micro_batch(first, [loader.own for loader in loaders]),
        accumulation=len(first.passes),
        dataset_size=loaders[0].rows if loaders else None,
        optimizer=first.kind,
        groups=first.groups,
        clip_norm=min(bounds) if bounds and min(bounds) < float("inf") else None,
        scheduler=scheduler,
        rates=rates,
        total_steps=seen.get("total_steps"),
        parameters=sum(entries for entries, own in zip(first.entries, first.own, strict=True) if own),
        arguments=seen.get("arguments"),
        said={} if source is None else source.fields,
        keys={} if source is None else source.keys,
        notes=tuple(more),
        seconds=run.seconds,
    )


def _title(seen: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Names the trainer, and the libraries with their versions."""
    libraries = ", ".join(f"{name} {version}" for name, version in versions.items())
    trainer = seen.get("trainer")
    return f"{trainer} ({libraries})" if trainer else f"a loop of its own ({libraries})"


def _micro_batch(record: RankStep, draws: Sequence[list[list[int]]]) -> int | None:
    """Samples of a pass: rows that the loader drew at once, else rows that the model got."""
    batches = [len(batch) for loader in draws for batch in loader]
    rows = [len(one.hashes) for one in record.passes]
    return max(batches, default=0) or max(rows, default=0) or None


def _observed(running: Running) -> dict[str, Any]:
    """The fields of a recipe that were seen."""
    group = running.groups[0]
    name = next((ours for ours, classes in _OPTIMIZERS.items() if running.optimizer in classes), None)
    decays = [float(one.get("weight_decay") or 0.0) for one in running.groups]
    betas = group.get("betas")
    return {
        "gpus": running.ranks,
        "micro_batch": running.micro_batch,
        "accumulation": running.accumulation,
        "effective_batch": running.effective_batch,
        "lr": running.lr,
        "optimizer": name,
        "betas": tuple(betas) if betas else None,
        "eps": group.get("eps") if isinstance(group.get("eps"), float) else None,
        "weight_decay": max(decays),
        "momentum": group.get("momentum"),
        "clip_norm": running.clip_norm,
        "dataset_size": running.dataset_size,
    }


def _differences(running: Running) -> Iterator[Difference]:
    observed, said = _observed(running), dict(running.said)
    said["gpus"] = running.started
    said.setdefault("micro_batch", said.get("batch_per_gpu"))
    keys = {**running.keys, "gpus": "the launcher"}
    keys.setdefault("micro_batch", keys.get("batch_per_gpu", ""))
    if running.typed_ranks != running.started:
        said.pop("effective_batch", None)
    for field in (*_SAID, "clip_norm"):
        typed, seen = said.get(field), observed[field]
        if field == "clip_norm" and running.said and typed is None and seen is not None:
            yield Difference("clipping", "none", f"norm at most {real(seen)}")
        elif typed is not None and not _alike(typed, seen):
            yield Difference(
                _WORDS.get(field, field), f"{_shown(typed)} ({keys.get(field) or 'default'})", _shown(seen)
            )
    schedule = _schedule_difference(running)
    if schedule is not None:
        yield schedule


def _alike(said: Any, seen: Any) -> bool:
    if isinstance(said, int | float) and isinstance(seen, int | float):
        return abs(said - seen) <= _CLOSE * max(abs(said), abs(seen))
    if isinstance(said, list | tuple) and isinstance(seen, list | tuple):
        return len(said) == len(seen) and all(map(_alike, said, seen))
    return bool(said == seen)


def _shown(value: Any) -> str:
    if value is None:
        return "not seen"
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return real(value) if isinstance(value, float) else str(value)


def _schedule_difference(running: Running) -> Difference | None:
    """Compares the rates of the run with the schedule that its recipe has."""
    times = (running.scheduler or {}).get("steps")
    if times is not None and times > 1:
        return Difference(
            "scheduler", "one step for each of the optimizer", f"{times} steps for each of the optimizer"
        )
    try:
        recipe = running.recipe()
        made = plan(recipe, running.ranks)
        at = made.lr_at
        differing = [
            (step, at(step), rate) for step, rate in running.rates if abs(at(step) - rate) > 1e-3 * running.lr
        ]
    except InputError:
        return None
    if not differing:
        return None
    step, planned, rate = max(differing, key=lambda one: abs(one[1] - one[2]))
    said = f"{real(planned)} at step {count(step + 1)} ({recipe.schedule}, warmup {recipe.warmup or 'none'})"
    return Difference("learning rate", said, real(rate))


def _recipe_fields(running: Running, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe: given, else seen, else of the trainer's arguments or the command.

    Raises:
        InputError: the batch, the optimizer or the schedule is in none of these.
    """
    base = dict(running.said)
    if running.arguments is not None:
        base = dict(read_file(running.arguments, "transformers").fields)
    base.pop("batch_per_gpu", None)
    seen = {name: value for name, value in _observed(running).items() if value is not None}
    fields = {
        name: value for name, value in {**base, **seen, **given}.items() if name in Recipe.__struct_fields__
    }
    typed = running.typed_ranks
    if (
        typed is not None
        and typed != running.started
        and running.ranks == running.started
        and running.effective_batch
    ):
        fields.setdefault("gpus", typed)
        fields |= {"gpus": typed, "effective_batch": running.effective_batch // running.ranks * typed}
    for name, what in (
        ("effective_batch", "the samples of a step were not seen"),
        ("optimizer", f"{running.optimizer} is none that a rule knows"),
    ):
        if name not in fields:
            raise InputError(f"{what}: give --set {name}=VALUE", field=name)
    if "schedule" not in fields:
        fields["schedule"] = _seen_schedule(running)
    if running.total_steps is not None:
        fields.setdefault("duration", f"{running.total_steps}st")
    return fields


def _seen_schedule(running: Running) -> Any:
    """The schedule of a scheduler of torch, where its values say it; constant without a scheduler.

    Raises:
        InputError: the scheduler cannot be read.
    """
    scheduler = running.scheduler
    if scheduler is None:
        return "constant"
    make = getattr(schedules.torch, scheduler["kind"], None)
    if make is not None and scheduler["steps"] == 1:
        names = [name for name in inspect.signature(make).parameters if name in scheduler["state"]]
        try:
            return make(running.lr, **{name: scheduler["state"][name] for name in names})
        except (InputError, TypeError):
            pass
    raise InputError(
        f"the schedule of {scheduler['kind']} was not recognized in the run: give --set schedule=NAME",
        field="schedule",
    )


def _lines(running: Running) -> Iterator[str]:
    yield f"Runs {running.title}, seen for {running.seconds:.0f} s and ended before its second optimizer step"
    if running.effective_batch is None:
        passes = counted(running.accumulation, "pass", "passes")
        yield f"A step: {counted(running.ranks, 'rank')} × {passes} of a batch that was not seen"
    else:
        yield (
            f"A step has {counted(running.effective_batch, 'sample')}: {counted(running.ranks, 'rank')} × "
            f"{counted(running.accumulation, 'pass', 'passes')} × {counted(running.micro_batch or 0, 'sample')}"
        )
    size = running.dataset_size
    yield "Dataset: its size was not seen" if size is None else f"Dataset: {counted(size, 'row')}"
    yield f"Optimizer: {running.optimizer} of {counted(running.parameters, 'parameter')}"
    yield from (f"  {_group_line(group)}" for group in running.groups)
    clip = running.clip_norm
    yield "Clipping: none in this step" if clip is None else f"Clipping: gradient norm at most {real(clip)}"
    yield from _schedule_lines(running)
    yield from running.notes
    if running.differences:
        yield "Differs from what the command says:"
        yield from (f"  {one.field}: {one.said}, runs {one.seen}" for one in running.differences)
    elif running.said:
        yield "As the command says."


def _group_line(group: Mapping[str, Any]) -> str:
    names = ("initial_lr" if "initial_lr" in group else "lr", "betas", "eps", "momentum", "weight_decay")
    values = {name: group[name] for name in names if group.get(name) is not None}
    tensors = f"{group['tensors']} tensors: " if "tensors" in group else ""
    return tensors + ", ".join(
        f"{name.removeprefix('initial_')} {_shown(value)}" for name, value in values.items()
    )


def _schedule_lines(running: Running) -> Iterator[str]:
    scheduler, total = running.scheduler, running.total_steps
    of = "a run of unknown length" if total is None else counted(total, "step")
    if scheduler is None:
        yield f"Learning rate: {real(running.lr)}, no scheduler of torch; {of}"
        return
    steps = scheduler["steps"]
    if steps == 0:
        yield f"Learning rate: {scheduler['kind']}, which the script does not step with its optimizer; {of}"
        return
    rates = few([f"{real(rate)} at step {count(step + 1)}" for step, rate in running.rates], 20)
    yield f"Learning rate: {scheduler['kind']}, {of}: {rates}"
