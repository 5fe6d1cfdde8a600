"""What a setting's name looks like, whoever wrote it: a batch, a learning rate, a length, a schedule. It is shown and never planned with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_DEEPEST = 4
_ELSEWHERE = re.compile(
    r"(^|[._-])(eval|evaluate|evals|val|valid|validation|test|predict|save|saves|saving|log|logs|logging|print|report|checkpoint|ckpt|"
    r"generation|profile|profiling|rdzv|hub|timeout)([._-]|$)",
    re.IGNORECASE,
)
"""Lengths and batches of what is no training."""
_PER_GPU = r"(per_(device|gpu)(_train)?_batch(_size)?|(train_)?micro_?batch(_size)?(_per_gpu)?|local_batch(_size)?|batch_per_gpu)"
_KINDS = (
    ("batch_per_gpu", rf"{_PER_GPU}"),
    ("effective_batch", r"(global|effective|total)_(train_)?batch(_size)?"),
    ("batch", r"(train_)?(batch_size|batch|bs)|batch_size_train|batchsize"),
    ("accumulation", r"(gradient|grad)_?accum(ulation)?(_steps)?|accum(ulation)?(_steps|_iter)?|accumulate_grad_batches"),
    ("warmup", r"(num_|lr_)?warm_?up(_(steps|iters|ratio|epochs|fraction|samples))?"),
    ("min_lr", r"(min_lr|lr_min|eta_min|min_learning_rate)"),
    ("lr", r"(base_|max_|peak_|init_)?(lr|learning_rate)|lr0"),
    ("schedule", r"(lr_)?(scheduler|schedule|scheduler_type|schedule_type|sched|decay_style)"),
    ("duration", r"(num_|max_|n_|train_|total_)*(epochs?|steps|iters|iterations|samples)"),
    ("optimizer", r"optim(izer)?"),
    ("weight_decay", r"weight_decay|wd"),
)  # fmt: skip
_MATTERS = {
    "batch_per_gpu",
    "effective_batch",
    "batch",
    "accumulation",
    "warmup",
    "min_lr",
    "lr",
    "schedule",
    "duration",
}


def looks(key: str) -> str | None:
    """What a name looks like: a field of a recipe, or "batch" where the name leaves open whether it counts per GPU.

    >>> [looks(key) for key in ("batch_size", "train.grad_accum", "lr", "epochs", "lr_scheduler", "eval_steps", "seed")]
    ['batch', 'accumulation', 'lr', 'duration', 'schedule', None, None]
    """
    name = key.rpartition(".")[2].replace("-", "_").lower()
    if _ELSEWHERE.search(name):
        return None
    return next((kind for kind, pattern in _KINDS if re.fullmatch(pattern, name)), None)


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


def unused(settings: Mapping[str, Any], used: set[str]) -> list[str]:
    """The keys that look as if they decided on the batch, the learning rate or a length, and were not read.

    >>> unused({"batch_size": 16, "lr": 0.1, "seed": 1}, {"lr"})
    ['batch_size']
    """
    return [
        key
        for key, _ in leaves(settings)
        if looks(key) in _MATTERS and not any(key == each or key.startswith(f"{each}.") for each in used)
    ]


def as_recipe(settings: Mapping[str, Any]) -> list[str]:
    """The lines of a recipe that a file of nobody's tool might mean, for whoever wrote it to check.

    >>> print("\\n".join(as_recipe({"batch_size": 16, "accum": 4, "lr": 3e-3, "epochs": 2})))
    effective_batch=N   batch_size 16 × accum 4 × the GPUs of that run (without them if batch_size counts all GPUs)
    lr=0.003            lr
    duration=2ep        epochs
    """
    found: dict[str, tuple[str, Any]] = {}
    for key, value in leaves(settings):
        kind = looks(key)
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
    """A length with the unit that its name implies."""
    name = key.rpartition(".")[2].lower()
    if field not in ("duration", "warmup") or not isinstance(value, int | float):
        return str(value)
    if "epoch" in name:
        return f"{value:g}ep"
    if field == "warmup" and value < 1:
        return f"{value * 100:g}%"
    return f"{value:g}sp" if "sample" in name else f"{value}st"
