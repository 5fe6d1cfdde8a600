"""Guesses what a setting of anybody's script means, by its name."""

from __future__ import annotations

import re

_ELSEWHERE = re.compile(
    r"(^|[._-])(eval|evaluate|evals|val|valid|validation|test|predict|save|saves|saving|log|logs|logging|print|report|checkpoint|ckpt|"
    r"generation|profile|profiling|rdzv|hub|timeout)([._-]|$)",
    re.IGNORECASE,
)
"""Lengths and batches of what is no training."""
_PER_GPU = r"(per_(device|gpu)(_train)?_batch(_size)?|(train_)?micro_?batch(_size)?(_per_gpu)?|local_batch(_size)?|batch_per_gpu)"
KINDS = (
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


def guess_field(key: str) -> str | None:
    """Guesses the meaning of a name: a field of a recipe, or "batch" where the name leaves open whether it counts per GPU.

    >>> [guess_field(key) for key in ("batch_size", "train.grad_accum", "lr", "epochs", "lr_scheduler", "eval_steps", "seed")]
    ['batch', 'accumulation', 'lr', 'duration', 'schedule', None, None]
    """
    name = key.rpartition(".")[2].replace("-", "_").lower()
    if _ELSEWHERE.search(name):
        return None
    return next((kind for kind, pattern in KINDS if re.fullmatch(pattern, name)), None)
