"""The tensors of a mesh's ranks, each in its place in the model without the mesh.

A part is placed by its weights before the first step, which are those of the whole model: by the name where
they agree, else by the weights alone, as stages of a pipeline may count their layers anew.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from isobatch.equivalence.records import RankStep
from isobatch.errors import InputError
from isobatch.words import few

Entries = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")
"""Parts of a name that a wrapper adds."""
ONE_SEED = "To fix it: make the whole model from one seed, and take each rank's part of it"


class Tensor(NamedTuple):
    """A parameter at a rank's first step; `ended`: after the step, None where that is unknown."""

    name: str
    weights: Entries
    gradient: Entries
    ended: Entries | None


class Part(NamedTuple):
    """A rank's tensor in its place: the name in the whole model, and the place of each entry there."""

    rank: int
    name: str
    places: Places
    tensor: Tensor


class Unplaced(InputError):
    """A tensor of a rank has no certain place in the whole model."""


def read_tensors(folder: Path, record: RankStep) -> list[Tensor]:
    """Reads a rank's tensors at its first step; none where the engine shows no gradient."""
    name = f"{record.optimizer}-{record.rank}.f32"
    if not (folder / f"entries-{name}").exists():
        return []
    ends = np.cumsum(record.entries)[:-1]
    both = np.fromfile(folder / f"entries-{name}", dtype=np.float32).reshape(2, -1)
    rows = [np.split(row, ends) for row in both]
    path = folder / f"ended-{name}"
    ended = np.split(np.fromfile(path, dtype=np.float32), ends) if path.exists() else []
    tensors = []
    for number, (label, shape) in enumerate(zip(record.names, record.shapes, strict=True)):
        for wrapper in WRAPPERS:
            label = label.replace(wrapper, "")
        after = ended[number].reshape(shape) if ended and record.own[number] else None
        tensors.append(Tensor(label, rows[0][number].reshape(shape), rows[1][number].reshape(shape), after))
    return tensors


def place(reference: Sequence[Tensor], ranks: Sequence[Sequence[Tensor]]) -> list[Part]:
    """Places each rank's tensors in the reference's.

    Raises:
        Unplaced: a tensor's place is not certain, or a part of the model is on no rank.
    """
    whole = {tensor.name: tensor for tensor in reference}
    parts: list[Part] = []
    for rank, tensors in enumerate(ranks):
        parts += _place_rank(whole, rank, len(ranks), tensors)
    for name, tensor in whole.items():
        held = np.zeros(tensor.weights.size, dtype=bool)
        for part in parts:
            if part.name == name:
                held[part.places] = True
        if not held.all():
            raise Unplaced(f"{name}: {np.count_nonzero(~held)} of {held.size} entries are on no rank")
    return parts


def _place_rank(whole: dict[str, Tensor], rank: int, ranks: int, tensors: Sequence[Tensor]) -> Iterator[Part]:
    """Places one rank's tensors: first those with unlike entries, since they tell the names of the others."""
    placed: dict[str, Part] = {}
    prefixes: dict[str, str] = {}
    for tensor in (tensor for tensor in tensors if _is_distinct(tensor.weights)):
        part = _by_weights(whole, rank, tensor)
        placed[tensor.name] = part
        prefixes |= _renamed(tensor.name, part.name)
    for tensor in (tensor for tensor in tensors if not _is_distinct(tensor.weights)):
        name = _renamed_to(tensor.name, prefixes)
        if name not in whole:
            raise Unplaced(
                f"rank {rank}'s {tensor.name} is none of the run without: all of its entries are alike"
            )
        places = _of_equal_entries(whole, tensor, name, placed)
        if places is None and tensor.weights.size * ranks == whole[name].weights.size:
            places = np.arange(rank * tensor.weights.size, (rank + 1) * tensor.weights.size)
        if places is None:
            raise Unplaced(
                f"which part of {name} rank {rank} has is not certain: all of its entries are alike"
            )
        if not np.array_equal(whole[name].weights.reshape(-1)[places], tensor.weights.reshape(-1)):
            raise Unplaced(f"rank {rank}'s {tensor.name} starts with other weights. {ONE_SEED}")
        placed[tensor.name] = Part(rank, name, places, tensor)
    yield from placed.values()


