"""detectron2's YAML."""

import ast
from collections.abc import Iterator
from typing import Any

from isobatch.errors import must_be
from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight
from isobatch.words import count, real

_HARMLESS = """
    CUDNN_BENCHMARK DATALOADER.* DATASETS.* FLOAT32_PRECISION GLOBAL.* INPUT.* MODEL.* OUTPUT_* SEED TEST.* VERSION VIS_PERIOD TRAIN*.*
    SOLVER.BACKBONE_MULTIPLIER SOLVER.BIAS_LR_FACTOR SOLVER.CHECKPOINT_PERIOD SOLVER.NESTEROV SOLVER.NUM_DECAYS SOLVER.WEIGHT_DECAY_*
    SOLVER.GAMMA SOLVER.STEPS SOLVER.CLIP_GRADIENTS.* SOLVER.WARMUP_METHOD SOLVER.POLY_LR_* SOLVER.BASE_LR_END SOLVER.*_MULTIPLIER
    SOLVER.REFERENCE_WORLD_SIZE SOLVER.BETAS
"""
"""Of detectron2 0.6 and of projects built on it, such as Mask2Former."""
_MATTERS = {"schedule": "SOLVER.RESCALE_INTERVAL"}


def read(page: SettingsPage) -> None:
    """IMS_PER_BATCH counts all GPUs. What the file leaves out has detectron2's default, unless it inherits from another."""
    inherits = page.note_bases("_BASE_")
    if page.raw("VERSION") not in (None, 1, 2):
        page.fault(
            "",
            must_be("1 or 2, as detectron2's configurations have it", page.raw("VERSION"), field="VERSION"),
        )
    page.whole("SOLVER.IMS_PER_BATCH", "effective_batch", default=None if inherits else 16)
    workers = page.whole("SOLVER.REFERENCE_WORLD_SIZE", default=0)
    if workers:
        page.give("gpus", workers, "SOLVER.REFERENCE_WORLD_SIZE")
        page.note(
            f"SOLVER.REFERENCE_WORLD_SIZE {workers}: detectron2 itself rescales batch, learning rate and steps on other GPUs; with "
            "what is planned set it to 0"
        )
    page.number("SOLVER.BASE_LR", "lr")
    page.optimizer("SOLVER.OPTIMIZER", page.word("SOLVER.OPTIMIZER", "SGD"))
    momentum = page.number("SOLVER.MOMENTUM", default=0.9)
    if page.reading.fields.get("optimizer") == "sgd" and momentum is not None:
        page.give("momentum", momentum, "SOLVER.MOMENTUM")
    page.number("SOLVER.WEIGHT_DECAY", "weight_decay", default=1e-4)
    page.length("SOLVER.MAX_ITER", "duration", "st", default=None if inherits else 40_000)
    _warmup(page)
    _schedule(page)
    kind = page.word("SOLVER.CLIP_GRADIENTS.CLIP_TYPE", "value")
    if page.flag("SOLVER.CLIP_GRADIENTS.ENABLED") and kind == "full_model":
        page.clip("SOLVER.CLIP_GRADIENTS.CLIP_VALUE", default=1.0)
    elif page.flag("SOLVER.CLIP_GRADIENTS.ENABLED"):
        page.note(f"CLIP_TYPE {kind} clips each parameter, not the norm of all: it is not planned")
    if page.flag("SOLVER.AMP.ENABLED"):
        page.give("precision", "fp16", "SOLVER.AMP.ENABLED")


def _warmup(page: SettingsPage) -> None:
    """It starts at a part of the learning rate; at all of it there is none."""
    factor = page.number("SOLVER.WARMUP_FACTOR", default=0.001)
    if factor == 1:
        page.raw("SOLVER.WARMUP_ITERS")
    elif page.word("SOLVER.WARMUP_METHOD", "linear") == "constant":
        page.ask("warmup", "is a level before a jump", "SOLVER.WARMUP_METHOD")
    elif page.length("SOLVER.WARMUP_ITERS", "warmup", "st", default=1000):
        page.note(f"the warmup starts at WARMUP_FACTOR {factor} of the learning rate, the plan's at 0")


def _schedule(page: SettingsPage) -> None:
    name = page.word("SOLVER.LR_SCHEDULER_NAME", "WarmupMultiStepLR")
    if name == "WarmupCosineLR":
        page.give("schedule", "cosine", "SOLVER.LR_SCHEDULER_NAME")
        page.number("SOLVER.BASE_LR_END", "min_lr")
        if "warmup" in page.reading.fields:
            page.note("the cosine counts from the start of the run, the plan's from the end of the warmup")
    elif name == "WarmupPolyLR" and not (
        "warmup" in page.reading.fields or page.number("SOLVER.POLY_LR_CONSTANT_ENDING")
    ):
        power = page.number("SOLVER.POLY_LR_POWER", default=0.9)
        page.give("schedule", f"polynomial(power={power})", "SOLVER.LR_SCHEDULER_NAME")
    elif name == "WarmupMultiStepLR":
        points = _steps(page, page.raw("SOLVER.STEPS"))
        gamma = page.number("SOLVER.GAMMA", default=0.1) if points else None
        drops = f"multistep({', '.join(f'{point}st' for point in points)}, gamma={gamma})"
        page.give("schedule", drops if points else "constant", "SOLVER.STEPS")
    else:
        page.unsupported("SOLVER.LR_SCHEDULER_NAME", f"the scheduler {name!r}")


def _steps(page: SettingsPage, value: Any) -> list[int]:
    """Reads `(60000, 80000)`, a text to YAML."""
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


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    workers = case.at("SOLVER", "REFERENCE_WORLD_SIZE")
    lr, batch = case.fields.get("lr"), case.fields.get("effective_batch")
    if type(workers) is int and workers > 0 and workers != case.gpus and lr and batch:
        k = case.gpus / workers
        yield Issue(
            f"a step has {count(batch * k)} samples at learning rate {real(lr * k)}",
            f"REFERENCE_WORLD_SIZE {workers} makes detectron2 rescale batch, learning rate and steps by {k:g}",
            "detectron2, engine/defaults.py: DefaultTrainer.auto_scale_workers",
            f"SOLVER.REFERENCE_WORLD_SIZE: 0  (to keep {batch})",
        )
    elif not workers and batch and batch % case.gpus:
        yield Issue(
            f"detectron2 stops: {batch} images are no multiple of {case.gpus} GPUs",
            "IMS_PER_BATCH is split over the GPUs",
            "detectron2, data/build.py: build_batch_data_loader",
            f"SOLVER.IMS_PER_BATCH: {max(1, batch // case.gpus) * case.gpus}",
            Weight.STOPS,
        )


DETECTRON2 = Tool("detectron2", "detectron2", Reader("0.4 to 0.6", read, check, _HARMLESS, _MATTERS))
