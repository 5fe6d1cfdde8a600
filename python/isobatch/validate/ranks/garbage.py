"""Garbage, and what never is any."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept() -> Iterator[None]:
    """While it lasts nothing of what is there now is looked through for garbage: torch alone is a million objects, which takes a third
    of a second each time, and makes a forked rank copy its parent's memory. For processes of our own, where nobody else has any."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # or C++ libraries complain in the end of what they take for leaked
