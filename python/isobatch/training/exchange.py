"""Exchanges values among ranks as plain data: torch's object collectives unpickle, and so could execute, a
peer's message.
"""

from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

MAX_BYTES = 1 << 26
"""The most bytes of one rank's value."""


def gather_bytes(written: bytes, group: Any = None) -> list[bytes]:
    """Returns the bytes of all ranks of a group with a backend for the CPU."""
    if len(written) > MAX_BYTES:
        raise ValueError(f"a value of {len(written):,} bytes is too large to send: at most {MAX_BYTES:,}")
    size = torch.tensor([len(written)])
    sizes = [torch.zeros_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    lengths = [int(length) for length in sizes]
    if not 0 <= min(lengths) <= max(lengths) <= MAX_BYTES:
        raise RuntimeError(f"gloo: a rank announces a value of {max(lengths):,} bytes")
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(written)] = (
        torch.frombuffer(bytearray(written), dtype=torch.uint8) if written else padded[:0]
    )
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [bytes(part[:length].numpy()) for part, length in zip(parts, lengths, strict=True)]


def gather_values(value: Any, group: Any = None, kind: Any = Any) -> list[Any]:
    """Returns the values of all ranks, in MessagePack: numbers, texts, lists and Structs, NaN among them."""
    parts = gather_bytes(msgspec.msgpack.encode(value, enc_hook=_plain), group)
    try:
        return [msgspec.msgpack.decode(part, type=kind) for part in parts]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RuntimeError(f"a rank's value cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks")
