"""The effective batch in the words of trainers: samples on a GPU × accumulation × replicas."""

from __future__ import annotations

from collections.abc import Iterable

from isobatch.nearest import OURS
from isobatch.words import printable

_SAMPLES = ("micro_batch", "batch_per_gpu")
_REPLICAS = ("data_parallel", "gpus", "world_size")


def product_of(names: Iterable[str]) -> list[str]:
    """Of a table's or a recipe's names those whose product is the effective batch; none where there is no batch of a GPU.

    >>> product_of(["lr", "world_size", "per_device_train_batch_size", "gradient_accumulation_steps"])
    ['per_device_train_batch_size', 'gradient_accumulation_steps', 'world_size']
    >>> product_of(["micro_batch", "gpus"]), product_of(["gpus", "lr"])
    (['micro_batch', 'gpus'], [])
    """
    ours = {name: OURS.get(name.lower(), name.lower()) for name in names}

    def first(known: tuple[str, ...]) -> list[str]:
        return [name for wanted in known for name, meant in ours.items() if meant == wanted][:1]

    samples = first(_SAMPLES)
    return [*samples, *first(("accumulation",)), *first(_REPLICAS)] if samples else []


def how_to_multiply(names: Iterable[str], *, in_python: bool) -> str | None:
    """What to do where effective_batch is missing and its factors are there; None where they are not.

    >>> how_to_multiply(["micro_batch", "accumulation", "gpus", "lr"], in_python=False)
    'add the column, micro_batch × accumulation × gpus'
    >>> how_to_multiply(["micro_batch", "gpus", "model_parallel"], in_python=False)
    'add the column, micro_batch × gpus / model_parallel (× the accumulation steps, where there are any)'
    >>> how_to_multiply(["micro_batch", "accumulation"], in_python=True)
    'jobs["effective_batch"] = jobs["micro_batch"] * jobs["accumulation"] (× the data-parallel replicas of the tuned run)'
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
    if "gpus" not in meant and (taken := [name for name in factors if name in _REPLICAS]):
        lacks.append(f"and rename {taken[0]} to gpus: plans have a column of that name")
    rest = f" ({', '.join(lacks)})" if lacks else ""
    if in_python:
        text = " * ".join(f'jobs["{printable(name, 60)}"]' for name in factors)
        text = f'jobs["effective_batch"] = {text}' + (' // jobs["model_parallel"]' if divided else "")
    else:
        text = f"add the column, {' × '.join(printable(name, 60) for name in factors)}"
        text += " / model_parallel" if divided else ""
    return f"{text}{rest}"
