"""The pool: its nodes in kinds, the counts that fit them, and what each job holds of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from isobatch.errors import InputError, missing, must_be, unknown
from isobatch.fleet.columns import as_array, known_text
from isobatch.fleet.table import table_at
from isobatch.recipes.cluster import Cluster
from isobatch.words import nearest, number_of, shown

_HARDWARE = tuple(name for name in Cluster.__struct_fields__ if name not in ("nodes", "gpus_per_node"))
"""Columns of a node beside its name and GPUs; nodes that differ in any are of two kinds."""

_MAX = 2**20
"""GPUs of a node, and nodes: each count is a cluster of its own to plan on."""

Held = dict[str, int]
"""GPUs by the node's name."""


@dataclass(frozen=True)
class Kind:
    """Nodes that are alike."""

    gpus: int
    hardware: dict[str, Any]
    nodes: tuple[str, ...]

    @property
    def total(self) -> int:
        """GPUs of all its nodes."""
        return self.gpus * len(self.nodes)

    @property
    def price(self) -> float:
        """Of a GPU-hour; NaN where it is not known."""
        price = self.hardware.get("price_per_gpu_hour")
        return float("nan") if price is None else float(price)

    @cached_property
    def counts(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """GPU counts that a job may have of it: any in a node, above it whole nodes."""
        whole = np.arange(2, len(self.nodes) + 1, dtype=np.int64) * self.gpus
        return np.concatenate([np.arange(1, self.gpus + 1, dtype=np.int64), whole])

    def __str__(self) -> str:
        name = self.hardware.get("gpu")
        return f"{name or 'GPU'} in nodes of {self.gpus}"


@dataclass(frozen=True)
class Pool:
    """Nodes, by kinds in the order in which they first come."""

    kinds: tuple[Kind, ...]
    kind_of: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All GPUs."""
        return sum(kind.total for kind in self.kinds)

    def clusters(self) -> dict[str, list[Any]]:
        """A cluster for each kind and count, as `plan_fleet` takes them."""
        columns: dict[str, list[Any]] = {name: [] for name in ("nodes", "gpus_per_node", *_HARDWARE)}
        for kind in self.kinds:
            for count in kind.counts.tolist():
                columns["nodes"].append(max(1, count // kind.gpus))
                columns["gpus_per_node"].append(min(count, kind.gpus))
            for name in _HARDWARE:
                columns[name] += [kind.hardware.get(name)] * len(kind.counts)
        return {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}

    def shape(self, held: Held) -> tuple[int, int] | None:
        """Kind and GPUs of what a job holds; None where it is not in one node or in whole nodes of one kind."""
        kinds = {self.kind_of[node] for node in held}
        if len(kinds) != 1:
            return None
        kind = kinds.pop()
        whole = all(gpus == self.kinds[kind].gpus for gpus in held.values())
        return (kind, sum(held.values())) if len(held) == 1 or whole else None


def table_columns(source: Any, what: str) -> tuple[str | None, dict[str, list[Any]]]:
    """Reads a table as columns of Python's values: a mapping, Arrow, a path, or a sequence of mappings.

    Raises:
        InputError: it is none of these, or its columns differ in length.
    """
    file, found = table_at(source)
    if hasattr(found, "__arrow_c_stream__"):
        import pyarrow as pa

        table = pa.table(found)
        return file, {name: table[name].to_pylist() for name in table.column_names}
    if (
        isinstance(found, Sequence)
        and not isinstance(found, str)
        and all(isinstance(it, Mapping) for it in found)
    ):
        names = dict.fromkeys(str(name) for row in found for name in row)
        return file, {name: [row.get(name) for row in found] for name in names}
    if not isinstance(found, Mapping):
        raise must_be(f"a table of {what}", found, field=what, file=file)
    columns = {str(name): as_array(str(name), cells, file).tolist() for name, cells in found.items()}
    if len(set(map(len, columns.values()))) > 1:
        raise InputError(f"{what} has columns of different lengths", field=what, file=file)
    return file, columns


def read_pool(pool: Any) -> Pool:
    """Reads a pool: a number of GPUs (one node), a Cluster, or a table of nodes.

    Raises:
        InputError: it is none of these, a node's GPUs are no count, a node is named twice, or there is none.
    """
    if type(pool) is int:
        if not 1 <= pool <= _MAX:
            raise must_be("from 1 to 1,048,576 GPUs", pool, field="pool")
        pool = Cluster(gpus_per_node=pool)
    if isinstance(pool, Cluster):
        for name in ("nodes", "gpus_per_node"):
            count = whole(getattr(pool, name), 1)
            if count is None or count > _MAX:
                raise must_be("a whole number from 1 to 1,048,576", getattr(pool, name), field=name)
        hardware = {name: getattr(pool, name) for name in _HARDWARE}
        return _pooled([(str(node), pool.gpus_per_node, hardware) for node in range(pool.nodes)])
    file, columns = table_columns(pool, "nodes")
    known = ("node", "gpus", *_HARDWARE)
    for name in columns:
        if name not in known and nearest(name, known, 0.82):
            raise unknown("column", name, known, field=name, file=file)
    if "gpus" not in columns:
        raise missing("gpus", "each node needs its number of GPUs", file=file)
    rows = len(columns["gpus"])
    names = [str(name) for name in columns.get("node", range(rows))]
    nodes, seen = [], set()
    for row, (name, gpus) in enumerate(zip(names, columns["gpus"], strict=True)):
        if name in seen or name in ("", "None"):
            raise must_be("one name for each node", name, field="node", file=file, row=row + 1)
        seen.add(name)
        count = whole(gpus, 0)
        if count is None or count > _MAX:
            raise must_be("a whole number from 0 to 1,048,576", gpus, field="gpus", file=file, row=row + 1)
        nodes.append((name, count, {it: columns[it][row] for it in _HARDWARE if it in columns}))
    return _pooled(nodes)


def whole(value: Any, least: int) -> int | None:
    """Reads a whole number, also as text; None where it is none from `least` on."""
    number = number_of(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float, np.integer, np.floating)):
        return None
    return int(number) if number >= least and number == number // 1 else None


def _pooled(nodes: Sequence[tuple[str, int, dict[str, Any]]]) -> Pool:
    groups: dict[Any, tuple[int, dict[str, Any], list[str]]] = {}
    for name, gpus, hardware in nodes:
        if gpus:
            key = (gpus, *map(known_text, hardware.values()))
            groups.setdefault(key, (gpus, hardware, []))[2].append(name)
    if not groups:
        raise InputError("the pool must have a node with a GPU", field="pool")
    kinds = tuple(Kind(gpus, hardware, tuple(names)) for gpus, hardware, names in groups.values())
    return Pool(kinds, {name: at for at, kind in enumerate(kinds) for name in kind.nodes})


def read_held(held: Any, pool: Pool) -> tuple[dict[str, Held], dict[str, list[str]]]:
    """Reads what each job holds, and the nodes that it held and that are gone from the pool.

    Raises:
        InputError: it is no table of job, node and gpus, GPUs are no count, or more are held of a node than it has.
    """
    if held is None:
        return {}, {}
    file, columns = table_columns(held, "held")
    for name in ("job", "node", "gpus"):
        if columns and name not in columns:
            raise missing(name, "held needs the columns job, node and gpus", file=file)
    found: dict[str, Held] = {}
    gone: dict[str, list[str]] = {}
    taken: dict[str, int] = {}
    rows = zip(*(columns.get(name, ()) for name in ("job", "node", "gpus")), strict=True)
    for row, (job, node, gpus) in enumerate(rows, 1):
        job, node, count = str(job), str(node), whole(gpus, 1)
        if count is None:
            raise must_be("a whole number from 1", gpus, field="gpus", file=file, row=row)
        if node not in pool.kind_of:
            gone.setdefault(job, []).append(node)
            continue
        taken[node] = taken.get(node, 0) + count
        there = pool.kinds[pool.kind_of[node]].gpus
        if taken[node] > there:
            text = f"more is held of node {shown(node)} than its {there} GPUs: {taken[node]}"
            raise InputError(text, file=file, row=row, field="gpus")
        mine = found.setdefault(job, {})
        mine[node] = mine.get(node, 0) + count
    return found, gone
