"""Writes a table of plans as a folder for each job."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from isobatch import _core
from isobatch.errors import InputError, missing, must_be
from isobatch.files.whole import write_folder
from isobatch.schedules import resolve
from isobatch.tools.detect import writer
from isobatch.tools.export import export
from isobatch.tools.launchers import GPUS_PER_NODE, safe_name
from isobatch.tools.sheet import Job, Planned, units_of
from isobatch.words import count, counted

_DEFAULTS = {
    "optimizer": "adamw",
    "min_lr": 0.0,
    "drop_last": False,
    "even_batches": True,
    "convention": "torch",
}
_FLAGS = {"true": True, "false": False}

_NUMBERS: dict[str, Callable[[str], Any]] = {
    "clip_norm": float,
    "seq_len": int,
    "batch_multiple": int,
    "nodes": int,
    "gpus_per_node": int,
    **{
        name: int if kind.startswith("int") else float
        for name, kind, *_ in _core.results()
        if kind[0] in "if"
    },
}
"""Columns of numbers; a CSV has them as texts."""


class Fields:
    """Values of a row by name; None for a missing column."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def __getattr__(self, name: str) -> Any:
        value = self.values.get(name)
        return _DEFAULTS.get(name) if value is None else value


class Row(Fields):
    """A row of a fleet's plans as a plan; its schedule is known if a table has it."""

    @cached_property
    def recipe(self) -> Any:
        """The recipe's known fields; the tuned batch is computed from the batch and its change."""
        change, batch = self.values.get("batch_change") or 0.0, self.values["effective_batch"]
        return Fields({**self.values, "effective_batch": round(batch / (1 + change))})

    @cached_property
    def cluster(self) -> Any:
        """Nodes and the GPUs on each."""
        return Fields(self.values)

    @cached_property
    def settings(self) -> Any:
        """The plan's settings, as far as a writer needs them."""
        if self.values.get("batch_multiple") is None:
            raise missing("batch_multiple", "the plans' table does not have it; name the jobs' with --jobs")
        return Fields(self.values)

    @cached_property
    def lr_at(self) -> Callable[[float], float]:
        """The learning rate at a step."""
        steps = {"warmup_steps": self.warmup_steps or 0, "total_steps": self.total_steps}
        curve = resolve(
            self.schedule, peak=self.lr, min_lr=self.min_lr, **steps, units=units_of(cast("Planned", self))
        )
        at: Callable[[float], float] = curve.at
        return at

    def position(self, step: int) -> Any:  # noqa: ARG002 - as a plan's
        """Raises an InputError: a row does not say the samples of a batch ramp."""
        raise InputError(
            "a table does not say the samples of a batch that ramps: export the plan itself", field="ramp"
        )


@dataclass(frozen=True)
class ExportCount:
    """The number of jobs written, the reasons for skipping others, and remarks of the tool's writer."""

    jobs: int
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()


def export_rows(
    rows: Sequence[Mapping[str, Any]],
    tool: str,
    folder: Path,
    *,
    job: Job,
    jobs: Mapping[str, Mapping[str, Any]] | None = None,
    clusters: Mapping[str, Mapping[str, Any]] | None = None,
    gpus_per_node: int | None = None,
    force: bool = False,
    source: str,
) -> ExportCount:
    """Writes `folder/JOB/FILE` for each feasible row; `folder/JOB/CLUSTER/FILE` where a job has several.

    Args:
        job: what launchers need; its name is replaced by the row's.
        jobs, clusters: rows by their id, for columns that the plans do not have.
        gpus_per_node: of clusters that no table describes.
        force: replace existing files; without it, one existing file stops all writing.
        source: the table's name, for messages.
    """
    how = writer(tool).writer
    assert how is not None
    for name in ("status", "effective_batch"):
        if rows and name not in rows[0]:
            raise InputError(
                f"has no column {name!r}: it does not hold a fleet's plans, or one with few --columns",
                file=source,
            )
    without = ("infeasible", "invalid")
    feasible = [(at, row) for at, row in enumerate(rows, start=1) if row.get("status") not in without]
    texts: dict[Path, bytes] = {}
    notes = Counter[str]()
    for (at, row), place in zip(feasible, _places([row for _, row in feasible]), strict=True):
        try:
            plan = cast(
                Planned, Row(_fill_row(row, jobs or {}, clusters or {}, gpus_per_node))
            )  # its columns are its fields
            written = export(plan, tool, job=replace(job, name="-".join(place.parts)))
        except InputError as error:
            raise error.at(file=source, row=at) from None
        texts[place / how.file] = written.text.encode()
        notes.update(written.notes)
    existing = [folder / path for path in texts if (folder / path).exists()]
    if existing and not force:
        more = f" and {count(len(existing) - 1)} more files are" if len(existing) > 1 else " is"
        raise InputError(f"{existing[0]}{more} there already: --force replaces them", file=str(folder))
    write_folder(folder, texts)
    lost = len(rows) - len(feasible)
    skipped = (f"{counted(lost, 'row')} without a plan skipped",) if lost else ()
    return ExportCount(
        len(texts), skipped, tuple(f"{counted(n, 'file')}: {note}" for note, n in notes.most_common())
    )


