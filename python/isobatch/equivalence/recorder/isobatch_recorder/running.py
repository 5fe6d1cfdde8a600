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

MAX_STEPS = 100_000
"""Steps that a scheduler is run for."""
FIRST_STEPS = 3
PARTS = 10


def describe(optimizer: torch.optim.Optimizer, step: int, *, is_last: bool) -> dict[str, Any]:
    """Describes the training beside the optimizer; a value is None if no object of the script has it.

    Args:
        optimizer: that is about to step.
        step: its number, from 0.
        is_last: whether the process ends here, so that the scheduler may be used up.
    """
    objects = gc.get_objects()
    trainer = _one_of(objects, "transformers.trainer", "Trainer")
    lightning = _one_of(objects, "lightning.pytorch.trainer.trainer", "Trainer") or _one_of(
        objects, "pytorch_lightning.trainer.trainer", "Trainer"
    )
    accelerator = _one_of(objects, "accelerate.accelerator", "Accelerator")
    arguments = None if trainer is None else json.loads(json.dumps(trainer.args.to_dict(), default=str))
    total = _positive(getattr(getattr(trainer, "state", None), "max_steps", None))
    if lightning is not None:
        total = _positive(getattr(lightning, "estimated_stepping_batches", None))
    return {
        "trainer": _class_name(trainer or lightning or accelerator),
        "arguments": arguments,
        "total_steps": total,
        "epochs": _positive(getattr(lightning, "max_epochs", None)),
        "accumulation": _positive(
            getattr(
                lightning or accelerator,
                "accumulate_grad_batches" if lightning else "gradient_accumulation_steps",
                None,
            )
        ),
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


def _class_name(value: Any) -> str | None:
    return None if value is None else type(value).__name__


def _positive(value: Any) -> int | None:
    """A whole number from 1; None of infinity, -1 and whatever else stands for no limit."""
    return int(value) if isinstance(value, (int, float)) and 1 <= value < 1 << 53 else None


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
    inner = {id(part) for candidate in schedulers for part in getattr(candidate, "_schedulers", ())}
    schedulers = [candidate for candidate in schedulers if id(candidate) not in inner]
    if not schedulers:
        return None
    kind = " and ".join(type(candidate).__name__ for candidate in schedulers)
    (scheduler, *further) = schedulers
    if further:
        return {"kind": kind, "state": {}, "steps": None, "rates": []}
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
    """Runs a scheduler from this step on.

    Returns steps with the learning rate of the first group: the next ones, each tenth of the run, the last
        one.

    Args:
        times: steps of the scheduler for each of the optimizer; 0 if it is not stepped with the optimizer.
        step: of the optimizer.
        length: of the run.
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
