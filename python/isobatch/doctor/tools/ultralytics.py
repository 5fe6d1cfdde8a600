"""ultralytics."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding, number
from isobatch.words import real


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    settings = case.found.settings
    batch, nominal = settings.get("batch", 16), settings.get("nbs", 64)
    if settings.get("optimizer", "auto") == "auto":
        yield Finding(
            "lr0 and momentum have no effect",
            'optimizer "auto" chooses them by the number of steps',
            "ultralytics, engine/trainer.py: build_optimizer",
            "optimizer: SGD  (or AdamW)",
        )
    if type(batch) is int and type(nominal) is int and batch > 0:
        accumulation = max(round(nominal / batch), 1)
        yield Finding(
            f"a step has {batch * accumulation} samples, in {accumulation} batches of {batch}",
            f"ultralytics accumulates to about nbs {nominal}",
            "ultralytics, engine/trainer.py: _build_train_pipeline",
            f"nbs: {batch}  (for steps of {batch})",
        )
        if accumulation > 1:
            yield Finding(
                f"the first {number(settings.get('warmup_epochs', 3.0)):g} epochs have smaller steps",
                f"during the warmup the accumulation grows from 1 to {accumulation}",
                "ultralytics, engine/trainer.py: _do_train",
                f"batch: {nominal}  (nothing is accumulated then), or warmup_epochs: 0",
            )
        if batch % case.gpus:
            yield Finding(
                f"a batch has {batch // case.gpus * case.gpus} samples, not {batch}",
                f"each of {case.gpus} GPUs takes {batch} // {case.gpus}",
                "ultralytics, engine/trainer.py: _build_train_pipeline",
                f"batch: {-(-batch // case.gpus) * case.gpus}",
            )
        if batch * accumulation != nominal:
            decay = settings.get("weight_decay", 0.0005)
            yield Finding(
                f"weight_decay is {real(decay * batch * accumulation / nominal)}, not {real(decay)}",
                "ultralytics multiplies it by batch × accumulation / nbs",
                "ultralytics, engine/trainer.py: _build_train_pipeline",
                f"nbs: {batch * accumulation}",
            )
