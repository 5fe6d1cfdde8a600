"""The recording of a run, read back: samples, gradients and learning rates of each optimizer step."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from isobatch.equivalence.details import InputTensor, StepDetails
from isobatch.equivalence.split import Split

Vector = npt.NDArray[np.float64]
Event = tuple[int, int]
"""An optimizer and the number of its step, both from 0."""
Parts = Sequence[Sequence[Sequence[object]]]
"""A step's samples, by rank and pass: rows of a dataset, or hashes."""


class PassSamples(msgspec.Struct, frozen=True):
    """A pass: a hash of each sample, and the tokens after and before the labels' shift.

    `finite`: whether its loss is a number; `inputs`: its tensors, where details are kept;
    `batches`: the loaders' since the pass before.
    """

    hashes: list[str]
    tokens: list[int]
    finite: bool = True
    loss: float | None = None
    inputs: list[InputTensor] = []
    batches: int = 0


class LoaderDraws(msgspec.Struct, frozen=True):
    """A loader's draws.

    Attributes:
        name: of its dataset, the same in every rank and split.
        passes: backward passes before which it was the last to draw.
        batches, own: rows by batch, those given in the place of the drawn ones, and as drawn.
        starts: batches before which an epoch begins.
        drops: whether the loader, and its sampler over ranks, leave out the last rows of an epoch.
    """

    name: str
    passes: int
    rows: int | None
    batches: list[list[int]]
    own: list[list[int]]
    starts: list[int] = []
    drops: dict[str, bool] = {}


class RankStep(msgspec.Struct, frozen=True, dict=True):
    """One rank's record of an optimizer's step; a sketch has `sizes` buckets for each tensor of `names`.

    `mesh`: the rank's coordinate in the script's DeviceMesh and the size there, by the dimension's name.
    `notes`: by their kind and text, how often.
    `measured`: "gradient"; "update" where an engine keeps it to itself: the first step's gradient is then
    read from the weights, and later ones stand for the change of the weights.
    `shapes`, `held`, `held_norm`, `groups_made`: where whole tensors are kept, their shapes, the entries and
    the norm of the gradient that this rank alone holds, and the sizes of meshes and process groups.
    """

    optimizer: int
    step: int
    rank: int
    kind: str
    world: int
    groups: list[dict[str, Any]]
    names: list[str]
    sizes: list[int]
    entries: list[int]
    own: list[bool]
    half: bool
    passes: list[PassSamples]
    norms: list[tuple[float | None, float | None]]
    drawn: list[LoaderDraws]
    notes: dict[str, dict[str, int]]
    seconds: float
    versions: dict[str, str]
    trainer: str = ""
    mesh: dict[str, tuple[int, int]] = {}
    measured: str = "gradient"
    shapes: list[list[int]] = []
    held: int = 0
    held_norm: float = 0.0
    groups_made: list[int] = []
    completions: int = 0
    """Calls so far that generated completions, or played them back."""
    running: dict[str, Any] | None = None
    indices: dict[str, list[list[int]]] = {}
    """By line of the code, the rows of each pass, drawn by a loop without a loader."""
    details: StepDetails | None = None
    checkpoints: dict[str, list[str]] = {}
    """Files of states by the steps after which they were written."""

    @property
    def lrs(self) -> list[float]:
        """Returns the learning rate of each parameter group."""
        return [float(group["lr"]) for group in self.groups if isinstance(group.get("lr"), int | float)]

    @property
    def clips(self) -> list[tuple[float, float]]:
        """Returns the norms before clipping, each with its bound: NaN and infinity where unknown."""
        return [
            (math.nan if norm is None else norm, math.inf if limit is None else limit)
            for norm, limit in self.norms
        ]

    @cached_property
    def columns(self) -> npt.NDArray[np.bool_]:
        """Marks the buckets of this optimizer's tensors."""
        return np.repeat(np.array(self.own, dtype=bool), self.sizes)


class RecordedStep(msgspec.Struct, frozen=True):
    """A step of an optimizer, as all ranks recorded it.

    Attributes:
        gradients: (ranks, buckets), the gradient that the optimizer applies.
        weights: (ranks, buckets), the parameters before the step.
        changes: (passes, buckets) of rank 0, what each pass added to the gradient; empty where unrecorded.
        after: (ranks, buckets), the parameters after the step; None where it was not seen to end.
        further: the changes of the other ranks.
    """

    ranks: list[RankStep]
    gradients: Vector
    weights: Vector
    changes: Vector
    after: Vector | None = None
    further: list[Vector] = []

    @property
    def first(self) -> RankStep:
        """Returns the record of rank 0."""
        return self.ranks[0]

    @property
    def hashes(self) -> list[list[list[str]]]:
        """Returns the hashes of the samples, by rank and pass."""
        return [[samples.hashes for samples in record.passes] for record in self.ranks]


