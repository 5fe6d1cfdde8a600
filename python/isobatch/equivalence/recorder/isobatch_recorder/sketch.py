"""A linear sketch of a tensor: signed sums of its entries in a few buckets.

Sketches add up as the tensors do.
"""

from __future__ import annotations

from typing import Any

import torch

PERIOD = 65_521
"""Entries after which the signs of a row repeat: a prime, so that no tensor's width divides it."""
KINDS = 64
"""Sign vectors that tensors of one model share."""
ROWS = 1 << 20

_signs: dict[tuple[int, int], torch.Tensor] = {}


def whole(tensor: Any) -> torch.Tensor:
    """Gathers a tensor, sharded over ranks or not (all ranks call this)."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def sketch(number: int, tensor: Any, buckets: int) -> torch.Tensor:
    """Sums the entries of a tensor of the model, each with its own sign, into at most `buckets` float64."""
    entries = whole(tensor)
    if entries.is_sparse:
        entries = entries.to_dense()
    entries = entries.reshape(-1)
    if len(entries) > PERIOD:
        rows = len(entries) // PERIOD
        signs = _sign(1, ROWS)[:rows].to(entries.device)
        # In blocks: a copy in float32 of a tensor of half precision would be as large as the tensor.
        folded = torch.zeros(PERIOD, dtype=torch.float64, device=entries.device)
        for first in range(0, rows, 256):
            block = entries[first * PERIOD : min(first + 256, rows) * PERIOD].view(-1, PERIOD)
            wide = block if block.dtype == torch.float64 else block.float()
            folded += torch.mv(wide.T, signs[first : first + len(block)].to(wide.dtype)).double()
        rest = entries[rows * PERIOD :]
        folded[: len(rest)] += rest.double()
        entries = folded
    signed = entries.double().cpu() * _sign(2 + number % KINDS, PERIOD)[: len(entries)].double()
    count = size_of(tensor, buckets)
    padding = -len(signed) % count
    return torch.nn.functional.pad(signed, (0, padding)).reshape(-1, count).sum(0)


def size_of(tensor: torch.Tensor, buckets: int) -> int:
    """Returns the buckets of a tensor's sketch."""
    return min(buckets, max(tensor.numel(), 1))


def _sign(kind: int, count: int) -> torch.Tensor:
    if (kind, count) not in _signs:
        generator = torch.Generator().manual_seed(77 + kind)
        bits = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8)
        _signs[kind, count] = bits.float() * 2 - 1
    return _signs[kind, count]
