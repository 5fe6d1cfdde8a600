"""detectron2's YAML."""

from __future__ import annotations

import ast
from typing import Any

from isobatch.errors import must_be
from isobatch.tools.reading.common import clip, inherited, length, unsupported
from isobatch.tools.reading.page import Page

NAME = "detectron2"
TITLE = "detectron2"
VERSIONS = "0.4 to 0.6"
SIGNS = (
    "SOLVER.IMS_PER_BATCH",
    "SOLVER.BASE_LR",
    "SOLVER.MAX_ITER",
    "SOLVER.STEPS",
    "SOLVER.REFERENCE_WORLD_SIZE",
    "MODEL.META_ARCHITECTURE",
    "DATASETS.TRAIN",
    "_BASE_",
)
CALLED = {
    "duration": "SOLVER.MAX_ITER",
    "effective_batch": "SOLVER.IMS_PER_BATCH",
    "lr": "SOLVER.BASE_LR",
    "warmup": "SOLVER.WARMUP_ITERS",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""


def read(page: Page) -> None:
    """IMS_PER_BATCH counts all GPUs. What the file leaves out has detectron2's default, unless it inherits from another."""
    inherits = inherited(page, "_BASE_")
    if page.raw("VERSION") not in (None, 1, 2):
        page.fault(
            "",
            must_be("1 or 2, as detectron2's configurations have it", page.raw("VERSION"), field="VERSION"),
        )
    page.whole("SOLVER.IMS_PER_BATCH", "effective_batch", default=None if inherits else 16)
    workers = page.whole("SOLVER.REFERENCE_WORLD_SIZE", default=0)
    if workers:
        page.give("gpus", workers, "SOLVER.REFERENCE_WORLD_SIZE")
    page.number("SOLVER.BASE_LR", "lr")
    page.give("optimizer", "sgd", "SOLVER.BASE_LR")
    page.number("SOLVER.MOMENTUM", "momentum", default=0.9)
    page.number("SOLVER.WEIGHT_DECAY", "weight_decay", default=1e-4)
    steps = page.whole("SOLVER.MAX_ITER", default=None if inherits else 40_000)
    if steps:
        page.give("duration", length(steps, "st"), "SOLVER.MAX_ITER")
    warmup = page.whole("SOLVER.WARMUP_ITERS", default=1000)
    if warmup:
        page.give("warmup", length(warmup, "st"), "SOLVER.WARMUP_ITERS")
        page.note("detectron2's warmup starts at WARMUP_FACTOR (0.001) of the learning rate, the plan's at 0")
    _schedule(page)
    if (
        page.flag("SOLVER.CLIP_GRADIENTS.ENABLED")
        and page.word("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "value") != "value"
    ):
        clip(page, "SOLVER.CLIP_GRADIENTS.CLIP_VALUE", default=1.0)
    if page.flag("SOLVER.AMP.ENABLED"):
        page.give("precision", "fp16", "SOLVER.AMP.ENABLED")


def _schedule(page: Page) -> None:
    name = page.word("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR")
    if name == "WarmupCosineLR":
        page.give("schedule", "cosine", "SOLVER.LR_SCHEDULER_NAME")
    elif name == "WarmupMultiStepLR":
        points = _steps(page, page.raw("SOLVER.STEPS"))
        if points:
            gamma = page.number("SOLVER.GAMMA", default=0.1)
            page.give(
                "schedule", f"multistep({', '.join(f'{p}st' for p in points)}, gamma={gamma})", "SOLVER.STEPS"
            )
        else:
            page.give("schedule", "constant", "SOLVER.STEPS")
    else:
        unsupported(page, "SOLVER.LR_SCHEDULER_NAME", f"the scheduler {name!r}")


def _steps(page: Page, value: Any) -> list[int]:
    """`(60000, 80000)`, which YAML takes for a text."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            value = None
    points = list(value) if isinstance(value, list | tuple) else [30_000] if value is None else [value]
    if not all(type(point) is int and point > 0 for point in points):
        page.fault(
            "schedule",
            must_be("whole numbers such as (60000, 80000)", page.raw("SOLVER.STEPS"), field="SOLVER.STEPS"),
        )
        return []
    last = page.whole("SOLVER.MAX_ITER") or 2**62
    return sorted(point for point in points if point < last)
