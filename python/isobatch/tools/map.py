"""The map of a tool: its settings that are fields of a recipe, read and written by one engine."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any

from isobatch.errors import must_be, unknown
from isobatch.tools.page import SettingsPage, leaves
from isobatch.tools.sheet import Planned

_PLANNED: dict[str, Callable[[Planned], Any]] = {
    "effective_batch": attrgetter("effective_batch"),
    "batch_per_gpu": attrgetter("micro_batch"),
    "micro_batch": attrgetter("micro_batch"),
    "accumulation": attrgetter("accumulation"),
    "gpus": attrgetter("world_size"),
    "lr": attrgetter("lr"),
    "min_lr": attrgetter("min_lr"),
    "duration": attrgetter("total_steps"),
    "warmup": attrgetter("warmup_steps"),
    "eval_every": attrgetter("eval_steps"),
    "save_every": attrgetter("save_steps"),
    "log_every": attrgetter("log_steps"),
    "betas": lambda plan: None if plan.beta1 is None else [plan.beta1, plan.beta2],
    "eps": attrgetter("eps"),
    "momentum": attrgetter("momentum"),
    "weight_decay": attrgetter("weight_decay"),
    "clip_norm": attrgetter("recipe.clip_norm"),
    "precision": attrgetter("recipe.precision"),
    "seq_len": attrgetter("recipe.seq_len"),
    "optimizer": attrgetter("recipe.optimizer"),
    "schedule": attrgetter("recipe.schedule"),
}
"""The part of a plan that each field of a recipe becomes: the fields that the engine writes."""
_LENGTHS = ("duration", "warmup", "eval_every", "save_every", "log_every")
_UNITS = ("st", "ep", "sp", "tok")
_WHOLE = ("effective_batch", "batch_per_gpu", "micro_batch", "accumulation", "gpus", "seq_len")
_OPTIMIZERS = {
    "betas": "adamw adam lamb lion",
    "eps": "adamw adam lamb",
    "momentum": "sgd rmsprop muon lars",
}
"""The optimizers that have a number."""


@dataclass(frozen=True)
class Setting:
    """A setting of a tool, with its field of a recipe.

    Attributes:
        key: its place in the file, with dots between tables; two of them where each beta has its own, and one
            for each value where a precision has switches.
        field: of a recipe, or `batch_per_gpu`.
        unit: of a length: `st`, `ep`, `sp` or `tok`; of one that is written `st`.
        default: the tool's own, of a file without it.
        off: the value written for a plan without one, where the tool's default is another.
        words: the tool's word for each value of the field; of switches the key for each value.
        older: earlier names, read from a file without `key`.
        of: the optimizers with which it is written, if not with all that have such a number.
        reads, writes: whether the engine does; else the tool's own code, if anything does.
    """

    key: str
    field: str
    unit: str = ""
    _: KW_ONLY
    default: Any = None
    off: Any = None
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    older: str = ""
    of: str = ""
    reads: bool = True
    writes: bool = True

    def __post_init__(self) -> None:
        if self.writes and self.field not in _PLANNED:
            raise unknown("field", self.field, _PLANNED, field=f"{self.key} in a map")
        units = ("st",) if self.writes else _UNITS
        if self.field in _LENGTHS and (self.reads or self.writes) and self.unit not in units:
            raise must_be(" or ".join(units), self.unit, field=f"the unit of {self.key} in a map")


def by_code(key: str, field: str) -> Setting:
    """Makes the row of a setting read and written by the tool's own code."""
    return Setting(key, field, reads=False, writes=False)


def torch_settings(table: str, *, reads: bool = False) -> tuple[Setting, ...]:
    """Returns the arguments of torch's optimizers, in a table of the file, as rows of a map."""
    names = ("lr", "weight_decay", "betas", "eps", "momentum")
    return tuple(Setting(f"{table}.{name}", name, reads=reads) for name in names)


