"""mmengine."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.words import real


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    base, enabled = case.at("auto_scale_lr", "base_batch_size"), case.at("auto_scale_lr", "enable")
    lr = case.fields.get("lr")
    if type(base) is int and case.batch is not None and base != case.batch and lr:
        scaled = f"{real(lr * case.batch / base)} with --auto-scale-lr"
        yield Finding(
            f"the learning rate is {scaled if enabled else real(lr) + ', and ' + scaled}",
            f"base_batch_size is {base}, a step here has {case.batch}; mmengine scales linearly, whatever the optimizer",
            "mmengine, runner/runner.py: Runner.scale_lr; open-mmlab/mmdetection#3079, #3080",
            f"optim_wrapper.optimizer.lr = {real(lr * case.batch / base)}",
        )
