"""The sum of a step's gradients, in one binary tree over its chunks.

The order of the additions, and so the bits of the sum, do not depend on the ranks.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from isobatch.training.chunks import own_chunks

_ALIGNED = 512
"""Bytes to which each gradient's place is aligned. Kernels read whole vectors and treat elements before the
first aligned one separately: unaligned gradients would be added in another order."""

_MOST_KEPT = 8
"""The most sets of buffers kept for reuse."""

Node: TypeAlias = tuple[int, int]
"""A subtree: its first chunk, and the number of chunks it spans, a power of two; it may reach past the last
chunk."""


def roots_of(own: range, count: int) -> list[Node]:
    """Lists the largest subtrees with only chunks of the range `own`, in order; the step has `count` chunks.

    >>> roots_of(range(4, 9), 24), roots_of(range(19, 24), 24), roots_of(range(24), 24)
    ([(4, 4), (8, 1)], [(19, 1), (20, 4)], [(0, 32)])
    """
    roots, start = list[Node](), own.start
    while start < own.stop:
        size = 1
        while size < count and not start % (2 * size) and min(start + 2 * size, count) <= own.stop:
            size *= 2
        roots.append((start, size))
        start += size
    return roots


class GradientLayout:
    """Lays gradients out in flat buffers, one for each device and dtype, divided evenly over the ranks."""

    def __init__(self, tensors: Sequence[Tensor], ranks: int) -> None:
        # The strides that autograd gives a gradient: those of its parameter, if the parameter is dense.
        self._forms = [(tensor.shape, torch.empty_like(tensor, device="meta").stride()) for tensor in tensors]
        self._places: list[tuple[int, int]] = []
        self._kinds: list[tuple[torch.device, torch.dtype]] = []
        lengths: list[int] = []
        for tensor in tensors:
            kind = tensor.device, tensor.dtype
            if kind not in self._kinds:
                self._kinds.append(kind)
                lengths.append(0)
            index = self._kinds.index(kind)
            self._places.append((index, lengths[index]))
            unit = _ALIGNED // tensor.element_size()
            lengths[index] += -(-tensor.numel() // unit) * unit
        self._kept: list[tuple[list[Tensor], int, list[int]]] = []
        self.slices = [-(-length // ranks) for length in lengths]

    def buffers(self, slices: int) -> list[Tensor]:
        """Returns uninitialized buffers of `slices` slices each; those without any reference are reused, as
        on a CPU allocating memory takes longer than filling it."""
        for buffers, count, uses in self._kept:
            if count == slices and [*map(_uses, buffers)] == uses:
                break
        else:
            buffers = [
                torch.empty(length * slices, device=device, dtype=dtype)
                for length, (device, dtype) in zip(self.slices, self._kinds, strict=True)
            ]
            if slices and len(self._kept) < _MOST_KEPT:
                self._kept.append((buffers, slices, [*map(_uses, buffers)]))
        return [buffer.view(-1) for buffer in buffers]

    def views(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Returns the gradients as views of buffers."""
        return [
            buffers[index].as_strided(shape, strides, offset)
            for (shape, strides), (index, offset) in zip(self._forms, self._places, strict=True)
        ]


def _uses(buffer: Tensor) -> int:
    """Counts the tensors sharing a buffer's memory."""
    return int(torch._C._storage_Use_Count(buffer.untyped_storage()._cdata))


class TreeSum:
    """The sum of one step's gradients.

    A rank adds up its own subtrees as their chunks come, so that at most log₂(its chunks) + 1 gradients are
    in memory. The subtrees' roots are exchanged while the next chunks are computed: each rank gets its slice
    of all roots and finishes the tree for that slice; then the slices are gathered. If each rank has one
    root, the ranks send as much as in a ring all-reduce.
    """

    def __init__(self, layout: GradientLayout, own: range, count: int, group: Any) -> None:
        self._layout, self._own, self._count, self._group = layout, own, count, group
        rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self._roots = [roots_of(own_chunks(count, each, ranks), count) for each in range(ranks)]
        self._rank, self._round = rank, 0
        self._sums: dict[Node, list[Tensor]] = {}
        self._pieces: list[dict[Node, Tensor]] = [{} for _ in layout.slices]
        self._works: list[Any] = []

    def add(self, number: int, gradients: list[Tensor]) -> None:
        """Adds a chunk's gradients, and may overwrite them; the chunks of a rank must come in order."""
        start, size, total = number, 1, gradients
        while (start, size) not in self._roots[self._rank]:
            if start // size % 2:
                start -= size
                sibling = self._sums.pop((start, size))
                torch._foreach_add_(sibling, total)
                total = sibling
            elif start + size < self._count:
                self._sums[start, size] = total
                return
            size *= 2
        buffers = self._layout.buffers(len(self._roots))
        torch._foreach_copy_(self._layout.views(buffers), total)
        self._exchange(buffers)

    def result(self) -> list[Tensor]:
        """Returns the sum of all ranks' gradients; call it after this rank's last chunk was added."""
        while self._round < max(map(len, self._roots)):
            self._exchange([])
        for work in self._works:
            work.wait()
        self._works.clear()
        top = 1
        while top < self._count:
            top *= 2
        slices = [self._finish(pieces, (0, top)) for pieces in self._pieces]
        if self._group is None:
            return self._layout.views(slices)
        buffers = self._layout.buffers(len(self._roots))
        works: list[Any] = [
            dist.all_gather_into_tensor(buffer, part, group=self._group, async_op=True)
            for buffer, part in zip(buffers, slices, strict=True)
        ]
        for work in works:
            work.wait()
        return self._layout.views(buffers)

    def _exchange(self, buffers: list[Tensor]) -> None:
        """Begins a round: each rank sends its next root, or nothing if it has no more."""
        senders = [roots[self._round] if self._round < len(roots) else None for roots in self._roots]
        self._round += 1
        if self._group is None:
            for pieces, buffer in zip(self._pieces, buffers, strict=True):
                pieces[self._roots[0][0]] = buffer
            return
        buffers = buffers or self._layout.buffers(0)
        outputs = self._layout.buffers(len(senders) - senders.count(None))
        rows = zip(self._pieces, self._layout.slices, buffers, outputs, strict=True)
        for pieces, length, buffer, output in rows:
            received = [0 if root is None else length for root in senders]
            sent = [length if buffer.numel() else 0] * len(senders)
            work = dist.all_to_all_single(output, buffer, received, sent, group=self._group, async_op=True)
            self._works.append(work)
            parts = iter(torch.split(output, [each for each in received if each]))
            pieces.update({root: next(parts) for root in senders if root is not None})

    def _finish(self, pieces: dict[Node, Tensor], node: Node) -> Tensor:
        if node in pieces:
            return pieces[node]
        start, half = node[0], node[1] // 2
        total = self._finish(pieces, (start, half))
        if start + half < self._count:
            total += self._finish(pieces, (start + half, half))
        return total
