"""Which nodes: whole nodes first, then best fit; who keeps its GPUs keeps its nodes, and no more jobs move than the space asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from isobatch.allocation.nodes import GpuKind, Held, Pool


@dataclass(frozen=True)
class Want:
    """GPUs of a kind for a job, and what it holds now."""

    job: int
    kind: int
    gpus: int
    held: Held
    stays: bool
    pinned: bool = False


class _Space:
    """Free GPUs of the nodes of a kind."""

    def __init__(self, kind: GpuKind, wanted: Collection[str]) -> None:
        self.size = kind.gpus
        self.free = dict.fromkeys(kind.nodes, kind.gpus)
        # A node that some job holds and may keep is taken by others last.
        later = len(kind.nodes)
        self.order = {name: at + later * (name in wanted) for at, name in enumerate(kind.nodes)}

    def sort(self) -> None:
        """Puts the nodes into heaps by what is free; one that has changed since is in several, and counts in the last."""
        self.heaps: list[list[tuple[int, str]]] = [[] for _ in range(self.size + 1)]
        for name, gpus in self.free.items():
            self.heaps[gpus].append((self.order[name], name))
        for heap in self.heaps:
            heapify(heap)

    def take(self, name: str, gpus: int) -> None:
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
        """Finds nodes for a job, those that it holds first; None where there is no space."""
        own = [name for name in sorted(want.held, key=lambda it: self.order.get(it, -1)) if name in self.free]
        if want.gpus < self.size:
            fitting = [name for name in own if self.free[name] >= want.gpus]
            name = fitting[0] if fitting else self.fullest(want.gpus)
            if name is None:
                return None
            self.take(name, want.gpus)
            return {name: want.gpus}
        found: Held = {}
        for name in own:
            if self.free[name] == self.size and len(found) < want.gpus // self.size:
                found[name] = self.size
                self.take(name, self.size)
        while len(found) < want.gpus // self.size:
            other = self.fullest(self.size)
            if other is None:
                for name in found:
                    self.take(name, -self.size)
                return None
            found[other] = self.size
            self.take(other, self.size)
        return found


def place(pool: Pool, wants: Sequence[Want]) -> tuple[dict[int, Held], list[Want]]:
    """Places all that it can.

    Returns:
        The nodes of each job, and those without a place: the free GPUs of their kind are in pieces.
    """
    placed: dict[int, Held] = {}
    left: list[Want] = []
    for number, kind in enumerate(pool.kinds):
        mine = [want for want in wants if want.kind == number]
        here, without = _of_kind(kind, mine)
        placed |= here
        left += without
    return placed, left


def _of_kind(kind: GpuKind, wants: Sequence[Want]) -> tuple[dict[int, Held], list[Want]]:
    best: tuple[dict[int, Held], list[Want]] | None = None
    for vacated in _vacated(kind, wants):
        stays = [it for it in wants if it.pinned or (it.stays and vacated.isdisjoint(it.held))]
        keeping = {want.job for want in stays}
        space = _Space(kind, {name for want in wants if want.job not in keeping for name in want.held})
        for want in stays:
            for name, gpus in want.held.items():
                space.free[name] -= gpus
        space.sort()
        placed = {want.job: want.held for want in stays}
        without = []
        # Large ones first: what is left in pieces is then small.
        for want in sorted((it for it in wants if it.job not in placed), key=lambda it: (-it.gpus, it.job)):
            found = space.place(want)
            if found is None:
                without.append(want)
            else:
                placed[want.job] = found
        if best is None or len(without) < len(best[1]):
            best = placed, without
        if not without:
            break
    assert best is not None
    return best


def _vacated(kind: GpuKind, wants: Sequence[Want]) -> Iterator[set[str]]:
    """Nodes to vacate: none, then 1, 2, 4 … of those on which least is held, at last all."""
    load: dict[str, int] = {}
    for want in wants:
        if want.stays and not want.pinned:
            for name, gpus in want.held.items():
                load[name] = load.get(name, 0) + gpus
    order = {name: at for at, name in enumerate(kind.nodes)}
    names = sorted((name for name in load if load[name] < kind.gpus), key=lambda it: (load[it], order[it]))
    count = 0
    while True:
        yield set(names[:count])
        if count >= len(names):
            break
        count = max(1, 2 * count)
    if len(names) < len(load):
        yield set(load)
