"""The pool: its nodes by kind, the counts that fit them, and the holdings of each job."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isobatch import _core
from isobatch.errors import InputError, must_be, unknown
from isobatch.fleet.columns import cells_of, floats_of, known_text, number_in, plain_number
from isobatch.fleet.rows import decimal_hint
from isobatch.fleet.table import InputTable, input_table
from isobatch.recipes.cluster import Cluster
from isobatch.words import nearest, shown

_HARDWARE = tuple(name for name in Cluster.__struct_fields__ if name not in ("nodes", "gpus_per_node"))
"""Columns of a node beside its name and GPUs; nodes that differ in any are of two kinds."""

_MAX = 2**20
"""GPUs of a node, and nodes: each count is a cluster of its own to plan on."""

Held = dict[str, int]
"""GPUs by the node's name."""


@dataclass(frozen=True)
class GpuKind:
    """Nodes with the same GPUs and hardware."""

    gpus: int
    hardware: dict[str, Any]
    nodes: tuple[str, ...]

    @property
    def total(self) -> int:
        """Counts the GPUs of all its nodes."""
        return self.gpus * len(self.nodes)

    @property
    def price(self) -> float:
        """Price of a GPU-hour; NaN if not known."""
        price = self.hardware.get("price_per_gpu_hour")
        return float("nan") if price is None else float(price)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Lists the legal counts: any number within a node, above it whole nodes."""
        whole = np.arange(2, len(self.nodes) + 1, dtype=np.int64) * self.gpus
        return np.concatenate([np.arange(1, self.gpus + 1, dtype=np.int64), whole])

    def __str__(self) -> str:
        name = self.hardware.get("gpu")
        return f"{name or 'GPU'} in nodes of {self.gpus}"


@dataclass(frozen=True)
class Pool:
    """The nodes of a pool by kind, in the order of their first node."""

    kinds: tuple[GpuKind, ...]
    kind_of: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All GPUs."""
        return sum(kind.total for kind in self.kinds)

    def clusters(self) -> dict[str, Any]:
        """A cluster for each kind and count, as `plan_fleet` takes them."""
        columns: dict[str, Any] = {
            "nodes": np.concatenate([np.maximum(1, kind.counts // kind.gpus) for kind in self.kinds]),
            "gpus_per_node": np.concatenate([np.minimum(kind.counts, kind.gpus) for kind in self.kinds]),
        }
        for name in _HARDWARE:
            cells = [[kind.hardware.get(name)] * len(kind.counts) for kind in self.kinds]
            if any(of_kind[0] is not None for of_kind in cells):
                columns[name] = [*chain(*cells)]
        return columns

    def shapes(self, holdings: Sequence[Held]) -> NDArray[np.int64]:
        """Returns the kind and the GPUs of each holding, −1 unless within a node or whole nodes of a kind."""
        if not holdings:
            return np.empty((2, 0), np.int64)
        several = np.array([*map(len, holdings)])
        starts = np.cumsum(several) - several
        kind = np.array([*map(self.kind_of.__getitem__, chain(*holdings))])
        gpus = np.array([*chain(*map(dict.values, holdings))])
        size = np.array([of_gpus.gpus for of_gpus in self.kinds])[kind]
        alike = np.minimum.reduceat(kind, starts) == np.maximum.reduceat(kind, starts)
        alike &= (several == 1) | np.logical_and.reduceat(gpus == size, starts)
        return np.where(alike, [kind[starts], np.add.reduceat(gpus, starts)], -1)


def read_pool(pool: Any, decimal: str | None = None) -> Pool:
    """Reads a pool: a number of GPUs (one node), a Cluster, or a table of nodes, as a fleet's is read."""
    if type(pool) is int:
        if not 1 <= pool <= _MAX:
            raise must_be("from 1 to 1,048,576 GPUs", pool, field="pool")
        pool = Cluster(gpus_per_node=pool)
    if isinstance(pool, Cluster):
        for name in ("nodes", "gpus_per_node"):
            if number_in(getattr(pool, name), lambda x: 1 <= x <= _MAX and x == x // 1) is None:
                raise must_be("a whole number from 1 to 1,048,576", getattr(pool, name), field=name)
        nodes = pool.nodes
        hardware = {name: [getattr(pool, name)] * nodes for name in _HARDWARE}
        return _pooled([*map(str, range(nodes))], [pool.gpus_per_node] * nodes, hardware)
    table = input_table("node", pool)
    known = ("node", "gpus", *_HARDWARE)
    for name in table.extra:
        if name not in known and nearest(name, known, 0.82):
            raise unknown("column", name, known, field=name, file=table.file)
    columns = {name: _hardware(table, name, decimal) for name in _HARDWARE if name in table.extra}
    counts = _counts(table, 0, "a whole number from 0 to 1,048,576")
    return _pooled([*map(str, table.id_list)], counts, columns)


def _hardware(table: InputTable, name: str, decimal: str | None) -> list[Any]:
    """Reads a column of the nodes' hardware: numbers, but for the name of the GPU.

    Raises:
        InputError: a cell is no such number.
    """
    cells: list[Any] = cells_of(table.extra[name])
    if name == "gpu":
        return cells
    for row, cell in enumerate(cells):
        text = plain_number(cell, decimal) if isinstance(cell, str) and decimal else cell
        value = _core.number(name, text) if isinstance(text, str) else text
        if cell is not None and number_in(value, lambda x: 0 < x < math.inf) is None:
            error = must_be("a number above 0", cell, field=name)
            text = f"{error.message}{decimal_hint([error.message])}"
            raise InputError(text, field=name, file=table.file, row=row + 1)
        cells[row] = value
    return cells


def _counts(table: InputTable, least: int, legal: str) -> list[int]:
    """Reads the GPUs. Raises InputError where they are no count."""
    counts = floats_of(table.extra["gpus"])
    is_legal = (counts >= least) & (counts <= _MAX) & (counts == np.floor(counts))
    if not is_legal.all():
        row = int(np.argmin(is_legal))
        raise must_be(legal, cells_of(table.extra["gpus"])[row], field="gpus", file=table.file, row=row + 1)
    numbers: list[int] = counts.astype(np.int64).tolist()
    return numbers


def _pooled(names: list[str], gpus: Sequence[int], hardware: dict[str, list[Any]]) -> Pool:
    known = [cells for cells in hardware.values() if any(cell is not None for cell in cells)]
    groups: dict[Any, list[int]] = {}
    keys = zip(gpus, *(map(known_text, cells) for cells in known), strict=True)
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    kinds = tuple(
        GpuKind(
            gpus[rows[0]],
            {name: cells[rows[0]] for name, cells in hardware.items()},
            tuple(names[row] for row in rows),
        )
        for rows in groups.values()
        if gpus[rows[0]]
    )
    if not kinds:
        raise InputError("the pool must have a node with a GPU", field="pool")
    kind_of = {name: at for at, kind in enumerate(kinds) for name in kind.nodes}
    if len(kind_of) < sum(len(kind.nodes) for kind in kinds):
        raise InputError("two nodes have one name, as texts", field="node")
    return Pool(kinds, kind_of)


def read_held(
    source: Any, pool: Pool, row_of: Mapping[str, int]
) -> tuple[dict[int, Held], dict[int, list[str]], list[str]]:
    """Reads the holdings of each job and its missing nodes, by its row, and the names of unknown jobs."""
    holdings: defaultdict[int, Held] = defaultdict(dict)
    gone: defaultdict[int, list[str]] = defaultdict(list)
    if isinstance(source, Mapping) and all(isinstance(nodes, Mapping) for nodes in source.values()):
        placed = [(job, node, gpus) for job, nodes in source.items() for node, gpus in nodes.items()]
        source = [dict(zip(("job", "node", "gpus"), row, strict=True)) for row in placed]
    if source is None or (isinstance(source, (list, tuple)) and not source):
        return {}, {}, []
    table = input_table("held", source, unique=False)
    free = {name: kind.gpus for kind in pool.kinds for name in kind.nodes}
    names, nodes = ([*map(str, cells_of(table.extra[name]))] for name in ("job", "node"))
    counts = _counts(table, 1, "a whole number from 1")
    rows = zip([row_of.get(name, -1) for name in names], nodes, counts, strict=True)
    for at, (job, node, count) in enumerate(rows):
        if (room := free.get(node)) is None:
            gone[job].append(node)
            continue
        free[node] = room = room - count
        if room < 0:
            size = pool.kinds[pool.kind_of[node]].gpus
            text = f"node {shown(node)} has {size} GPUs, but more are held: {size - room}"
            raise InputError(text, file=table.file, row=at + 1, field="gpus")
        holding = holdings[job]
        holding[node] = holding.get(node, 0) + count
    for of_nobody in (holdings, gone):
        of_nobody.pop(-1, None)
    return {**holdings}, {**gone}, sorted({*names} - row_of.keys())
