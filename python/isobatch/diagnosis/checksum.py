"""Whether tensors are equal on all ranks, by sums over their bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from isobatch.diagnosis.chunks import dense

WORDS = 1 << 24  # summed at a time: the sums need room on the device


def checksum(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Two sums over the bits of some tensors, which differ where any bit does (but for chance): plain, and weighted by
    place."""
    plain = placed = 0
    for tensor in tensors:
        raw = dense(tensor.detach()).contiguous().view(-1).view(torch.uint8)
        pad = -raw.numel() % 4
        words = (torch.cat([raw, raw.new_zeros(pad)]) if pad else raw).view(torch.int32)
        sums = 0
        for start in range(0, words.numel(), WORDS):
            some = words[start : start + WORDS].long()
            place = torch.arange(start + 1, start + 1 + some.numel(), device=words.device) % 65_521
            plain = (plain + int(some.sum())) % 2**63
            sums += int((some * place).sum())
        placed = (placed * 31 + sums) % 2**63
    return plain, placed


def differing(group_sums: Sequence[Hashable]) -> list[int]:
    """The ranks whose sums are not those of most ranks; with two, the one that is not rank 0."""
    counts = Counter(group_sums)
    most = max(counts, key=lambda sums: (counts[sums], sums == group_sums[0]))
    return [rank for rank, sums in enumerate(group_sums) if sums != most]