def _fill_row(
    row: Mapping[str, Any],
    jobs: Mapping[str, Mapping[str, Any]],
    clusters: Mapping[str, Mapping[str, Any]],
    gpus_per_node: int | None,
) -> dict[str, Any]:
    """Fills a row up from its job's and its cluster's rows."""
    values = {**clusters.get(str(row.get("cluster")), {}), **jobs.get(str(row.get("job")), {})}
    values.update({name: value for name, value in row.items() if value is not None or name not in values})
    for name, kind in _NUMBERS.items():
        if values.get(name) == "":
            values[name] = None
        elif isinstance(values.get(name), str):
            try:
                read: Any = _core.number(name, values[name])  # as planning reads it
                values[name] = kind(values[name] if read is None else read)
            except ValueError:
                raise must_be("a number", values[name], field=name) from None
    if values.get("effective_batch") is None:
        raise missing("effective_batch", "a row with a plan has it")
    for name, least in (
        ("effective_batch", 1),
        ("world_size", 1),
        ("gpus_per_node", 1),
        ("nodes", 1),
        ("batch_change", -0.999),
    ):
        if values.get(name) is not None and not values[name] >= least:
            raise must_be(f"at least {least}", values[name], field=name)
    if isinstance(values.get("optimizer"), str):
        values["optimizer"] = _core.canonical("optimizer", values["optimizer"]) or values["optimizer"]
    if str(row.get("job")) in jobs and not values.get("schedule") and not values.get("ramp"):
        values["schedule"] = "cosine"  # a recipe's own
    for name in ("drop_last", "even_batches"):
        values[name] = _FLAGS.get(str(values.get(name)).lower(), values.get(name))
    if values.get("nodes") is None:
        if (world := values.get("world_size")) is None:
            raise missing("world_size", "the plans have it, unless --columns left it out")
        each = gpus_per_node or min(GPUS_PER_NODE, world)
        if world % each:
            raise InputError(
                f"{world} GPUs are not a multiple of {each} on a node: give --clusters",
                field="--gpus-per-node",
            )
        values |= {"nodes": world // each, "gpus_per_node": each}
    return values


def _places(rows: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    """Yields a path of safe names for each row, all different even where a file system ignores case."""
    several = max(Counter(str(row.get("job")) for row in rows).values(), default=0) > 1
    uses: Counter[str] = Counter()
    names: dict[str, str] = {}
    for index, row in enumerate(rows, start=1):
        own = str(row.get("job") if row.get("job") is not None else f"row-{index}")
        if own not in names:
            names[own] = _fresh(safe_name(own, most=200), uses)
        place = Path(names[own])
        if several:
            place /= _fresh(safe_name(str(row.get("cluster") or index), most=200), uses, names[own])
        yield place


def _fresh(name: str, uses: Counter[str], inside: str = "") -> str:
    """Returns the name, numbered from its second use on."""
    fresh, number = name, 1
    while uses[f"{inside}/{fresh}".lower()]:
        number += 1
        fresh = f"{name}-{number}"
    uses[f"{inside}/{fresh}".lower()] += 1
    return fresh
