"""The record of a tool, at the end of its file, and the cases and issues of its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from isobatch.words import count, number_of, printable

if TYPE_CHECKING:
    from isobatch.tools.map import Setting
    from isobatch.tools.page import Reading, SettingsPage
    from isobatch.tools.sheet import Job, Planned, SettingsSheet


STAYS = "stays"
"""A setting that changes the training, and that no plan moves: it is named."""


MAX_LINE_CHARACTERS = 2_000
"""Characters of a line that quotes a file."""


@dataclass(frozen=True)
class Reader:
    """Reads and checks the files of a tool.

    Attributes:
        versions: of the tool that wrote the files.
        read: takes the settings of a page as fields of a recipe; None: the tool's map says all.
        check: finds what the tool does without a word in the file.
        harmless: patterns of settings that change neither batch, learning rate, schedule, length nor GPUs
            (and unread.EVERYWHERE). A pattern with a `*` never matches a name that looks like one of these,
            nor an argument of an optimizer, a scheduler, a loader or a model.
        matters: by the field of a recipe to give, patterns of settings that are not modelled; under STAYS a
            rate of its own, under an empty name a table of what does not train.
        tables: names of settings that must be tables, since the tool stops at any other value.
        table: for files with a row for each number of GPUs: lists the rows, and finds those that do not add
            up.
    """

    versions: str
    read: Callable[[SettingsPage], None] | None = None
    check: Callable[[Case], Iterator[Issue]] = lambda _: iter(())
    harmless: str = ""
    matters: Mapping[str, str] = field(default_factory=dict)
    table: Callable[[Reading], tuple[str, list[Issue]]] | None = None
    tables: str = ""


@dataclass(frozen=True)
class Writer:
    """Writes plans as files of a tool.

    No field about the tool's abilities has a default: a wrong one writes a wrong file.

    Attributes:
        versions: of the tool that reads the files.
        file: the usual name.
        forms: the formats, the usual one first.
        write: gives the settings of a plan; None: the tool's map says all.
        render: the text of a shell script or a Python file; None where there is none.
        runs_ragged: whether replicas may get different micro-batches, and weight their losses (`ragged`,
            `uneven`).
        runs_ramps: whether the batch may ramp up.
        is_part: whether the file is a part of the user's own, with the model and the data in the rest.
        leaves_out: the parts of a plan (handed.parts) and of a job that neither a file nor its notes say.
    """

    versions: str
    file: str
    forms: tuple[str, ...]
    write: Callable[[Planned, Job], SettingsSheet] | None = None
    render: Callable[[SettingsSheet, Mapping[str, str], str, Job], str] | None = None
    _: KW_ONLY
    runs_ragged: bool
    runs_ramps: bool
    is_part: bool
    leaves_out: str


class Keys(NamedTuple):
    """Keys to know a tool's files by: its own, and those in many people's scripts too, alone no evidence.

    `module` has the tool's record, if it is not named as the tool; all keys of the tool that it `extends` are
    its keys too.
    """

    own: str = ""
    common: str = ""
    module: str = ""
    extends: str = ""


@dataclass(frozen=True)
class Tool:
    """A tool, with its name on the command line and its title for people.

    Attributes:
        reader: None where its files are only written.
        writer: None where they are only read.
        written_as: of a tool that is only read, the one that has its settings.
        keys: of a tool of another distribution, the settings that tell its files; isobatch's own are in
            detect.TOOLS.
        settings: its map: every setting that is a field of a recipe (map.py).
    """

    name: str
    title: str
    reader: Reader | None = None
    writer: Writer | None = None
    written_as: str = ""
    keys: Keys = field(default_factory=Keys)
    settings: tuple[Setting, ...] = ()


class Weight(StrEnum):
    """The cost of an issue, as the heading of its kind."""

    STOPS = "Stops the run"
    CHANGES = "Changes the training"
    REFUSED = "Cannot be planned"
    NOTE = "Good to know"


class Issue(NamedTuple):
    """A surprise in a configuration: what happens, its cause, its source, and the line to write instead.

    `weight` is NOTE where the tool is always so; `field` is the recipe's, where the file has no word for it.
    """

    what: str
    cause: str
    source: str
    change: str
    weight: Weight = Weight.CHANGES
    field: str = ""

    @classmethod
    def note(cls, text: str, cause: str, source: str, change: str, field: str = "") -> Self:
        """Makes an issue of weight NOTE."""
        return cls(text, cause, source, change, Weight.NOTE, field)

    @classmethod
    def stop(cls, text: str, cause: str, source: str, change: str, field: str = "") -> Self:
        """Makes an issue of weight STOPS."""
        return cls(f"the run stops: {text}", cause, source, change, Weight.STOPS, field)

    def __str__(self) -> str:
        what, cause, source, change = (printable(text, MAX_LINE_CHARACTERS) for text in self[:4])
        return f"{what}\n  cause: {cause} [{source}]\n  change: {change}"


ALIASES = {"batch_per_gpu": "micro_batch", "micro_batch": "batch_per_gpu"}
_WORDS = {
    "accumulation": "micro-batches in a step",
    "batch_per_gpu": "the batch per GPU",
    "duration": "the run's length",
    "effective_batch": "the global batch",
    "lr": "the learning rate",
    "micro_batch": "the batch per GPU",
    "warmup": "the warmup",
}
"""A recipe's field in words: no tool's file has our own names."""


class Case(NamedTuple):
    """A configuration on the GPUs and nodes of the run to come, for the checks; None is not known.

    `batch` counts the samples of a step there, as the file is, and `tuned` of the tuned run; `fields` also
    has what was given beside the file. The command plans the file there, or lists what would work.
    """

    tool: Tool
    reading: Reading
    fields: Mapping[str, Any]
    gpus: int
    batch: int | None
    tuned: int | None
    plan: Any
    command: str = ""
    nodes: int | None = None

    def at(self, *path: str) -> Any:
        """Returns the file's value at a place; None for a missing one."""
        value: Any = self.reading.settings
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def replicas(self) -> int:
        """Counts the copies of the model on the GPUs."""
        return self.gpus // (self.fields.get("model_parallel") or 1)

    def nodes_like(self, gpus: int, nodes: int) -> int:
        """Returns the nodes of the run to come: if not known, of as many GPUs as the file's."""
        each = gpus // nodes or 1
        return self.nodes or (1 if self.gpus % each else self.gpus // each)

    def key(self, field: str) -> str:
        """Returns the file's name of a recipe's field, even of a missing one; else plain words."""
        names = (field, ALIASES.get(field, field))
        tables = (self.reading.keys, self.reading.absent)
        return next((table[name] for table in tables for name in names if table.get(name)), _WORDS[field])

    def line(self, field: str, value: Any) -> str:
        """Writes the line with another value."""
        key = self.key(field)
        return f"{key} {value}" if key.startswith("--") else f"{key}: {value}"

    @property
    def growth(self) -> float:
        """The batch on these GPUs over the tuned one; 1 if one of the two is not known."""
        return 1.0 if self.batch is None or self.tuned is None else self.batch / self.tuned


def inside(table: str, names: str) -> str:
    """Returns the places of settings in a table, for a list of harmless settings."""
    return " ".join(f"{table}.{name}" for name in names.split())


def number(value: Any) -> float:
    """Reads a setting as a number, also from the text of a command line; 0 for anything else.

    >>> number(3), number("3"), number("all"), number(None), number(10**400)
    (3.0, 3.0, 0.0, 0.0, 0.0)
    """
    if isinstance(value, str):
        value = number_of(value)
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0


def undivided_batch(case: Case, source: str) -> Iterator[Issue]:
    """Finds a global batch not divided by micro-batch × replicas."""
    batch, replicas = case.fields.get("effective_batch"), case.replicas
    micro = case.fields.get("micro_batch") or case.fields.get("batch_per_gpu")
    if batch and micro and replicas and batch % (micro * replicas):
        yield Issue.stop(
            f"{count(batch)} samples are not a multiple of {micro} × {replicas} replicas",
            f"{case.key('effective_batch')} must be a multiple of the micro-batch times the replicas",
            source,
            f"{case.command} lists the micro-batches and batches that fit",
            "effective_batch",
        )
