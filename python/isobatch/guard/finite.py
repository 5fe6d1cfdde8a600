"""Notices NaN and infinite gradients: the step and the rank where they began.

A NaN on one rank soon reaches the average, then the weights, and stays there. So each rank keeps one small
gradient of each step from before the averaging, but reads only the averaged one, and only now and then. The
averaged gradient is the same on all ranks: without a message, they agree on when to ask whose own gradient
went bad first.
"""

import math
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from isobatch.equivalence.laws import Cause
from isobatch.guard.run import LOOK_EVERY_STEPS, Run, local, outside_of_graphs, sharded
from isobatch.words import few_ranks

MAX_SENTINEL_ELEMENTS = 4096  # elements of the parameter whose gradients are kept
MAX_OVERFLOWS = 40  # consecutive steps that a loss scaler may skip: it starts at 2^16 and halves


class Finite:
    """Watches all gradients at the first steps, and at every step a small one near the model's input.

    A NaN in the loss or in an activation makes all gradients before it NaN, this one too. A NaN inside
    another gradient (a row of an embedding, the last layer) is in the weights a step later, and in the
    gradients of all ranks.
    """

    def __init__(
        self,
        run: Run,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        on_backward: Callable[[], None],
        *,
        ids_seen: bool = False,
    ) -> None:
        """Hooks into the gradients; `ids_seen`: the loader shows each rank's samples."""
        self._run, self._model, self._optimizer, self._ids_seen = run, model, optimizer, ids_seen
        self._on_backward = on_backward
        params = [p for p in model.parameters() if p.requires_grad]
        small = [p for p in params if p.numel() <= MAX_SENTINEL_ELEMENTS] or sorted(params, key=Tensor.numel)
        self._sentinel = small[0]
        self._last: Callable[[], Tensor | None] = lambda: None  # the sentinel's last gradient
        self._own: dict[int, Tensor] = {}
        # This rank's own gradients, or their sums, since the last look.
        self._history: list[list[Tensor]] = []
        self._rows: list[Tensor] = []  # where the sentinel's gradients are kept
        self.sharded = sharded(model)
        self._no_sync = hasattr(model, "require_backward_grad_sync")
        # Nobody sees sharded gradients before they are averaged.
        for p in [] if self.sharded else params:
            handle = p.register_post_accumulate_grad_hook(self._made)  # type: ignore[no-untyped-call]
            # After the first steps one gradient is enough.
            (run.hooks if p is self._sentinel else run.first_hooks).callback(handle.remove)

    @outside_of_graphs
    def _made(self, p: Tensor) -> None:
        """Counts a backward pass, by the sentinel, and keeps the step's gradient before DDP averages it."""
        run = self._run
        if run.own:
            return
        if p is self._sentinel:
            if self._last() is not p.grad:  # made anew: the one before was cleared
                run.fresh, self._last = run.backwards, weakref.ref(p.grad)
            run.backwards += 1
            if run.near:
                self._on_backward()
        if self._no_sync and not self._model.require_backward_grad_sync:
            return
        grad = p.grad
        if grad is None:
            return
        if run.near:
            self._own[id(p)] = grad.sum(dtype=torch.float32)
            return
        # A copy into memory at hand takes half the time of a sum, which would make a tensor.
        at = len(self._history)
        while at >= len(self._rows):
            self._rows.append(torch.empty_like(grad))
        self._own[0] = self._rows[at].copy_(grad)

    def look_for_zeros(self) -> None:
        """Notices gradients cleared to zeros, before a call beyond the plan's."""
        grad = self._sentinel.grad
        if grad is not None and not bool(grad.any()):
            self._run.fresh = self._run.backwards

    def check(self) -> None:
        """Checks before an optimizer step. A step that a loss scaler will skip is not a whole one."""
        run, history = self._run, self._history
        history.append(list(self._own.values()))
        self._own.clear()
        if run.rare or len(history) % LOOK_EVERY_STEPS == 0:
            run.whole = self._look() and run.whole

    def stuck(self, patience: int, *, elsewhere: bool) -> bool:
        """Judges many micro-batches with a backward pass and no step; False: not yet, episodes may be long.

        They may be for a measure, such as of the Fisher information. It is a fault if gradients are not
        finite, or if another optimizer steps on the parameters (`elsewhere`).
        """
        run = self._run
        if not self.sharded and run.backwards < patience:
            return False
        answers = run.exchange("stuck", (_finite(self._own.values()), elsewhere))
        bad, text = (
            _false(good for good, _ in answers),
            f"{run.micro} micro-batches without an optimizer step",
        )
        if bad:
            run.stop(Cause.NAN_ON_A_RANK.likely(few_ranks(bad)), text, bad)
        if all(stepped for _, stepped in answers):
            run.stop(Cause.NO_STEP, text)
        run.note(f"{patience} micro-batches and more without a step of the attached optimizer")
        return True

    def _look(self) -> bool:
        run, history, grad = self._run, self._history, self._sentinel.grad
        good = grad is None or _finite([local(grad)])
        if self.sharded:
            if not good:
                text = (
                    "the averaged gradient is not finite; it is sharded, so the rank where it began is "
                    "unknown"
                )
                run.stop(Cause.NOT_FINITE, text)
        elif not good or run.near:
            if not run.since and not self._ids_seen:
                self._same_data(history[0])
            flags_of = run.exchange("finite", [_finite(own) for own in history])
            # A loss scaler reports infinities to a fused optimizer, which skips this step, perhaps the next.
            scaled = hasattr(self._optimizer, "found_inf")
            if scaled:
                always = _false([any(flags) for flags in flags_of])
                if always and len(history) > MAX_OVERFLOWS:
                    self._stop(always, 0)
                if always:
                    return False
            else:
                for index, flags in enumerate(zip(*flags_of, strict=True)):
                    if bad := _false(flags):
                        self._stop(bad, index)
                if not good:
                    self._stop([], len(history) - 1)
        history.clear()
        return good

    def _same_data(self, own: list[Tensor]) -> None:
        """Stops if ranks have gradients equal to the last bit before averaging, and so equal data."""
        sums = [float(gradient) for gradient in own]
        every = self._run.exchange("own gradients", sums)
        if not any(sums):
            return
        alike = [rank for rank, values in enumerate(every) if every.count(values) > 1 and any(values)]
        if alike:
            some = alike if len(alike) < self._run.ranks else ()
            label = few_ranks(alike) if some else f"all {self._run.ranks} ranks"
            self._run.stop(Cause.SAME_DATA, f"the local gradients of {label} are equal to the last bit", some)

    def _stop(self, bad: list[int], index: int) -> None:
        """Names the ranks and the step, at `index` in the history, of the first infinite or NaN gradients."""
        run = self._run
        step = run.step - len(self._history) + 1 + index
        if len(bad) in (0, run.ranks) and run.ranks > 1:
            text = f"the gradient of step {step} is finite on no rank: the weights, or the loss, are not"
            run.stop(Cause.NOT_FINITE, text, step=step)
        text = f"the gradient of {few_ranks(bad)} at step {step} is not finite, before it is averaged"
        run.stop(Cause.NAN_ON_A_RANK.likely(few_ranks(bad)), text, bad, step=step)


def _finite(tensors: Iterable[Tensor]) -> bool:
    return all(math.isfinite(float(t.sum(dtype=torch.float32))) for t in tensors)


def _false(flags: Iterable[bool]) -> list[int]:
    return [index for index, good in enumerate(flags) if not good]
