"""Which nodes: whole nodes first, then best fit; who keeps its GPUs keeps its nodes, and no more nodes are vacated than the space asks
for."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain
from typing import NamedTuple

from isobatch.allocation.nodes import GpuKind, Held, Pool


class Want(NamedTuple):
    """GPUs of a kind for a job, and what it holds now."""

    job: int
    gpus: int
    held: Held
    pinned: bool = False


class _Space:
    """Free GPUs of the nodes of a kind, and who stays on which."""

    def __init__(
        self, kind: GpuKind, staying: dict[int, Held], pinned: Iterable[Held], wanted: Iterable[str]
    ) -> None:
        self.size = kind.gpus
        self.free = dict.fromkeys(kind.nodes, kind.gpus)
        self.staying = staying
        for mine in chain(staying.values(), pinned):
            for name, gpus in mine.items():
                self.free[name] -= gpus
        # A node that some job held and may have again is taken by others last.
        self.order = {name: at for at, name in enumerate(kind.nodes)}
        self.order |= {name: self.order[name] + len(kind.nodes) for name in wanted if name in self.order}
        self.heaps: list[list[tuple[int, str]]] = [[] for _ in range(self.size + 1)]
        for name, gpus in self.free.items():
            if gpus:
                self.heaps[gpus].append((self.order[name], name))
        for heap in self.heaps:
            heapify(heap)
        self.costs: dict[int, list[tuple[int, int, str]]] = {}

    @cached_property
    def stays(self) -> dict[str, list[int]]:
        """Jobs that may have to go, by node."""
        found = defaultdict(list)
        for job, mine in self.staying.items():
            for name in mine:
                found[name].append(job)
        return found

    def take(self, on: Held) -> None:
        """Takes GPUs of nodes. A node whose free GPUs have changed is in several heaps, and counts in the last."""
        for name, gpus in on.items():
            self.free[name] -= gpus
            heappush(self.heaps[self.free[name]], (self.order[name], name))

    def fullest(self, gpus: int) -> str | None:
        """The node with the least free space that suffices."""
        for left in range(gpus, self.size + 1):
            heap = self.heaps[left]
            while heap and self.free[heap[0][1]] != left:
                heappop(heap)
            if heap:
                return heap[0][1]
        return None

    def place(self, want: Want) -> Held | None:
        """Takes nodes for a job, those that it holds first; None where there is no space."""
        each = min(want.gpus, self.size)
        found: Held = {}
        for name in sorted(want.held, key=lambda it: self.order.get(it, -1)):
            if len(found) < want.gpus // each and self.free.get(name, 0) >= each:
                found[name] = each
                self.take({name: each})
        while len(found) < want.gpus // each:
            other = self.fullest(each)
            if other is None:
                self.take(dict.fromkeys(found, -each))
                return None
            found[other] = each
            self.take({other: each})
        return found

    def vacate(self, gpus: int) -> list[Want]:
        """Frees so much of a node that a job has space there, of the node where the fewest GPUs have to go; returns who goes."""
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
                    for node, freed in want.held.items():
                        self.stays[node].remove(want.job)
                        self.take({node: -freed})
                return going
        return []

    def _going(self, name: str, need: int) -> tuple[int, list[Want]]:
        """Who has to go from a node, the smallest first, and their GPUs; nobody where that is not enough."""
        short, going = need - self.free[name], []
        wants = [Want(job, sum(self.staying[job].values()), self.staying[job]) for job in self.stays[name]]
        for want in sorted(wants, key=lambda want: (want.gpus, want.job)):
            if short > 0:
                going.append(want)
                short -= want.held[name]
        return sum(want.gpus for want in going), going if short <= 0 else []


def place(
    pool: Pool, wants: Sequence[list[Want]], staying: Sequence[dict[int, Held]]
) -> tuple[dict[int, Held], list[tuple[int, Want]]]:
    """Places all that it can: of each kind, what jobs want, and what those hold that want as many GPUs again.

    Returns:
        The nodes of each job, and those without a place, with the kind: its free GPUs are in pieces.
    """
    placed: dict[int, Held] = {}
    left: list[tuple[int, Want]] = []
    for at, kind in enumerate(pool.kinds):
        here, without = _placed(kind, wants[at], staying[at])
        if without:  # everything anew
            every = [Want(job, sum(mine.values()), mine) for job, mine in staying[at].items()]
            again = _placed(kind, wants[at] + every, {})
            here, without = min((here, without), again, key=lambda found: len(found[1]))
        placed |= here
        left += [(at, want) for want in without]
    return placed, left


def _placed(kind: GpuKind, wants: list[Want], staying: dict[int, Held]) -> tuple[dict[int, Held], list[Want]]:
    pinned = {want.job: want.held for want in wants if want.pinned}
    # Large ones first: what is left in pieces is then small.
    queue = [(-want.gpus, want.job, want) for want in wants if not want.pinned]
    heapify(queue)
    space = _Space(kind, staying, pinned.values(), (name for *_, want in queue for name in want.held))
    placed = staying | pinned
    without = []
    while queue:
        *_, want = heappop(queue)
        while (on := space.place(want)) is None and (vacated := space.vacate(want.gpus)):
            for it in vacated:
                del placed[it.job]
                heappush(queue, (-it.gpus, it.job, it))
        if on is None:
            without.append(want)
        else:
            placed[want.job] = on
    return placed, without
