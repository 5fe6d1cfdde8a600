"""A script's training, read from its own objects: its trainer, its scheduler and its learning rates.

They are read before each recorded step. The process ends with the last one, so that its scheduler can be run
to the end there.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch

TRAINERS = (
    ("transformers.trainer", "transformers"),
    ("lightning.pytorch.", "lightning"),
    ("pytorch_lightning.", "lightning"),
    ("deepspeed.", "deepspeed"),
    ("accelerate.optimizer", "accelerate"),
)
"""Modules that take a step for a script, the outermost first, each with its trainer."""
MAX_STEPS = 100_000
"""Steps that a scheduler is run for."""
FIRST_STEPS = 3
PARTS = 10


def name_trainer() -> str:
    """Names the trainer of this step; empty for a loop of the script's own."""
    callers: set[str] = set()
    frame: Any = sys._getframe(1)
    while frame is not None:
        callers.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    for start, trainer in TRAINERS:
        if any(name.startswith(start) for name in callers):
            return trainer
    return ""


def describe(optimizer: torch.optim.Optimizer, step: int, *, is_last: bool) -> dict[str, Any]:
    """Describes the training; `is_last`: the process ends here, and its scheduler may be used up."""
    objects = gc.get_objects()
    trainer = _one_of(objects, "transformers.trainer", "Trainer")
    lightning = _one_of(objects, "lightning.pytorch.trainer.trainer", "Trainer") or _one_of(
        objects, "pytorch_lightning.trainer.trainer", "Trainer"
    )
    owner = trainer or lightning or _one_of(objects, "accelerate.accelerator", "Accelerator")
    if lightning is None:
        total = getattr(getattr(trainer, "state", None), "max_steps", None)
    else:
        total = getattr(lightning, "estimated_stepping_batches", None)
    # Infinity and -1 stand for no limit.
    total = int(total) if isinstance(total, (int, float)) and 1 <= total < 1 << 53 else None
    return {
        "trainer": None if owner is None else type(owner).__name__,
        "arguments": None if trainer is None else json.loads(json.dumps(trainer.args.to_dict(), default=str)),
        "total_steps": total,
        "scheduler": _scheduler(objects, optimizer, step, total, is_last),
    }


def _one_of(objects: list[Any], module: str, name: str) -> Any:
    """Returns the only object of a class; None where its module was not imported, or there are several."""
    kind = getattr(sys.modules.get(module), name, None)
    if kind is None:
        return None
    # By the type: asking a lazy object for its __class__ would load it.
    instances = [instance for instance in objects if issubclass(type(instance), kind)]
    return instances[0] if len(instances) == 1 else None


def _scheduler(
    objects: list[Any], optimizer: torch.optim.Optimizer, step: int, total: int | None, is_last: bool
) -> dict[str, Any] | None:
    """Describes the scheduler of an optimizer; None where it has none."""
    schedulers = [
        candidate
        for candidate in objects
        if issubclass(type(candidate), torch.optim.lr_scheduler.LRScheduler)
        and _inner(candidate) is optimizer
    ]
    parts = {id(part) for candidate in schedulers for part in getattr(candidate, "_schedulers", ())}
    schedulers = [candidate for candidate in schedulers if id(candidate) not in parts]
    if not schedulers:
        return None
    kind = " and ".join(type(candidate).__name__ for candidate in schedulers)
    if len(schedulers) > 1:
        return {"kind": kind, "state": {}, "steps": None, "rates": []}
    scheduler = schedulers[0]
    state = {
        name: value
        for name, value in vars(scheduler).items()
        if not name.startswith("_") and _is_plain(value)
    }
    steps = int(getattr(scheduler, "last_epoch", 0))
    length = total or state.get("total_steps") or state.get("T_max") or step + FIRST_STEPS
    times = steps // step if step and is_last else 0
    return {
        "kind": kind,
        "state": state,
        "steps": steps,
        "rates": _rates(optimizer, scheduler, times, step, int(length)),
    }


def _inner(scheduler: Any) -> Any:
    """Returns a scheduler's optimizer, without Accelerate's wrapper."""
    optimizer = getattr(scheduler, "optimizer", None)
    return getattr(optimizer, "optimizer", optimizer)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (int, float)) for item in value)
    return isinstance(value, (int, float, str))


def _rates(
    optimizer: torch.optim.Optimizer, scheduler: Any, times: int, step: int, length: int
) -> list[tuple[int, float]]:
    """Runs a scheduler from this step on, `times` for each step of the optimizer, to the run's length.

    Returns some steps with the learning rate of the first group: the next, each tenth of the run, the last.
    """
    end = min(length, MAX_STEPS) if times else step + 1
    steps = {*range(step, step + FIRST_STEPS), *(end * part // PARTS for part in range(PARTS)), end - 1}
    rates = []
    for at in range(step, end):
        if at in steps:
            rates.append((at, float(optimizer.param_groups[0]["lr"])))
        try:
            for _ in range(times):
                scheduler.step()
        except (TypeError, ValueError):  # it waits for a metric, or its own steps are over before the run's
            break
    return rates
