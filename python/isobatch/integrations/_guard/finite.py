"""Notices a gradient that is not finite, at any step, and on which rank it began, for some microseconds a step.

After the all-reduce the gradient is NaN on all ranks. So each rank adds up one small gradient of its own before DDP averages
it, and the same one afterwards. The average is the same on all ranks: they agree, without a word, that there is something
to ask the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isobatch.integrations._guard.run import CLOSE_STEPS, Run, named
from isobatch.integrations._guard.sharding import local, sharded

SMALL = 4096  # elements of a parameter that is looked at, at every step
OVERFLOWS = 40  # consecutive steps that a loss scaler may skip: it starts at 2^16 and halves


class _Sums(NamedTuple):
    """Sums of a step's gradients: this rank's own, and the averaged ones. A GPU's are on their way until `arrival`."""

    step: int
    own: Sequence[Tensor]
    averaged: Sequence[Tensor]
    arrival: Any = None


class Finite:
    """Watches all gradients at the first steps, and at every step one small one near the model's input.

    A loss or an activation that is NaN makes all gradients before it NaN, this one too. What stays inside other gradients (a
    row of an embedding, the last layer) reaches the weights, and is seen at the next step in the gradients of all ranks.
    """

    def __init__(self, run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._run, self._optimizer = run, optimizer
        params = [p for p in model.parameters() if p.requires_grad]
        small = [p for p in params if p.numel() <= SMALL] or sorted(params, key=Tensor.numel)
        self._sentinel = small[0]
        self._own: dict[int, Tensor] = {}
        self._waiting: _Sums | None = None
        self._overflows = 0
        self._handles: dict[int, Any] = {}
        self._sharded = sharded(model)
        if self._sharded:  # Nobody sees the gradients before they are averaged.
            return

        def add(p: Tensor) -> None:
            # Before DDP averages. Only a step's last backward counts: it has the sum of all micro-batches.
            if p.grad is not None and not run.own and getattr(model, "require_backward_grad_sync", True):
                self._own[id(p)] = p.grad.sum(dtype=torch.float32)

        for p in params:
            self._handles[id(p)] = p.register_post_accumulate_grad_hook(add)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles.values():
            handle.remove()

    def check(self) -> bool:
        """Before an optimizer step. False where a loss scaler will have it skipped."""
        sums = self._sums()
        if self._run.near:
            if self._run.since == CLOSE_STEPS - 1:
                self._settle()
            return self._judge(sums, ask=True)
        if sums.arrival is not None:  # A GPU is not waited for: its sums of the last step have long arrived.
            sums, self._waiting = self._waiting, sums  # type: ignore[assignment]
        return sums is None or self._judge(sums)

    def stuck(self) -> None:
        """The loop goes on and on without an optimizer step, as a loss scaler does when no scale is small enough."""
        bad = _false(self._run.exchange("stuck", _finite(self._own.values())))
        text = f"{self._run.micro} micro-batches without an optimizer step"
        if bad:
            self._run.stop(f"NaN or infinite gradient on {named(bad)}", text, bad)
        self._run.stop("no optimizer step, or of another optimizer", text)

    def _sums(self) -> _Sums:
        grad, own = self._sentinel.grad, list(self._own.values())
        averaged = [] if grad is None else [local(grad).sum(dtype=torch.float32)]
        self._own.clear()
        if not averaged or not averaged[0].is_cuda:
            return _Sums(self._run.step, own, averaged)
        there = torch.empty(len(own) + len(averaged), pin_memory=True)
        there.copy_(torch.stack([*own, *averaged]), non_blocking=True)
        arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrival.record()
        return _Sums(self._run.step, there[: len(own)].unbind(), there[len(own) :].unbind(), arrival)

    def _judge(self, sums: _Sums, *, ask: bool = False) -> bool:
        if sums.arrival is not None:
            sums.arrival.synchronize()
        averaged = _finite(sums.averaged)
        if averaged and not ask:
            self._overflows = 0
            return True
        bad = _false([averaged] if self._sharded else self._run.exchange("finite", _finite(sums.own)))
        if averaged and not bad:
            return True
        self._overflows += 1
        if hasattr(self._optimizer, "found_inf") and self._overflows <= OVERFLOWS:
            return False
        if self._sharded:
            text = "the averaged gradient is not finite; it is sharded, so that nobody saw on which rank it began"
            self._run.stop("gradient not finite", text, step=sums.step)
        if len(bad) in (0, self._run.ranks) and self._run.ranks > 1:
            text = "the gradient is finite on no rank: the weights, or the loss, are not"
            self._run.stop("gradient not finite", text, step=sums.step)
        text = f"the gradient of {named(bad)} is not finite, before it is averaged"
        self._run.stop(f"NaN or infinite gradient on {named(bad)}", text, bad, step=sums.step)
        return False

    def _settle(self) -> None:
        """After the first steps one gradient is enough."""
        for which in [which for which in self._handles if which != id(self._sentinel)]:
            self._handles.pop(which).remove()


def _finite(sums: Iterable[Tensor]) -> bool:
    return all(math.isfinite(float(value)) for value in sums)


def _false(flags: list[bool]) -> list[int]:
    return [rank for rank, good in enumerate(flags) if not good]
