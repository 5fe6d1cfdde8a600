"""Other tools' names for our fields: in recipe files, and as the factors of the effective batch."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.words import OURS, printable, share

_UNITS = {
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_epochs"), "ep"),
    **dict.fromkeys(("max_steps", "train_iters", "warmup_steps", "num_warmup_steps"), "st"),
    "train_samples": "sp",
}
"""Lengths that are bare numbers there."""

_AMBIGUOUS = {"batch", "batch_size", "train_batch_size", "step_size"}
"""Of one GPU with some tools, of all with others: these are only suggested."""


def with_our_names(fields: Mapping[str, Any], legal: Collection[str]) -> dict[str, Any]:
    """Renames a file's fields to our names.

    >>> fields = {"learning_rate": 2e-5, "num_train_epochs": 3, "warmup_ratio": 0.03}
    >>> with_our_names(fields, ["lr", "duration", "warmup"])
    {'lr': 2e-05, 'duration': '3ep', 'warmup': '3%'}
    """
    known: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, value in fields.items():
        field = name if name in legal or name in _AMBIGUOUS else OURS.get(name, name)
        field = field if field in legal else name
        if field in known:
            raise InputError(f"{sources[field]} and {name} are the same field: give one of them", field=field)
        sources[field] = name
        known[field] = value if field == name else _length(name, value)
    return known


def _length(name: str, value: Any) -> Any:
    """Adds the unit implied by a number's name; a share becomes a percentage."""
    if type(value) not in (int, float):
        return value
    if name == "warmup_ratio" or (name == "warmup_steps" and 0 < value < 1):
        return share(value)
    unit = _UNITS.get(name)
    return value if unit is None else f"{int(value) if value == int(value) else value}{unit}"


# ---- the effective batch in the words of trainers: samples on a GPU × accumulation × replicas ----

_SAMPLES = ("micro_batch", "batch_per_gpu")
_REPLICAS = ("data_parallel", "gpus", "world_size")


def product_of(names: Iterable[str]) -> list[str]:
    """Finds the factors of the effective batch among names; none without a batch of a GPU."""
    fields = {name: OURS.get(name.lower(), name.lower()) for name in names}

    def first(known: tuple[str, ...]) -> list[str]:
        return [name for field in known for name, meant in fields.items() if meant == field][:1]

    samples = first(_SAMPLES)
    return [*samples, *first(("accumulation",)), *first(_REPLICAS)] if samples else []


def how_to_multiply(names: Iterable[str], *, in_python: bool) -> str | None:
    """Says how to multiply the factors where effective_batch is missing; None without them.

    >>> how_to_multiply(["micro_batch", "gpus", "model_parallel"], in_python=False)
    'add the column, micro_batch × gpus / model_parallel (× the accumulation steps, where there are any)'
    >>> how_to_multiply(["micro_batch", "accumulation", "gpus"], in_python=True)
    'jobs["effective_batch"] = jobs["micro_batch"] * jobs["accumulation"] * jobs["gpus"]'
    """
    every = list(names)
    factors = product_of(every)
    if not factors:
        return None
    meant = [OURS.get(name.lower(), name.lower()) for name in factors]
    divided = "model_parallel" in every and not {"data_parallel"} & {*meant} and {*_REPLICAS} & {*meant}
    lacks = []
    if "accumulation" not in meant:
        lacks.append("× the accumulation steps, where there are any")
    if not {*_REPLICAS} & {*meant}:
        lacks.append("× the data-parallel replicas of the tuned run")
    if "gpus" not in meant and (replicas := [name for name in factors if name in _REPLICAS]):
        lacks.append(f"and rename {replicas[0]} to gpus: plans have a column of that name")
    rest = f" ({', '.join(lacks)})" if lacks else ""
    if in_python:
        text = " * ".join(f'jobs["{printable(name, 60)}"]' for name in factors)
        text = f'jobs["effective_batch"] = {text}' + (' // jobs["model_parallel"]' if divided else "")
    else:
        text = f"add the column, {' × '.join(printable(name, 60) for name in factors)}"
        text += " / model_parallel" if divided else ""
    return f"{text}{rest}"
