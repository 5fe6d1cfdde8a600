"""Digests: BLAKE2b of the bytes of files, of jobs and of plans."""

from __future__ import annotations

import hashlib
from typing import Any

_AT_A_TIME = 1 << 22


def new_digest() -> Any:
    """One that has heard of nothing yet."""
    return hashlib.blake2b(digest_size=16)


def digest_of_stream(stream: Any) -> str:
    """Of all that is left in a stream."""
    digest = new_digest()
    while data := stream.read(_AT_A_TIME):
        digest.update(data)
    return str(digest.hexdigest())


def digest_of_texts(*data: bytes) -> str:
    """Of several texts; where one ends and the next begins matters."""
    digest = new_digest()
    for some in data:
        digest.update(len(some).to_bytes(8, "little"))
        digest.update(some)
    return str(digest.hexdigest())