def read_settings(
    page: SettingsPage, settings: Iterable[Setting], *, defaults: bool = True, auto: bool = False
) -> None:
    """Reads the settings of a map as fields of a recipe.

    Args:
        page: the file.
        settings: the map's rows, in the order of reading.
        defaults: whether a missing setting has the tool's default: not in a file that builds on another.
        auto: whether the text "auto" leaves a setting to another program: then it gives no field.
    """
    for row in settings:
        keys = row.key.split()
        if auto:
            keys = [key for key in keys if page.raw(key) != "auto"]
        if row.reads and keys:
            _read(page, row, keys, row.default if defaults else None)


def _read(page: SettingsPage, row: Setting, keys: list[str], default: Any) -> None:
    key = page.first(*keys[:1], *row.older.split())
    if row.field == "betas":
        page.pair(key) if len(keys) == 1 else page.betas(keys[0], keys[1], default)
    elif row.field == "clip_norm":
        if row.off is None or page.raw(key) != row.off:
            page.clip(key, default=default)
    elif " " in row.key:
        page.precision({switch: value for value, switch in row.words.items() if switch in keys})
    elif row.words:
        _read_word(page, row, key, default)
    elif row.field in _LENGTHS:
        page.length(key, row.field, row.unit, default=default)
    elif row.field in _WHOLE:
        page.whole(key, row.field, default=default)
    else:
        page.number(key, row.field, default=default)


def _read_word(page: SettingsPage, row: Setting, key: str, default: str | None) -> None:
    """Reads a field by the tool's words; another word for an optimizer or a schedule is asked for."""
    word, values = page.word(key, default), {word: value for value, word in row.words.items()}
    if word in values and row.field != "optimizer":
        page.give(row.field, values[word], key)
    elif row.field == "optimizer":
        page.optimizer(key, values.get(word or "", word))
    elif row.field == "schedule" and word is not None:
        page.unsupported(key, f"the schedule {word!r}")


def write_settings(plan: Planned, settings: Iterable[Setting]) -> dict[str, Any]:
    """Returns a plan's values at their places in the file, tables inside tables; no value is None.

    Args:
        plan: what is written.
        settings: the map's rows, in the order of writing.
    """
    tables: dict[str, Any] = {}
    for row in settings:
        if row.writes:
            for key, value in _written(plan, row):
                put(tables, key, value)
    return tables


def _written(plan: Planned, row: Setting) -> Iterable[tuple[str, Any]]:
    keys = row.key.split()
    optimizers = row.of or _OPTIMIZERS.get(row.field, "")
    if optimizers and plan.recipe.optimizer not in optimizers.split():
        return ()
    value = _PLANNED[row.field](plan)
    if row.words:
        value = row.words.get(value) if isinstance(value, str) else None
        if len(keys) > 1:
            return () if value is None else [(value, True)]
    value = row.off if value is None or (value == 0 and row.off is not None) else value
    if value is None:
        return ()
    return zip(keys, value if len(keys) > 1 else [value], strict=True)


def wordless(plan: Planned, settings: Iterable[Setting]) -> Iterator[str]:
    """Yields a note for each value of a plan without a word in a map."""
    for row in settings:
        value = _PLANNED[row.field](plan) if row.writes and row.words else None
        if value is not None and not (isinstance(value, str) and value in row.words):
            yield f"{row.key} is not set: it has no word for {value}"


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Sets the value at a place such as `optimizer.params.lr`.

    >>> tables = {}
    >>> put(tables, "optimizer.lr", 0.1)
    >>> tables
    {'optimizer': {'lr': 0.1}}
    """
    *path, last = key.split(".")
    for name in path:
        tables = tables.setdefault(name, {})
    tables[last] = value


def unlisted(settings: Mapping[str, Any], rows: Iterable[Setting]) -> list[str]:
    """Lists the places of a written file without a row in a map: neither at a key nor inside of one.

    >>> unlisted({"optimizer": {"lr": 0.1, "fused": True}}, [Setting("optimizer.lr", "lr")])
    ['optimizer.fused']
    """
    keys = [key for row in rows for key in f"{row.key} {row.older}".split()]
    return [at for at in leaves(settings) if not any(f"{at}.".startswith(f"{key}.") for key in keys)]
