"""A training's state as data: a tree of JSON values, and its tensors' bytes with their types and shapes."""

import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from isobatch.elastic.messages import StateLayout
from isobatch.errors import InputError

TYPES = {str(kind): kind for kind in vars(torch).values() if isinstance(kind, torch.dtype)}
_ALIGNED = 16
"""Bytes to which each tensor's are filled up, so that they can be seen as any type."""
_SCALARS = (type(None), bool, int, float, str)

Specs = dict[str, tuple[str, list[int]]]
"""Types and shapes, by each tensor's path."""


def write_tree(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Splits a state into JSON values and tensors by path; the JSON has numbers in place of tensors.

    Dictionaries with simple keys, lists, tuples, texts, whole numbers of any size, floats to the bit,
    booleans and None come back as they were.

    >>> write_tree({"step": 3, "betas": (0.9, 0.99), 0: [torch.ones(2)]})[0]
    {'dict': [['step', 3], ['betas', {'tuple': [0.9, 0.99]}], [0, [{'tensor': 0}]]]}
    """
    tensors: dict[str, Tensor] = {}
    try:
        return _written(tree, "", tensors), tensors
    except RecursionError:
        raise InputError("the state is nested too deeply, or holds itself") from None


def _written(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if -(2**63) <= value < 2**63 else {"int": hex(value)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if kind in (Tensor, nn.Parameter) and value.layout is torch.strided and not value.is_quantized:
        while path in tensors:  # As of the keys 1 and "1".
            path += "'"
        tensors[path] = value
        return {"tensor": len(tensors) - 1}
    if isinstance(value, dict) and all(isinstance(key, _SCALARS) for key in value):
        pairs = [
            [_written(key, path, {}), _written(item, f"{path}.{key}", tensors)] for key, item in value.items()
        ]
        if hasattr(value, "_metadata"):  # A module's state has its layers' versions beside it.
            return {"module": [pairs, _written(value._metadata, path, {})]}
        return {"dict": pairs}
    if kind is list:
        return [_written(item, f"{path}.{at}", tensors) for at, item in enumerate(value)]
    if kind in (tuple, torch.Size):
        return {"tuple": [_written(item, f"{path}.{at}", tensors) for at, item in enumerate(value)]}
    raise InputError(
        f"{path.lstrip('.') or 'the state'} is a {kind.__module__}.{kind.__name__}, and must be made of "
        "numbers, texts, lists, dictionaries and whole tensors: what a peer sends is never unpickled"
    )


def read_tree(written: Any, tensors: list[Tensor]) -> Any:
    """Puts a state together again."""
    try:
        return _read(written, tensors)
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        raise InputError("the others' state cannot be read: it is damaged") from None


def _read(written: Any, tensors: list[Tensor]) -> Any:
    if isinstance(written, list):
        return [_read(item, tensors) for item in written]
    if not isinstance(written, dict):
        return written
    ((kind, value),) = written.items()
    match kind:
        case "tensor" if type(value) is int and value >= 0:
            return tensors[value]
        case "int":
            return int(value, 16)
        case "float" if value in ("nan", "inf", "-inf"):
            return float(value)
        case "tuple":
            return tuple(_read(list(value), tensors))
        case "dict":
            return {_read(key, tensors): _read(item, tensors) for key, item in value}
        case "module":
            state = OrderedDict(_read({"dict": value[0]}, tensors))
            state._metadata = _read(value[1], [])  # type: ignore[attr-defined]
            return state
    raise ValueError(kind)


def layout_of(tree: Any) -> tuple[StateLayout, list[Tensor]]:
    """Describes a state, and lists its tensors."""
    written, tensors = write_tree(tree)
    return StateLayout(written, [*specs_of(tensors).values()]), [*tensors.values()]


def read_layout(written: bytes) -> tuple[StateLayout, Specs]:
    """Reads a layout, and each tensor's type and shape by path, before the tensors' bytes arrive."""
    try:
        layout = msgspec.json.decode(written, type=StateLayout)
        places = [torch.empty(shape, dtype=TYPES[kind], device="meta") for kind, shape in layout.tensors]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RuntimeError, OverflowError):
        raise InputError("the others' state cannot be read: it is damaged") from None
    return layout, specs_of(write_tree(read_tree(layout.tree, places))[1])


def specs_of(tensors: dict[str, Tensor]) -> Specs:
    """Returns the type and the shape of each tensor."""
    return {path.lstrip("."): (str(tensor.dtype), [*tensor.shape]) for path, tensor in tensors.items()}


def check_alike(sent: Specs, own: Specs, whole: str) -> None:
    """Refuses tensors unlike this rank's own, by name. Outside of paths that begin with `whole` one side may
    have more of them: an optimizer makes its state in its first step."""
    for path in {**own, **sent}:
        sent_spec, own_spec = sent.get(path), own.get(path)
        is_compared = path.startswith(whole) or (path in sent and path in own)
        if is_compared and sent_spec != own_spec:
            raise InputError(
                f"the others' state does not fit here: {path} is {_shown(sent_spec)} there, "
                f"{_shown(own_spec)} here"
            )


def _shown(spec: tuple[str, list[int]] | None) -> str:
    return "missing" if spec is None else f"{spec[0].removeprefix('torch.')} {tuple(spec[1])}"


def _sizes(layout: StateLayout) -> Iterator[tuple[torch.dtype, list[int], int]]:
    for kind, shape in layout.tensors:
        yield TYPES[kind], shape, math.prod(shape) * TYPES[kind].itemsize


def size_of(layout: StateLayout) -> int:
    """Returns the bytes of a state's tensors."""
    return sum(_filled(size) for _, _, size in _sizes(layout))


def _filled(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def to_bytes(layout: StateLayout, tensors: list[Tensor]) -> Tensor:
    """Copies tensors into bytes, on the CPU."""
    written, start = torch.empty(size_of(layout), dtype=torch.uint8), 0
    for tensor, (_, _, size) in zip(tensors, _sizes(layout), strict=True):
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        written[start : start + size] = flat.view(torch.uint8)
        written[start + size : start + _filled(size)] = 0
        start += _filled(size)
    return written


def from_bytes(layout: StateLayout, written: Tensor) -> list[Tensor]:
    """Returns tensors as views of the bytes."""
    tensors, start = [], 0
    for kind, shape, size in _sizes(layout):
        tensors.append(written[start : start + size].view(kind).reshape(shape))
        start += _filled(size)
    return tensors
