"""The pool: its nodes in kinds, the counts that fit them, and what each job holds of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from isobatch.errors import InputError, must_be, unknown
from isobatch.fleet.columns import cells_of, floats_of, known_text, number_in
from isobatch.fleet.table import input_table
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

    kinds: tuple[GpuKind, ...]
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
        kind = self.kind_of[next(iter(held))]
        if len(held) > 1:
            size = self.kinds[kind].gpus
            if any(self.kind_of[node] != kind or gpus != size for node, gpus in held.items()):
                return None
        return kind, sum(held.values())


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
            if _count(getattr(pool, name), 1) is None:
                raise must_be("a whole number from 1 to 1,048,576", getattr(pool, name), field=name)
        hardware = {name: getattr(pool, name) for name in _HARDWARE}
        return _pooled([(str(node), pool.gpus_per_node, hardware) for node in range(pool.nodes)])
    table = input_table("node", pool)
    known = ("node", "gpus", *_HARDWARE)
    for name in table.extra:
        if name not in known and nearest(name, known, 0.82):
            raise unknown("column", name, known, field=name, file=table.file)
    columns = {name: cells_of(table.extra[name]) for name in known if name in table.extra}
    nodes = []
    for row, (name, gpus) in enumerate(zip(table.id_list, columns["gpus"], strict=True)):
        if (count := _count(gpus, 0)) is None:
            legal = "a whole number from 0 to 1,048,576"
            raise must_be(legal, gpus, field="gpus", file=table.file, row=row + 1)
        hardware = {it: cells[row] for it, cells in columns.items() if it != "gpus"}
        nodes.append((str(name), count, hardware))
    return _pooled(nodes)


def _count(cell: Any, least: int) -> int | None:
    count = number_in(cell, lambda x: least <= x <= _MAX and x == x // 1)
    return None if count is None else int(count)


def _pooled(nodes: Sequence[tuple[str, int, dict[str, Any]]]) -> Pool:
    groups: dict[Any, tuple[int, dict[str, Any], list[str]]] = {}
    for name, gpus, hardware in nodes:
        if gpus:
            key = (gpus, *map(known_text, hardware.values()))
            groups.setdefault(key, (gpus, hardware, []))[2].append(name)
    if not groups:
        raise InputError("the pool must have a node with a GPU", field="pool")
    kinds = tuple(GpuKind(gpus, hardware, tuple(names)) for gpus, hardware, names in groups.values())
    kind_of = {name: at for at, kind in enumerate(kinds) for name in kind.nodes}
    if len(kind_of) < sum(len(kind.nodes) for kind in kinds):
        raise InputError("two nodes have one name, as texts", field="node")
    return Pool(kinds, kind_of)


def read_held(held: Any, pool: Pool) -> tuple[dict[str, Held], dict[str, list[str]]]:
    """Reads what each job holds, and the nodes that it held and that are gone from the pool.

    Raises:
        InputError: it is no table of job, node and gpus, GPUs are no count, or more are held of a node than it has.
    """
    if held is None or (isinstance(held, (list, tuple)) and not held):
        return {}, {}
    table = input_table("held", held, unique=False)
    found: dict[str, Held] = {}
    gone: dict[str, list[str]] = {}
    taken: dict[str, int] = {}
    of_job, of_node, cells = (cells_of(table.extra[name]) for name in ("job", "node", "gpus"))
    counts = floats_of(cells)
    legal = (counts >= 1) & (counts <= _MAX) & (counts == np.floor(counts))
    if not legal.all():
        row = int(np.argmin(legal))
        raise must_be("a whole number from 1", cells[row], field="gpus", file=table.file, row=row + 1)
    rows = zip(map(str, of_job), map(str, of_node), counts.astype(np.int64).tolist(), strict=True)
    for row, (job, node, count) in enumerate(rows, 1):
        if node not in pool.kind_of:
            gone.setdefault(job, []).append(node)
            continue
        taken[node] = taken.get(node, 0) + count
        there = pool.kinds[pool.kind_of[node]].gpus
        if taken[node] > there:
            text = f"more is held of node {shown(node)} than its {there} GPUs: {taken[node]}"
            raise InputError(text, file=table.file, row=row, field="gpus")
        mine = found.setdefault(job, {})
        mine[node] = mine.get(node, 0) + count
    return found, gone
