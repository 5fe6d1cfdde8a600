"""The batch that several numbers of a file describe together: effective batch = micro-batch × accumulation × replicas."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError, must_be


def counted(name: str, value: Any) -> int:
    """A number of GPUs, samples or micro-batches; a NumPy integer is one.

    Raises:
        InputError: it is no whole number from 1: a text, a flag, 1.0.

    >>> counted("gpus", 8)
    8
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 < operator.index(value) < 2**63:
        raise must_be("a whole number from 1", value, field=name)
    return operator.index(value)


def complete(fields: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The fields with `effective_batch` and, where they follow, micro-batch, accumulation and GPUs.

    Args:
        fields: of a recipe; `batch_per_gpu` is another name of the micro-batch.
        keys: what the file calls them, for messages.

    Raises:
        InputError: the numbers contradict each other, or one is no whole number from 1.

    >>> complete({"batch_per_gpu": 8, "accumulation": 4, "gpus": 8, "lr": 0.1})
    {'accumulation': 4, 'gpus': 8, 'lr': 0.1, 'micro_batch': 8, 'effective_batch': 256}
    >>> complete({"effective_batch": 512, "micro_batch": 4, "accumulation": 2, "gpus": 8})
    Traceback (most recent call last):
    isobatch.errors.InputError: effective_batch is 512, but micro_batch 4 × accumulation 2 × 8 replicas is 64: one of them is wrong
    """
    done = {name: value for name, value in fields.items() if name != "batch_per_gpu"}
    names = {
        name: (keys or {}).get(name) or name
        for name in ("effective_batch", "micro_batch", "accumulation", "gpus")
    }
    if "batch_per_gpu" in fields:
        done["micro_batch"] = fields["batch_per_gpu"]
        names["micro_batch"] = (keys or {}).get("batch_per_gpu") or names["micro_batch"]
    for name in ("effective_batch", "micro_batch", "accumulation", "gpus", "model_parallel"):
        if done.get(name) is not None:
            done[name] = counted(names.get(name, name), done[name])
    batch, micro, accumulation = (
        done.get(name) for name in ("effective_batch", "micro_batch", "accumulation")
    )
    parallel = done.get("model_parallel") or 1
    gpus = done.get("gpus")
    if gpus is not None and gpus % parallel:
        raise InputError(
            f"{names['gpus']} {gpus} is not a multiple of model_parallel {parallel}", field="gpus"
        )
    replicas = None if gpus is None else gpus // parallel
    if batch is None and micro and replicas:
        done["effective_batch"] = micro * (accumulation or 1) * replicas
        done.setdefault("micro_batch", micro)
        return done
    known = {names["micro_batch"]: micro, names["accumulation"]: accumulation, "replicas": replicas}
    product, unknown = 1, [name for name, value in known.items() if value is None]
    for value in known.values():
        product *= value or 1
    if batch and (batch % product or (not unknown and batch != product)):
        said = " × ".join(
            f"{value} replicas" if name == "replicas" else f"{name} {value}"
            for name, value in known.items()
            if value
        )
        text = f"but {said} is {product}" if not unknown else f"which {said} (= {product}) does not divide"
        raise InputError(
            f"{names['effective_batch']} is {batch}, {text}: one of them is wrong", field="effective_batch"
        )
    if batch and len(unknown) == 1:
        rest = batch // product
        if accumulation is None:
            done["accumulation"] = rest
        elif micro is None:
            done["micro_batch"] = rest
        else:
            done["gpus"] = rest * parallel
    return done
