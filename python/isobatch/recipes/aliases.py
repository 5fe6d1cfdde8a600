"""Other tools' names in our own recipe files: `learning_rate`, `num_train_epochs`, `warmup_ratio` and so on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.nearest import OURS
from isobatch.words import share

_UNITS = {
    "epochs": "ep",
    "num_epochs": "ep",
    "num_train_epochs": "ep",
    "max_epochs": "ep",
    "max_steps": "st",
    "train_iters": "st",
    "train_samples": "sp",
    "warmup_steps": "st",
    "num_warmup_steps": "st",
}
"""Lengths that are bare numbers there."""

_AMBIGUOUS = {"batch", "batch_size", "train_batch_size", "step_size"}
"""Of one GPU with some tools, of all with others: these are only suggested."""


def with_our_names(fields: Mapping[str, Any], legal: Collection[str]) -> dict[str, Any]:
    """The fields by our names.

    Args:
        fields: as a file has them.
        legal: our names.

    Raises:
        InputError: a field is given by two names.

    >>> with_our_names({"learning_rate": 2e-5, "num_train_epochs": 3, "warmup_ratio": 0.03}, ["lr", "duration", "warmup"])
    {'lr': 2e-05, 'duration': '3ep', 'warmup': '3%'}
    """
    known: dict[str, Any] = {}
    said: dict[str, str] = {}
    for name, value in fields.items():
        ours = name if name in legal or name in _AMBIGUOUS else OURS.get(name, name)
        ours = ours if ours in legal else name
        if ours in known:
            raise InputError(f"{said[ours]} and {name} are the same field: give one of them", field=ours)
        said[ours] = name
        known[ours] = value if ours == name else _length(name, value)
    return known


def _length(name: str, value: Any) -> Any:
    """A bare number with the unit that its name implies; a share as a percentage."""
    if type(value) not in (int, float):
        return value
    if name == "warmup_ratio" or (name == "warmup_steps" and 0 < value < 1):
        return share(value)
    unit = _UNITS.get(name)
    return value if unit is None else f"{int(value) if value == int(value) else value}{unit}"
