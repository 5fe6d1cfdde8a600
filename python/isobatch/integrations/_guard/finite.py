"""Notices a gradient that is not finite, at any step, and on which rank it began, for some microseconds a step.

After the all-reduce the gradient is NaN on all ranks. So each rank adds up a few small gradients of its own before DDP
averages them, and the same ones afterwards. The averages are the same on all ranks: they agree, without a word, that
there is something to ask the others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from isobatch.integrations._guard.run import CLOSE_STEPS, Run, named
from isobatch.integrations._guard.sharding import local, sharded

SMALL = 65_536  # elements of a parameter that is looked at, at every step
OVERFLOWS = 40  # consecutive steps that a loss scaler may skip: it starts at 2^16 and halves


class _Sums(NamedTuple):
    """Sums of a step's gradients, this rank's own ones first; on a GPU they arrive later than `check` returns."""

    step: int
    values: Tensor
    own: int
    arrival: Any

    def finite(self) -> tuple[bool, bool]:
        """Whether this rank's own gradients are finite, and the averaged ones."""
        if self.arrival is not None:
            self.arrival.synchronize()
        good = [math.isfinite(value) for value in self.values.tolist()]
        return all(good[: self.own]), all(good[self.own :])


class Finite:
    """Watches all gradients at the first steps, two small ones at every step.

    A loss or an activation that is NaN makes all gradients before it NaN: the first small parameter sees it, and the last one
    what happens behind. What stays inside one other gradient (a row of an embedding) reaches the weights, and is seen at the
    next step in all ranks' gradients.
    """

    def __init__(self, run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._run, self._optimizer = run, optimizer
        params = [p for p in model.parameters() if p.requires_grad]
        small = [p for p in params if p.numel() <= SMALL] or sorted(params, key=Tensor.numel)[:1]
        self._watched = list({id(p): p for p in (*small[:1], *small[-1:])}.values())
        self._own: dict[int, Tensor] = {}
        self._waiting: _Sums | None = None
        self._overflows = 0
        self._handles: dict[int, Any] = {}
        self._sharded = sharded(model)
        if self._sharded:  # Nobody sees the gradients before they are averaged.
            self._watched = params
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
        own = all(math.isfinite(float(value)) for value in self._own.values())
        bad = _false(self._run.exchange("stuck", own))
        text = f"{self._run.micro} micro-batches without an optimizer step"
        if bad:
            self._run.stop(f"NaN or infinite gradient on {named(bad)}", text, bad)
        self._run.stop("no optimizer step, or of another optimizer", text)

    def _sums(self) -> _Sums:
        averaged = [local(p.grad).sum(dtype=torch.float32) for p in self._watched if p.grad is not None]
        own = list(self._own.values())
        self._own.clear()
        values = torch.stack([*own, *averaged]) if own or averaged else torch.zeros(0)
        arrival = None
        if values.is_cuda:
            there = torch.empty(values.shape, pin_memory=True)
            there.copy_(values, non_blocking=True)
            arrival, values = torch.cuda.Event(), there  # type: ignore[no-untyped-call]
            arrival.record()
        return _Sums(self._run.step, values, len(own), arrival)

    def _judge(self, sums: _Sums, *, ask: bool = False) -> bool:
        own, averaged = sums.finite()
        if self._sharded:
            bad = [] if averaged else [self._run.rank]
        else:
            bad = [] if averaged and not ask else _false(self._run.exchange("finite", own))
        if averaged and not bad:
            self._overflows = 0
            return True
        self._overflows += 1
        if hasattr(self._optimizer, "found_inf") and self._overflows <= OVERFLOWS:
            return False
        if self._sharded:
            text = "the averaged gradient is not finite; it is sharded, so that nobody saw on which rank it began"
            self._run.stop("gradient not finite", text, step=sums.step)
        if len(bad) in (0, self._run.ranks) and self._run.ranks > 1:
            text = "the gradient is not finite on any rank: the weights or the loss are not"
            self._run.stop("gradient not finite", text, step=sums.step)
        text = f"the gradient of {named(bad)} is not finite, before it is averaged"
        self._run.stop(f"NaN or infinite gradient on {named(bad)}", text, bad, step=sums.step)
        return False

    def _settle(self) -> None:
        kept = {id(p) for p in self._watched}
        for which in [which for which in self._handles if which not in kept]:
            self._handles.pop(which).remove()


def _false(flags: list[bool]) -> list[int]:
    return [rank for rank, good in enumerate(flags) if not good]
