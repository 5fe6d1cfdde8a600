"""Details of a step beside its gradient: inputs, dtypes, dropout, the optimizer's state, random states.

They tell two releases of a library apart, or a run from its continuation, by the first thing that differs.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from .sketch import sketch, whole
from .states import describe_states

MOST = 1 << 14
"""Entries of an integer tensor that are kept; of a larger one, sums."""
SUMS = 16
"""Signed sums of the entries of other tensors: releases may round otherwise."""
FEW = 4
"""Entries of a tensor of floating-point numbers that are shown."""
_PLAIN = (bool, int, float, str, type(None))


def read_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Describes each tensor in a module's call, under its parameter's name."""
    names: list[str] = []
    if args:
        parameters = inspect.signature(getattr(module, "module", module).forward).parameters.values()
        names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {(names[at] if at < len(names) else f"input {at}"): value for at, value in enumerate(args)}
    return [_describe(name, tensor) for name, tensor in _tensors({**named, **kwargs}, "")]


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if not value.requires_grad:
            yield name, value.detach()
    elif hasattr(value, "items"):
        for key in sorted(value.keys(), key=str):
            yield from _tensors(value[key], f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _tensors(item, f"{name}.{number}")


def _describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    entries = tensor.cpu().contiguous().reshape(-1)
    is_integer = not (tensor.is_floating_point() or tensor.is_complex())
    record = {"name": name, "shape": list(tensor.shape), "dtype": _name_of(tensor.dtype)}
    if is_integer and len(entries) <= MOST:
        record["entries"] = [int(entry) for entry in entries.tolist()]
    else:
        numbers = torch.view_as_real(entries).reshape(-1) if tensor.is_complex() else entries
        record["sums"] = sketch(0, numbers, SUMS).tolist()
        record["first"] = [float(f"{float(entry):.6g}") for entry in numbers[:FEW]]
    return record


def describe_step(recorder: Any, number: int, optimizer: Any, tensors: list[Any]) -> dict[str, Any]:
    """Describes the parameters, the state of an optimizer and the random states before its step."""
    with torch.no_grad():
        details = {
            "shapes": [list(tensor.shape) for tensor in tensors],
            "dtypes": [_name_of(tensor.dtype) for tensor in tensors],
            "norms": [float(whole(tensor).double().norm()) for tensor in tensors],
            "trained": [bool(tensor.requires_grad) for tensor in tensors],
            "dropouts": recorder.dropouts,
            "state": _state(optimizer),
            "beside": describe_states(recorder),
            "random": _random_states(),
        }
    recorder.dropouts = {}
    if not recorder.steps.get(number) and recorder.rank == 0:
        details["settings"] = _settings(recorder)
    return details


def _state(optimizer: Any) -> dict[str, list[list[float]]]:
    """Reads an optimizer's state: by its name, the signed sum and the norm of each tensor's entries."""
    states: dict[str, list[list[float]]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for at, parameter in enumerate(parameters):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, (int, float)):
                value = torch.tensor(float(value))
            if isinstance(value, torch.Tensor) and not value.is_complex():
                entries = whole(value)
                row = [float(sketch(at, entries, 1)), float(entries.double().norm())]
                states.setdefault(str(name), [[0.0, 0.0]] * len(parameters))[at] = row
    return states


def _random_states() -> dict[str, str]:
    states = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": repr(random.getstate()).encode()}
    if (numpy := sys.modules.get("numpy")) is not None:
        _, keys, position, *_ = numpy.random.get_state()
        states["NumPy"] = keys.tobytes() + str(position).encode()
    return {name: hashlib.sha1(s, usedforsecurity=False).hexdigest()[:12] for name, s in states.items()}


def _settings(recorder: Any) -> dict[str, Any]:
    """Lists the settings of models, adapters and a trainer's arguments."""
    settings: dict[str, Any] = {}
    for model in recorder.models:
        for part in model.modules():
            config = getattr(part, "config", None)
            if config is not None and hasattr(config, "to_dict"):
                settings |= _plain(type(config).__name__, config.to_dict())
            adapters = getattr(part, "peft_config", None)
            for adapter in adapters.values() if isinstance(adapters, dict) else ():
                settings |= _plain(type(adapter).__name__, adapter.to_dict())
    for arguments in recorder.arguments:
        settings |= _plain(type(arguments).__name__, vars(arguments))
    return settings


def _plain(name: str, values: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in ((str(key), value) for key, value in values.items()):
        if isinstance(value, dict):
            plain |= _plain(f"{name}.{key}", value)
        elif isinstance(value, _PLAIN) or "Enum" in [kind.__name__ for kind in type(value).__mro__]:
            if not key.startswith("_") and not (isinstance(value, str) and os.sep in value):
                plain[f"{name}.{key}"] = value if isinstance(value, (bool, int, float)) else str(value)
        elif isinstance(value, (list, tuple, set, frozenset, torch.dtype)):
            plain[f"{name}.{key}"] = str(
                sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
            )
    return plain


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
