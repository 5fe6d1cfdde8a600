"""The SHA-256 of a training's state and of each chunk's gradient.

Logged digests show where two runs begin to differ.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VARIABLE = "ISOBATCH_CHUNK_DIGESTS"
"""The environment variable that names the folder for the chunks' digests."""


def digest(*parts: Any) -> str:
    """Returns the SHA-256 of weights and optimizer state, in hexadecimal; nothing is exchanged.

    >>> net = torch.nn.Linear(2, 2)
    >>> before = digest(net)
    >>> _ = net.weight.data[0, 0].nextafter_(torch.tensor(9.0))
    >>> before != digest(net)
    True
    """
    states = [part.state_dict() for part in parts]
    return _combine(
        _leaves([state["state"] if {*state} == {"state", "param_groups"} else state for state in states])
    )


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for name in sorted(tree, key=str):
            yield from _leaves(tree[name])
    elif isinstance(tree, (list, tuple)):
        for branch in tree:
            yield from _leaves(branch)
    else:
        yield tree


def _combine(leaves: Iterable[Any]) -> str:
    """Hashes leaves in parallel threads: hashlib and copies from a GPU let other threads run."""
    with ThreadPoolExecutor() as pool:
        return hashlib.sha256(b"".join(pool.map(_hash, leaves))).hexdigest()


def _hash(leaf: Any) -> bytes:
    if not isinstance(leaf, Tensor):
        return hashlib.sha256(repr(leaf).encode()).digest()
    kind = hashlib.sha256(f"{tuple(leaf.shape)} {leaf.dtype}".encode())
    kind.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return kind.digest()


class ChunkDigests:
    """Writes a line for each chunk, with its step, its number and the SHA-256 of its gradient.

    Lines are written only if the environment variable names a folder. Each rank has a file of its own; two
    runs, at any numbers of ranks, are compared by `diff` of their sorted lines.
    """

    def __init__(self, rank: int) -> None:
        folder = os.environ.get(VARIABLE)
        self._file = None if not folder else Path(folder) / f"rank-{rank}.txt"
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)

    def write(self, step: int, chunk: int, gradients: list[Tensor]) -> None:
        """Writes the line of a chunk."""
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{step} {chunk} {_combine(gradients)}\n")
