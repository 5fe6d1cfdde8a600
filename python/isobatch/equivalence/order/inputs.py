"""Checks of the inputs of a step of two runs: rows, tokens, labels, masks and other tensors."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from isobatch.equivalence.checks import EQUAL
from isobatch.equivalence.details import InputTensor
from isobatch.equivalence.order.pair import Pair, Unlike, Unseen
from isobatch.equivalence.weights import distance
from isobatch.limits import within
from isobatch.words import counted, few

_MASKS = ("attention_mask", "position_ids", "cu_seq_lens_q")
_TOKENS = ("input_ids", "decoder_input_ids")
SHOWN = 6
"""Entries of a row that are shown around its first difference."""


def rows(pair: Pair) -> Unlike | Unseen | None:
    """Compares passes, their number of rows, and the dataset rows where a loader draws them."""
    event = pair.event
    shapes = [run.shape(event) for run in (pair.run, pair.second_run)]
    if len(shapes[0]) != len(shapes[1]):
        return Unlike(f"{len(shapes[0])} ranks", f"{len(shapes[1])} ranks", "the ranks of a step")
    runs = pair.run, pair.second_run
    sizes = [None if (loader := run.training_loader()) is None else loader.rows for run in runs]
    if None not in sizes and sizes[0] != sizes[1]:
        return Unlike.of((counted(size or 0, "row") for size in sizes), "the dataset")
    drawn = [run.rows(event) for run in runs]
    if shapes[0] != shapes[1]:
        return Unlike.of(map(_shape_text, shapes), "the passes of a step, and their rows")
    sides = [side for side in drawn if side is not None]
    if len(sides) < 2:
        return Unseen("no torch DataLoader draws them by number: their content is compared")
    if sides[0] != sides[1]:
        values = [[row for rank in side for batch in rank for row in batch] for side in sides]
        contents = [sorted(chain(*chain(*step.hashes))) for step in pair.steps]
        if contents[0] and contents[0] == contents[1]:
            return None  # another numbering of the same rows
        return Unlike.of((few([str(row) for row in side]) for side in values), "rows of the dataset")
    return None


def tokens(pair: Pair) -> Unlike | Unseen | None:
    """Compares the tokens of each row, without padding."""
    return _compare(pair, lambda name: name.endswith(_TOKENS), "tokens", padded=True)


def labels(pair: Pair) -> Unlike | Unseen | None:
    """Compares labels, and how many of them count."""
    return _compare(pair, lambda name: name.endswith("labels"), "labels", padded=True)


def mask(pair: Pair) -> Unlike | Unseen | None:
    """Compares masks and positions; a missing one stands for the plain one."""
    return _compare(pair, lambda name: name.endswith(_MASKS), "mask", padded=True)


def inputs(pair: Pair) -> Unlike | Unseen | None:
    """Compares all other tensors, where both sides have them."""
    known = (*_TOKENS, *_MASKS, "labels")
    return _compare(pair, lambda name: not name.endswith(known), "inputs", padded=False)


def _compare(pair: Pair, takes: Callable[[str], bool], noun: str, *, padded: bool) -> Unlike | Unseen | None:
    """Compares the tensors of a kind, row by row."""
    seen = False
    for where, own, their in pair.inputs():
        for name in dict.fromkeys([*own, *their]):
            if not takes(name):
                continue
            tensor, second = own.get(name), their.get(name)
            if tensor is None or second is None:
                if noun != "mask" or _is_plain(tensor or second):
                    continue  # a loop may keep it: the loss tells
                shown = ["none" if part is None else _shape(part) for part in (tensor, second)]
                return Unlike.of(shown, f"{name} of {where}")
            seen = True
            if (difference := _unlike(tensor, second, f"{name} of {where}", padded=padded)) is not None:
                return difference
    return None if seen else Unseen(f"the model takes no {noun}")


def _unlike(tensor: InputTensor, second: InputTensor, where: str, *, padded: bool) -> Unlike | None:
    """Compares two tensors: rows without their padding where they have some."""
    if tensor.sums or second.sums or not padded or len(tensor.shape) != 2 or len(second.shape) != 2:
        if _are_equal(tensor, second):
            return None
        return Unlike.of((f"{_shape(part)} {_first(part)}" for part in (tensor, second)), where)
    if tensor.shape[0] != second.shape[0]:
        return Unlike(_shape(tensor), _shape(second), where)
    for number in range(tensor.shape[0]):
        rows = [_unpadded(part.row(number)) for part in (tensor, second)]
        if rows[0] == rows[1]:
            continue
        at = next((at for at, (a, b) in enumerate(zip(*rows, strict=False)) if a != b), min(map(len, rows)))
        texts = [f"{' '.join(map(str, row[at : at + SHOWN])) or 'its end'} …" for row in rows]
        counts = "" if len(rows[0]) == len(rows[1]) else f" ({len(rows[0])} and {len(rows[1])} of them)"
        return Unlike.of(texts, f"row {number} of {where}, from entry {at} on{counts}")
    return None


def _are_equal(tensor: InputTensor, second: InputTensor) -> bool:
    """Compares numbers by their values, tensors of floating-point numbers also by their dtype."""
    if tensor.shape != second.shape:
        return False
    if not tensor.shape or not (tensor.sums and second.sums):
        a, b = (np.abs(part.entries or part.sums) for part in (tensor, second))
        return len(a) == len(b) and bool(within(distance(a, b), EQUAL))
    sums, others = np.array(tensor.sums), np.array(second.sums)
    return tensor.dtype == second.dtype and bool(within(distance(others, sums), EQUAL))


def _unpadded(row: list[int]) -> list[int]:
    """Takes the padding, a run of 0 or -100 at an end, off a row: releases pad to other lengths."""
    content = [at for at, entry in enumerate(row) if entry not in (0, -100)]
    return row[content[0] : content[-1] + 1] if content else []


def _is_plain(tensor: InputTensor | None) -> bool:
    """Tells whether a mask says nothing: all ones, or positions from 0."""
    if tensor is None or not tensor.entries or not tensor.shape:
        return False
    counted = [*range(tensor.shape[-1])] * (len(tensor.entries) // max(tensor.shape[-1], 1))
    return {*tensor.entries} == {1} or tensor.entries == counted


def _shape(tensor: InputTensor) -> str:
    return f"{tensor.dtype} {' × '.join(map(str, tensor.shape)) or 'number'}"


def _first(tensor: InputTensor) -> str:
    return " ".join(f"{entry:g}" for entry in [*tensor.entries[:SHOWN], *tensor.first])


def _shape_text(shape: Sequence[Sequence[int]]) -> str:
    counts = sorted({count for rank in shape for count in rank})
    passes = sorted({len(rank) for rank in shape})
    return f"{few(map(str, passes))} {'pass' if passes == [1] else 'passes'} of {few(map(str, counts))} rows"