def _by_weights(whole: dict[str, Tensor], rank: int, tensor: Tensor) -> Part:
    """Places a tensor in the one with its weights: of its own name first, then of its last word."""
    names = [tensor.name] if tensor.name in whole else []
    last = tensor.name.rpartition(".")[2]
    for group in (
        names,
        [name for name in whole if name.rpartition(".")[2] == last and name not in names],
        [name for name in whole if name.rpartition(".")[2] != last and name not in names],
    ):
        fits = [
            (name, places)
            for name in group
            if (places := locate(tensor.weights, whole[name].weights)) is not None
        ]
        if len(fits) > 1:
            raise Unplaced(
                f"rank {rank}'s {tensor.name} has the weights of {few([name for name, _ in fits])}"
            )
        for name, places in fits:
            return Part(rank, name, places, tensor)
    shapes = f" ({'×'.join(map(str, tensor.weights.shape))})"
    raise Unplaced(
        f"rank {rank}'s {tensor.name}{shapes} starts with weights that the run without does not "
        f"have. {ONE_SEED}"
    )


def locate(part: Entries, whole: Entries) -> Places | None:
    """Finds the place of each of a part's entries; None where the weights are others.

    A part has some slices of the whole along one dimension, in any order, or a run of its entries.

    >>> locate(np.array([[3.0], [1.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])) is None
    True
    >>> locate(np.array([[2.0], [4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [1, 3]
    """
    if part.shape == whole.shape:
        return np.arange(whole.size) if np.array_equal(part, whole) else None
    if part.ndim != whole.ndim:
        return _locate_run(part, whole.reshape(-1)) if part.ndim == 1 else None
    differing = [axis for axis in range(whole.ndim) if part.shape[axis] != whole.shape[axis]]
    if len(differing) != 1 or part.shape[differing[0]] > whole.shape[differing[0]]:
        return None
    slices = np.moveaxis(part, differing[0], 0)
    numbers: dict[bytes, list[int]] = {}
    for number, row in enumerate(np.moveaxis(whole, differing[0], 0)):
        numbers.setdefault(row.tobytes(), []).append(number)
    candidates = [numbers.get(row.tobytes(), []) for row in slices]
    if not all(candidates):
        return None
    rows: list[int] = []
    offset = next((rows[0] - at for at, rows in enumerate(candidates) if len(rows) == 1), 0)
    for at, numbers_of_row in enumerate(candidates):
        # Slices that are alike, such as a table's empty rows, stand where their neighbours are.
        offset = numbers_of_row[0] - at if len(numbers_of_row) == 1 else offset
        rows.append(min(numbers_of_row, key=lambda number: abs(number - at - offset)))
    grid = np.arange(whole.size).reshape(whole.shape)
    return np.take(grid, rows, axis=differing[0]).reshape(-1)


def _locate_run(part: Entries, flat: Entries) -> Places | None:
    for first in np.flatnonzero(flat == part[0]) if part.size else ():
        if np.array_equal(flat[first : first + part.size], part):
            return np.arange(first, first + part.size)
    return None


def _is_distinct(weights: Entries) -> bool:
    return weights.size > 1 and bool(np.any(weights != weights.reshape(-1)[0]))


def _renamed(name: str, reference: str) -> dict[str, str]:
    """Lists prefixes standing for one another, where two names end alike.

    >>> _renamed("layers.0.up.weight", "layers.2.up.weight")
    {'layers.0.up': 'layers.2.up', 'layers.0': 'layers.2'}
    """
    words, others = name.split("."), reference.split(".")
    same = 0
    while same < min(len(words), len(others)) and words[-1 - same] == others[-1 - same]:
        same += 1
    return {
        ".".join(words[:-number]): ".".join(others[:-number])
        for number in range(1, same + 1)
        if number < len(words) and number < len(others)
    }


def _renamed_to(name: str, prefixes: dict[str, str]) -> str:
    words = name.split(".")
    for count in range(len(words) - 1, 0, -1):
        if (prefix := ".".join(words[:count])) in prefixes:
            return ".".join([prefixes[prefix], *words[count:]])
    return name


def _of_equal_entries(
    whole: dict[str, Tensor], tensor: Tensor, name: str, placed: dict[str, Part]
) -> Places | None:
    """Places a tensor with equal entries: the whole, or as a tensor of the same module with as many rows."""
    target = whole[name].weights
    if target.shape == tensor.weights.shape:
        return np.arange(target.size)
    module = tensor.name.rpartition(".")[0]
    for label, part in placed.items():
        sibling, shape = part.tensor.weights, whole[part.name].weights.shape
        if label.rpartition(".")[0] != module or not (sibling.ndim > target.ndim == 1):
            continue
        if len(sibling) == len(tensor.weights) and shape[0] == len(target):
            return part.places.reshape(len(sibling), -1)[:, 0] // int(np.prod(shape[1:]))
    return None
