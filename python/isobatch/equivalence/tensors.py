"""Tensors and batches: pieces, how far some are from others, checksums over their bits, number formats, and
what a loss does over a batch.
"""

import contextlib
import dataclasses
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from isobatch.equivalence.likeness import Likeness
from isobatch.limits import within

REDUCTION_GATE = 1e-3
"""How far, relative to the loss, a mean or a sum of parts may be from the whole."""


def mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to each leaf of mappings, sequences and dataclasses."""
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [mapped(value, function) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch) if field.init]
        return dataclasses.replace(batch, **{name: mapped(getattr(batch, name), function) for name in fields})
    return function(batch)


def tensors_in(batch: Any) -> list[Tensor]:
    """Lists the tensors in a batch."""
    leaves: list[Any] = []
    mapped(batch, leaves.append)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def part(batch: Any, start: int, stop: int) -> Any:
    """Slices the samples from start to stop out of a batch.

    >>> part({"x": range(4)}, 1, 3)
    {'x': range(1, 3)}
    """
    return mapped(batch, lambda column: column[start:stop])


def reduction_of(
    whole: float, losses: tuple[float, float], units: tuple[float, float], gate: float = REDUCTION_GATE
) -> Literal["mean", "sum", "neither"]:
    """Classifies a loss over a batch, by the losses of its two parts and their units.

    >>> [reduction_of(whole, (1.0, 3.0), (1, 3)) for whole in (2.5, 4.0, 9.0)]
    ['mean', 'sum', 'neither']
    """
    mean = sum(unit * loss for unit, loss in zip(units, losses, strict=True)) / sum(units)
    if within(whole - mean, gate * abs(whole)):
        return "mean"
    return "sum" if within(whole - sum(losses), gate * abs(whole)) else "neither"


ELEMENTS = 1 << 22


def dense(tensor: Tensor) -> Tensor:
    """Returns the tensor with its zeros: an embedding's gradient may be sparse."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def chunks(tensor: Tensor, elements: int = ELEMENTS) -> Iterator[Tensor]:
    """Yields a tensor's elements in order, in pieces of at most so many."""
    flat = dense(tensor.detach()).reshape(-1)
    for start in range(0, flat.numel(), elements):
        yield flat[start : start + elements]


def square(tensor: Tensor) -> Tensor:
    """Sums the squares, in double precision: a scalar on the tensor's device."""
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for piece in chunks(tensor):
        wide = piece.double()
        total += wide @ wide
    return total


def likeness(
    tensors: Sequence[Tensor | None],
    reference: Sequence[Tensor | None],
    before: Sequence[Tensor | None] | None = None,
    device: torch.device | None = None,
) -> Likeness:
    """Compares tensors with a reference piece by piece, on `device`.

    None counts as zeros, and `before` is subtracted from both.
    """
    sums: Tensor | None = None
    for f, r, b in zip(tensors, reference, before or [None] * len(reference), strict=True):
        some = f if f is not None else r
        if some is None or not some.numel():
            continue
        if sums is None:
            sums = torch.zeros(4, dtype=torch.float64, device=device or some.device)
        for start in range(0, some.numel(), ELEMENTS):
            x, y, z = (_piece(t, start, min(ELEMENTS, some.numel() - start), sums.device) for t in (f, r, b))
            x, y = x - z, y - z
            d = x - y
            sums += torch.stack([d @ d, x @ x, x @ y, y @ y])
    return Likeness(*([0.0] * 4 if sums is None else map(float, sums.tolist())))


def _piece(tensor: Tensor | None, start: int, elements: int, device: torch.device) -> Tensor:
    """Returns a piece of a tensor in double precision."""
    if tensor is None:
        return torch.zeros(elements, dtype=torch.float64, device=device)
    return dense(tensor.detach()).reshape(-1)[start : start + elements].to(device).double()


WORDS = 1 << 22  # summed at a time: the sums need room on the device, 32 bytes a word


def checksum(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """Computes two sums over the bits of tensors, plain and weighted by place."""
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


def checksum_bytes(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of memory used by `checksum` beside the tensors.

    It takes four numbers of 8 bytes for each word of a piece, and a copy of a tensor that is not contiguous.

    >>> checksum_bytes([torch.zeros(10)])
    320
    """
    copies = (0 if tensor.is_contiguous() else tensor.nbytes for tensor in tensors)
    pieces = (32 * min(WORDS, -(-tensor.nbytes // 4)) for tensor in tensors)
    return max(map(operator.add, pieces, copies), default=0)


def differing(rank_sums: Sequence[Hashable]) -> list[int]:
    """Lists the ranks with other sums than most; where no majority agrees, as with two ranks, all of them."""
    counts = Counter(rank_sums)
    most, votes = counts.most_common(1)[0]
    if 2 * votes <= len(rank_sums):
        return list(range(len(rank_sums)))
    return [rank for rank, sums in enumerate(rank_sums) if sums != most]


AUTOCAST: dict[str | None, torch.dtype | None] = {
    None: None,
    "fp32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""The recipe's precisions, and the format of autocast for each; None where there is none."""


def ulp(number: Any) -> float:
    """Returns the unit in the last place of 1, in the format of a number: a tensor's is mostly float32."""
    return torch.finfo(number.dtype).eps if isinstance(number, Tensor) else 2.0**-52


@contextlib.contextmanager
def float32_as(mode: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Computes float32 matrix products in full precision, or in TensorFloat-32 (10 bits).

    From 2.9 on torch has switches of two generations, and torch.compile asks the older ones: they raise where
    the newer ones say something else. So both are set, and put back.
    """
    before = [(thing, name, _read(thing, name)) for thing, name in _SWITCHES]
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer ones were set apart from it: it is torch's default
        products = "highest"
    try:
        torch.set_float32_matmul_precision("highest" if mode == "ieee" else "high")
        for thing, name in _SWITCHES:
            if _read(thing, name) is not None:
                setattr(thing, name, mode if name == "fp32_precision" else mode == "tf32")
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        for thing, name, value in before:
            if value is not None:
                setattr(thing, name, value)


_BACKENDS: Any = torch.backends
_SWITCHES: list[tuple[Any, str]] = [
    (_BACKENDS.cudnn, "allow_tf32"),
    (_BACKENDS.cuda.matmul, "fp32_precision"),
    *((getattr(_BACKENDS.cudnn, name, None), "fp32_precision") for name in ("conv", "rnn")),
]
"""The older one first: it sets the newer ones, too."""


def _read(thing: Any, name: str) -> Any:
    """Reads a switch; None where this torch has none, or refuses to tell, as the other generation was set."""
    try:
        return getattr(thing, name, None)
    except RuntimeError:
        return None


def free_on_gpu(device: torch.device) -> int:
    """Counts the bytes left on a GPU: free, or idle in this process's allocator."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + idle
