"""Coupled samples: a micro-batch's gradient in one pass, against the gradients of its two parts.

The gradient of a mean over samples is the mean of their gradients, however the batch is cut. With batch norm,
in-batch negatives or a balance loss of experts it depends on the micro-batch: the same batch in another split
is then another training.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from isobatch.diagnosis.causes import Cause
from isobatch.diagnosis.tensors import difference
from isobatch.validate.proofs.workload import ROUNDED_GATE, compute_exactly, cut_batch, sample_count
from isobatch.validate.report import Proof, Verdict, judge_claim, pass_claim, skip_claim
from isobatch.validate.training import Copies, Training, copy_to_host, grads
from isobatch.validate.trial import Claim, Trial
from isobatch.validate.workload import out_of_memory

GATE = 1e-4
"""In float32, rounding stays at a tenth of it, and a balance loss of 0.01 is three times above it."""


def coupling(training: Training, reduction: str) -> tuple[float, float]:
    """Measures the relative L2 distance of a gradient in two parts to that in one, and its gate."""
    batch, device = cut_batch(training), training.group.device
    shares = [1.0, 1.0] if reduction == "sum" else [unit / sum(batch.units) for unit in batch.units]

    def distance(dtype: torch.dtype | None) -> float:
        with _without_randomness(training.model):
            whole, again = (_gradient(training, [batch.whole], [1.0], dtype) for _ in range(2))
            if difference(again, whole, device=device).error > _gate(dtype):
                training.model.eval()  # the model has randomness of its own, such as functional dropout
                whole = _gradient(training, [batch.whole], [1.0], dtype)
            return difference(_gradient(training, batch.parts, shares, dtype), whole, device=device).error

    error, dtype = compute_exactly(training, distance)
    return error, _gate(dtype)


def _gate(dtype: torch.dtype | None) -> float:
    return GATE if dtype is None else ROUNDED_GATE


def _gradient(
    training: Training, batches: list[Any], shares: list[float], dtype: torch.dtype | None
) -> Copies:
    training.model.zero_grad(set_to_none=True)
    for batch, share in zip(batches, shares, strict=True):
        training.lone_backward(batch, share, dtype)
    gradient = copy_to_host(grads(training.model))
    training.model.zero_grad(set_to_none=True)
    return gradient


@contextlib.contextmanager
def _without_randomness(model: nn.Module) -> Iterator[None]:
    """Trains without dropout: a balance loss may exist in training mode alone. Puts buffers back."""
    model.train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    try:
        yield
    finally:
        for name, value in model.named_buffers():
            value.copy_(buffers[name])


def prove(trial: Trial) -> list[Proof]:
    """Compares one pass with two; a plan with the tuned micro-batch passes anyway."""
    training, plan = trial.training, trial.plan
    if training.micro_batch == 1:
        return [skip_claim("coupling", "a micro-batch of one sample has nothing to couple")]
    if trial.reduction == "neither":
        return [skip_claim("coupling", "the loss is neither a mean nor a sum over samples")]
    try:
        error, gate = coupling(training, trial.reduction)
    except (RuntimeError, MemoryError) as failure:
        if not out_of_memory(failure):
            raise
        error = gate = float("nan")
    error = training.group.from_first(error)  # the same samples on all ranks
    if not math.isfinite(error):
        return [skip_claim("coupling", "no room for a second gradient, or a gradient that is not finite")]
    count = sample_count(training)
    text = f"the gradient of {count} samples in one pass differs by {error:.2g} from that in two"
    values = {"relative_l2": error, "samples": count}
    if error <= gate:
        return [pass_claim("coupling", text, gate, **values)]
    tuned = plan.recipe.micro_batch
    if tuned == plan.micro_batch:
        return [pass_claim("coupling", f"{text}: coupled; the micro-batch is the tuned one", gate, **values)]
    text += f": micro-batch {plan.micro_batch}, " + (
        f"tuned at {tuned}" if tuned else "tuned at an unknown one"
    )
    return [judge_claim("coupling", Verdict.CAUTION, text, Cause.COUPLED_SAMPLES.likely(), gate, **values)]


CLAIM = Claim(phase="coupling", names=("coupling",), prove=prove)