class Recording(msgspec.Struct, frozen=True):
    """A run of a split: its steps by event, in order."""

    split: Split
    seconds: float
    steps: dict[Event, RecordedStep]

    def of(self, optimizer: int) -> list[RecordedStep]:
        """Lists the steps of one optimizer."""
        return [step for (number, _), step in self.steps.items() if number == optimizer]

    def before(self, event: Event) -> list[RecordedStep]:
        """Lists the steps of an optimizer before one of them: a restart's first step need not be 0."""
        return [step for (number, at), step in self.steps.items() if number == event[0] and at < event[1]]

    def update(self, optimizer: int) -> Vector | None:
        """Returns the change of an optimizer's weights over all steps; None where one did not end."""
        steps = self.of(optimizer)
        if not steps or steps[-1].after is None:
            return None
        if steps[-1].after.shape != steps[0].weights.shape:  # parameters came after the first step
            return None
        change: Vector = steps[-1].after[0] - steps[0].weights[0]
        return np.where(steps[0].first.columns, change, 0.0)

    @property
    def measured(self) -> str:
        """Tells how the first step was seen: "gradient" or "update"."""
        return next(iter(self.steps.values())).first.measured

    @property
    def last_steps(self) -> list[RecordedStep]:
        """Lists the steps of the optimizer with the most."""
        return max((self.of(number) for number, _ in self.steps), key=len)

    @property
    def last(self) -> RecordedStep:
        """Returns the last recorded step."""
        return max(self.steps.values(), key=lambda step: step.first.seconds)

    def notes(self, *kinds: str) -> Counter[str]:
        """Counts the recorder's notes of some kinds over all ranks."""
        counts = Counter[str]()
        for record in self.last.ranks:
            for kind in kinds:
                counts.update(record.notes.get(kind, {}))
        return counts

    @property
    def changes(self) -> list[str]:
        """Lists the recorder's changes: settings switched off, and others."""
        return [*self.notes("off", "change")]

    def training_loader(self, rank: int = 0) -> LoaderDraws | None:
        """Returns the loader of a rank's training: the one with the most passes, then with the most rows."""
        return max(
            self.last.ranks[rank].drawn,
            key=lambda loader: (loader.passes, sum(map(len, loader.batches))),
            default=None,
        )

    def rows(self, event: Event, *, own: bool = False) -> list[list[list[int]]] | None:
        """Returns the dataset rows of a step, by rank and pass; None where the draws do not tell.

        `own`: the rows as the script draws them, not those given in their place.
        """
        by_rank = []
        for rank, record in enumerate(self.steps[event].ranks):
            before = sum(len(earlier.ranks[rank].passes) for earlier in self.before(event))
            loader = self.training_loader(rank)
            if loader is None or self.draws_prompts:
                return None
            batches = (loader.own if own else loader.batches)[before : before + len(record.passes)]
            if len(batches) < len(record.passes) or any(len(b) > self.split.micro_batch for b in batches):
                return None
            by_rank.append(batches)
        return by_rank

    def drawn_steps(self) -> list[list[int]]:
        """Returns the dataset rows of each step over all ranks; none where no loader drew any.

        A script that passes a batch through the model twice draws the batches of a step all the same; a
        pipeline's draws several passes at once.
        """
        optimizer = next(iter(self.steps))[0]
        steps = [self.rows(event) for event in self.steps if event[0] == optimizer]
        if None in steps:
            loaders = [self.training_loader(rank) for rank in range(len(self.last.ranks))]
            batches = [[] if loader is None else loader.own for loader in loaders]
            rows, drawn = self.split.micro_batch, max(map(len, chain(*batches)), default=0)
            size = max(1, self.split.accumulation * rows // max(rows, drawn))
            whole = range(0, min(map(len, batches)) - size + 1, size)
            steps = [[rank[first : first + size] for rank in batches] for first in whole]
        return [[row for rank in step for batch in rank for row in batch] for step in steps if step]

    def shape(self, event: Event) -> list[list[int]]:
        """Returns the samples of each pass, by rank: dataset rows as drawn, else rows of the input."""
        by_rank = []
        for rank, record in enumerate(self.steps[event].ranks):
            before = sum(len(earlier.ranks[rank].passes) for earlier in self.before(event))
            loader = self.training_loader(rank)
            batches = [] if loader is None else loader.own[before : before + len(record.passes)]
            is_by_pass = all(len(batch) <= self.split.micro_batch for batch in batches)
            drawn = len(batches) == len(record.passes) and is_by_pass and not self.draws_prompts
            rows: Sequence[Sequence[object]] = (
                batches if drawn else [samples.hashes for samples in record.passes]
            )
            by_rank.append([len(part) for part in rows])
        return by_rank

    @property
    def draws_prompts(self) -> bool:
        """Whether the loader draws prompts of completions: other rows than those of the passes.

        A trainer of groups draws a prompt as often as its group is large, or those of a whole step at once.
        """
        if not self.last.first.completions:
            return False
        loaders = filter(None, map(self.training_loader, range(len(self.last.ranks))))
        batches = [batch for loader in loaders for batch in loader.own[: self.split.accumulation]]
        rows = [row for batch in batches for row in batch]
        return len({*rows}) < len(rows) or any(len(batch) > self.split.micro_batch for batch in batches)

    def draws(self) -> tuple[str, list[list[int]]]:
        """Returns the loader's name or the drawing line, and the rows of each step over all ranks."""
        loader = self.training_loader()
        return self.steps_by_hand() if loader is None else (loader.name, self.drawn_steps())

    def steps_by_hand(self) -> tuple[str, list[list[int]]]:
        """Returns the line of a loop's own draws of rows, and the rows of each step over all ranks."""
        ranks = [record.indices for record in self.last.ranks]
        size, steps = self.split.accumulation, len(self.of(next(iter(self.steps))[0]))
        for line in ranks[0]:
            batches = [rank.get(line, []) for rank in ranks]
            if all(len(rank) >= size * steps for rank in batches):
                parts = [range(first, first + size) for first in range(0, size * steps, size)]
                return line, [[row for rank in batches for at in part for row in rank[at]] for part in parts]
        return "", []

    @property
    def draws_alike_by_hand(self) -> bool:
        """Whether every one of several ranks draws the same rows by hand."""
        draws = [record.indices for record in self.last.ranks]
        return len(draws) > 1 and bool(draws[0]) and all(rank == draws[0] for rank in draws)

    def has_shape(self, split: Split) -> bool:
        """Tells whether the first step has the ranks, passes and samples of a split."""
        shape = [[split.micro_batch] * split.accumulation] * split.ranks
        return self.shape(next(iter(self.steps))) == shape

    def samples(self, event: Event) -> int:
        """Counts the samples of a step over all ranks: dataset rows if known, else rows of the input."""
        rows = self.rows(event)
        parts: Parts = self.steps[event].hashes if rows is None else rows
        return sum(len(part) for rank in parts for part in rank)


def as_passes(run: Recording) -> Recording:
    """Joins steps of one optimizer as the passes of one step: no weight changed between them."""
    optimizer = next(iter(run.steps))[0]
    steps = run.of(optimizer)
    passes = [samples for step in steps for samples in step.first.passes]
    changes = np.stack([step.gradients[0] for step in steps])
    first = msgspec.structs.replace(steps[-1].first, step=0, passes=passes)
    joined = RecordedStep([first], changes.mean(0)[None], steps[0].weights[:1], changes)
    split = Split(1, len(passes), run.split.micro_batch)
    return Recording(split, run.seconds, {(optimizer, 0): joined})


def read_rollouts(folder: Path) -> dict[str, list[list[int]]]:
    """Reads the completions of a run by prompt, in the order of calls, ranks and rows."""
    completions: dict[str, list[list[int]]] = {}
    for path in sorted(
        folder.glob("rollouts-*.json"), key=lambda path: [*map(int, path.stem.split("-")[1:])]
    ):
        for prompt, completion in msgspec.json.decode(path.read_bytes()):
            completions.setdefault(prompt, []).append(completion)
    return completions


def read_recording(folder: Path, split: Split, seconds: float) -> Recording | None:
    """Reads the steps finished by every rank of a run; None without any."""
    records: dict[Event, dict[int, RankStep]] = {}
    decoder = msgspec.json.Decoder(RankStep)
    for path in folder.glob("step-*.json"):
        record = decoder.decode(path.read_bytes())
        records.setdefault((record.optimizer, record.step), {})[record.rank] = record
    steps: dict[Event, RecordedStep] = {}
    for (optimizer, number), ranks in sorted(records.items()):
        whole = len(ranks) == max(split.ranks, *(record.world for record in ranks.values()))
        if whole and (number == 0 or (optimizer, number - 1) in steps):
            steps[optimizer, number] = _read_step(folder, [ranks[rank] for rank in sorted(ranks)])
    return Recording(split, seconds, steps) if steps else None


def _read_step(folder: Path, ranks: list[RankStep]) -> RecordedStep:
    arrays, after = [], []
    for record in ranks:
        name = f"{record.optimizer}-{record.step}-{record.rank}.f64"
        arrays.append(np.fromfile(folder / f"step-{name}").reshape(-1, sum(record.sizes)))
        if (path := folder / f"after-{name}").exists():
            after.append(np.fromfile(path))
    gradients, weights = (_stack([rows[number] for rows in arrays]) for number in (0, 1))
    ended = [row.size for row in after] == [rows.shape[1] for rows in arrays]
    further = [rows[2:] for rows in arrays[1:]]
    whole_after = _stack(after) if ended else None
    return RecordedStep(ranks, gradients, weights, arrays[0][2:], whole_after, further)


def _stack(rows: Sequence[Vector]) -> Vector:
    """Stacks the ranks' rows; those of fewer tensors, such as a pipeline's stage, end with zeros."""
    widest = max(map(len, rows))
    return np.stack([np.pad(row, (0, widest - len(row))) for row in rows])
