"""Guesses a recipe in the settings of nobody's tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.tools.unread import guess_field

_DEEPEST = 4


def leaves(settings: Mapping[Any, Any], inside: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a file with their places: ("train.lr", 0.1)."""
    for name, value in settings.items():
        key = f"{inside}{name}"
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                yield from leaves(value, f"{key}.", depth + 1)
        elif (
            isinstance(value, str | int | float) and not isinstance(value, bool) and value not in ("", 0, -1)
        ):
            yield key, value


def as_recipe(settings: Mapping[str, Any]) -> list[str]:
    """Guesses the lines of a recipe for a file of nobody's tool; its author checks them.

    >>> print("\\n".join(as_recipe({"batch_size": 16, "accum": 4, "lr": 3e-3, "epochs": 2})))
    effective_batch=N   batch_size 16 × accum 4 × the GPUs of that run (without them if batch_size counts all GPUs)
    lr=0.003            lr
    duration=2ep        epochs
    """
    found: dict[str, tuple[str, Any]] = {}
    for key, value in leaves(settings):
        kind = guess_field(key)
        if kind is not None and kind not in found:
            found[kind] = (key, value)
    pairs = [_batch(found)]
    for field in ("lr", "duration", "warmup", "schedule", "min_lr", "optimizer", "weight_decay"):
        if field in found:
            key, value = found[field]
            pairs.append((f"{field}={_value(field, key, value)}", key))
    width = max(len(left) for left, _ in pairs)
    return [f"{left:<{width}}   {right}" for left, right in pairs]


def _batch(found: Mapping[str, tuple[str, Any]]) -> tuple[str, str]:
    if "effective_batch" in found:
        key, value = found["effective_batch"]
        return f"effective_batch={value}", key
    for kind in ("batch_per_gpu", "batch"):
        if kind not in found:
            continue
        key, value = found[kind]
        factors = f"{key} {value}"
        if "accumulation" in found:
            factors += " × {} {}".format(*found["accumulation"])
        sure = "" if kind == "batch_per_gpu" else f" (without them if {key} counts all GPUs)"
        return "effective_batch=N", f"{factors} × the GPUs of that run{sure}"
    return "effective_batch=N", "samples in an optimizer step, over all GPUs"


def _value(field: str, key: str, value: Any) -> str:
    """Adds the unit implied by its name to a length."""
    name = key.rpartition(".")[2].lower()
    if field in ("duration", "warmup") and isinstance(value, str):  # of a command line
        try:
            value = float(value)
        except ValueError:
            return str(value)
    if field not in ("duration", "warmup") or not isinstance(value, int | float):
        return str(value)
    if "epoch" in name:
        return f"{value:g}ep"
    if field == "warmup" and value < 1:
        return f"{value * 100:g}%"
    return f"{value:g}sp" if "sample" in name else f"{int(value) if value == int(value) else value}st"
