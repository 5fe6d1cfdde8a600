"""A workload is tried before anything is proven: what cannot work is said in one line, by all ranks alike."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isobatch.diagnosis.batches import part
from isobatch.errors import InputError
from isobatch.validate.step.training import Training, out_of_memory

TRIED = 8  # samples at most


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """What the user's own function raises becomes an InputError that says where.

    Raises:
        InputError: something was raised that is neither one already, nor want of memory.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        said = (str(error).strip().splitlines() or [""])[0]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        raise InputError(
            f"{what} raised {type(error).__name__}: {said} ({where})", field="workload"
        ) from error


def check(training: Training) -> None:
    """Runs the loss once on some samples, on this rank alone.

    Raises:
        InputError: it is no scalar tensor with a gradient, is NaN everywhere, or leaves parameters out; the same on all ranks.
    """
    group, fault, finite = training.group, None, True
    try:
        finite = _try(training)
    except InputError as error:
        fault = error
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):  # what fits is asked elsewhere
            raise
    finally:
        training.model.zero_grad(set_to_none=True)
    found: list[tuple[str | None, bool]] = group.gather((None if fault is None else fault.message, finite))
    if said := next((text for text, _ in found if text is not None), None):
        raise fault or InputError(said, field="workload")
    if not any(good for _, good in found):
        raise InputError("the loss is not finite on any rank, at the model's first weights", field="workload")


def _try(training: Training) -> bool:
    """Whether the loss is finite."""
    workload, rank = training.workload, training.group.rank
    training.model.train()
    with user_code("Workload.batch"):
        batch = training.samples(max(2, min(TRIED, training.micro_batch)), 0, rank, 0)
    with user_code("slicing the batch by sample"):
        part(batch, 0, 1)
    with user_code("Workload.loss"):
        loss: Any = training.loss(training.model, batch, training.dtype)
    if not isinstance(loss, Tensor):
        hint = ", without .item()" if isinstance(loss, int | float) else ""
        raise InputError(
            f"Workload.loss must return a scalar tensor, got {type(loss).__name__}: return the loss{hint}",
            field="workload",
        )
    if loss.dim():
        raise InputError(
            f"Workload.loss must return a scalar tensor, got one of shape {tuple(loss.shape)}: return its mean over the samples",
            field="workload",
        )
    if not loss.requires_grad:
        raise InputError(
            "Workload.loss must return a tensor with a gradient: compute it by calling the model, without no_grad or detach",
            field="workload",
        )
    loss.backward()  # type: ignore[no-untyped-call]
    unused = [name for name, p in training.model.named_parameters() if p.requires_grad and p.grad is None]
    if unused and not (workload.ddp or {}).get("find_unused_parameters"):
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise InputError(
            f"the loss does not use {', '.join(unused[:3])}{more}, and DDP waits for every parameter's gradient: set "
            'requires_grad=False on what is not trained, or Workload(ddp={"find_unused_parameters": True})',
            field="workload",
        )
    if workload.weight is not None:
        with user_code("Workload.weight"):
            float(workload.weight(batch))
    return bool(torch.isfinite(loss.detach()))
