"""Placement of jobs on nodes: whole nodes first, then best fit.

A job that keeps its count keeps its nodes, and no more nodes are vacated than needed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from isobatch.allocation.nodes import GpuKind, Held, Pool


class Want(NamedTuple):
    """A job's want of GPUs of a kind, and its holding."""

    job: int
    gpus: int
    holding: Held
    pinned: bool = False


class _Space:
    """Free GPUs of the nodes of a kind, and the unmoved jobs."""

    def __init__(
        self, kind: GpuKind, staying: dict[int, Held], pinned: Iterable[Held], reserved: Iterable[str]
    ) -> None:
        self.size = kind.gpus
        self.free = dict.fromkeys(kind.nodes, kind.gpus)
        self.staying = staying
        for holding in chain(staying.values(), pinned):
            for name, gpus in holding.items():
                self.free[name] -= gpus
        # A node that some job held and may have again is taken by others last.
        self.order = {name: at for at, name in enumerate(kind.nodes)}
        self.order |= {name: self.order[name] + len(kind.nodes) for name in reserved if name in self.order}
        self.heaps: list[list[tuple[int, str]]] = [[] for _ in range(self.size + 1)]
        for name, gpus in self.free.items():
            if gpus:
                self.heaps[gpus].append((self.order[name], name))
        for heap in self.heaps:
            heapify(heap)
        self.costs: dict[int, list[tuple[int, int, str]]] = {}

    @cached_property
    def stays(self) -> dict[str, list[int]]:
        """Lists the jobs to evict, by node."""
        jobs_on = defaultdict(list)
        for job, holding in self.staying.items():
            for name in holding:
                jobs_on[name].append(job)
        return jobs_on

    def take(self, on: Held) -> None:
        """Takes GPUs of nodes. A node stays in the heaps of its former free space, and counts in the last."""
        for name, gpus in on.items():
            self.free[name] -= gpus
            heappush(self.heaps[self.free[name]], (self.order[name], name))

    def fullest(self, gpus: int) -> str | None:
        """Returns the node with the least sufficient free space."""
        for space in range(gpus, self.size + 1):
            heap = self.heaps[space]
            while heap and self.free[heap[0][1]] != space:
                heappop(heap)
            if heap:
                return heap[0][1]
        return None

    def place(self, want: Want) -> Held | None:
        """Takes nodes for a job, its own first; None if there is no space."""
        each = min(want.gpus, self.size)
        nodes: Held = {}
        for name in sorted(want.holding, key=lambda name_of: self.order.get(name_of, -1)):
            if len(nodes) < want.gpus // each and self.free.get(name, 0) >= each:
                nodes[name] = each
                self.take({name: each})
        while len(nodes) < want.gpus // each:
            node = self.fullest(each)
            if node is None:
                self.take(dict.fromkeys(nodes, -each))
                return None
            nodes[node] = each
            self.take({node: each})
        return nodes

    def vacate(self, gpus: int) -> list[Want]:
        """Evicts jobs from the node with the fewest GPUs to free, and returns their wants."""
        need = min(gpus, self.size)
        if need not in self.costs:  # at least what is missing has to go
            self.costs[need] = [(need - self.free[name], self.order[name], name) for name in self.stays]
            heapify(self.costs[need])
        costs = self.costs[need]
        while costs:
            known, order, name = costs[0]
            cost, going = self._going(name, need)
            if not going:  # and there never will be: what can be freed of a node only becomes less
                heappop(costs)
            elif cost > known:
                heapreplace(costs, (cost, order, name))
            else:
                for want in going:
                    for node, freed in want.holding.items():
                        self.stays[node].remove(want.job)
                        self.take({node: -freed})
                return going
        return []

    def _going(self, name: str, need: int) -> tuple[int, list[Want]]:
        """Returns the GPUs to evict from a node and their jobs, the smallest first; none if too full."""
        short, going = need - self.free[name], []
        wants = [Want(job, sum(self.staying[job].values()), self.staying[job]) for job in self.stays[name]]
        for want in sorted(wants, key=lambda want: (want.gpus, want.job)):
            if short > 0:
                going.append(want)
                short -= want.holding[name]
        return sum(want.gpus for want in going), going if short <= 0 else []


def place(
    pool: Pool, wants: Sequence[list[Want]], staying: Sequence[dict[int, Held]]
) -> tuple[dict[int, Held], list[tuple[int, Want]]]:
    """Returns the nodes of each job, and the wants without a place, with their kind.

    The free GPUs of that kind are in pieces.
    """
    placed: dict[int, Held] = {}
    unplaced: list[tuple[int, Want]] = []
    for at, kind in enumerate(pool.kinds):
        placed_here, without = _placed(kind, wants[at], staying[at])
        if without:  # everything anew
            every = [Want(job, sum(holding.values()), holding) for job, holding in staying[at].items()]
            again = _placed(kind, wants[at] + every, {})
            placed_here, without = min((placed_here, without), again, key=lambda result: len(result[1]))
        placed |= placed_here
        unplaced += [(at, want) for want in without]
    return placed, unplaced


def _placed(kind: GpuKind, wants: list[Want], staying: dict[int, Held]) -> tuple[dict[int, Held], list[Want]]:
    pinned = {want.job: want.holding for want in wants if want.pinned}
    # Large ones first: what is left in pieces is then small.
    queue = [(-want.gpus, want.job, want) for want in wants if not want.pinned]
    heapify(queue)
    space = _Space(kind, staying, pinned.values(), (name for *_, want in queue for name in want.holding))
    placed = staying | pinned
    without = []
    while queue:
        *_, want = heappop(queue)
        while (on := space.place(want)) is None and (vacated := space.vacate(want.gpus)):
            for evicted in vacated:
                del placed[evicted.job]
                heappush(queue, (-evicted.gpus, evicted.job, evicted))
        if on is None:
            without.append(want)
        else:
            placed[want.job] = on
    return placed, without
