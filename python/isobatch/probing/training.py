"""One short training: a workload from a seed, on samples and in micro-batches, in this process."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isobatch.equivalence.tensors import AUTOCAST, part
from isobatch.errors import InputError, must_be
from isobatch.planning.plan import Plan
from isobatch.validate.workload import Workload, fault_of_loss, user_code

GROWTH = 4.0
"""A training has diverged where its loss is above its first by this much of it, or by 1, for PATIENCE_STEPS
steps."""
PATIENCE_STEPS = 3
PARTS = 32
"""Parts of the evaluation samples."""
EVALUATION_SEED = 7_919
"""Of the samples on which every trial is evaluated."""


def device_of(name: str) -> torch.device:
    """Returns where trials run: "auto" is CUDA where torch finds a device."""
    has_cuda = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise must_be("cpu or auto; torch finds no CUDA device", name, field="device")
    return torch.device("cuda" if has_cuda else "cpu")


def lr_course(plan: Plan, peak: float, steps: int) -> Callable[[int], float]:
    """Returns each step's learning rate: the plan's whole schedule, shortened, or a warmup and constant."""
    planned, total = plan.lr, plan.total_steps
    if plan.recipe.duration is None or not planned or not total:
        return lambda step: peak * min(1.0, (step + 0.5) / steps / 0.1)
    at = plan.lr_at
    return lambda step: peak * at((step + 0.5) / steps * total) / planned


def unusable(why: str) -> InputError:
    """Returns the error for an unsuitable workload."""
    return InputError(why, field="workload")


class Stream:
    """Draws a workload's samples in blocks, each from its own generator: sample i is always the same."""

    def __init__(self, workload: Workload, seed: int, block: int, device: torch.device) -> None:
        self._block = block

        @lru_cache(1)  # micro-batches follow each other: the last block is often asked for again
        def drawn(index: int) -> Any:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            with user_code("the workload's batch"):
                return workload.batch(block, generator, device)

        self._drawn = drawn  # it knows nothing of self: in a cycle a trial's weights would stay after it

    def samples(self, start: int, stop: int) -> Any:
        """Returns the samples from start to stop."""
        first, last = start // self._block, -(-stop // self._block)
        pieces = []
        for index in range(first, last):
            begin = index * self._block
            whole = self._drawn(index)
            low, high = max(start - begin, 0), min(stop - begin, self._block)
            pieces.append(whole if high - low == self._block else part(whole, low, high))
        return joined(pieces)


def joined(pieces: list[Any]) -> Any:
    """Joins pieces of a batch, one behind the other."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, tuple | list) and first and not isinstance(first[0], int | float | str):
        parts = [joined(list(column)) for column in zip(*pieces, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise unusable(f"batch must give tensors, or mappings or tuples of them, got {type(first).__name__}")


class ShortTraining:
    """Trains a workload from a seed by a plan's optimizer, clipping and number format, not by its split."""

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        device: torch.device,
        seed: int,
        block: int,
        check_budget: Callable[[], None],
    ) -> None:
        self.plan, self.workload, self.device, self._check_budget = plan, workload, device, check_budget
        self.model = self.workload.model.to(device)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        if not self.trained:
            raise unusable("the model has no parameter with requires_grad: there is nothing to train")
        with user_code("the workload's optimizer"):
            self.optimizer = self.workload.optimizer(self.trained)
        self._amp = AUTOCAST[plan.recipe.precision]
        self._amp = torch.bfloat16 if self._amp == torch.float16 else self._amp
        first = float(self.optimizer.param_groups[0]["lr"])
        # Groups keep their ratios: a head that learns ten times as fast still does.
        self._ratios = [float(g["lr"]) / first if first else 1.0 for g in self.optimizer.param_groups]
        self.train_stream = Stream(self.workload, seed, block, device)
        self._evaluation = Stream(self.workload, EVALUATION_SEED, block, device)
        torch.manual_seed(seed * 65_537)
        self.consumed = 0

    def step(self, shares: list[range], lr: float) -> float:
        """Takes one optimizer step on the next samples, in micro-batches; returns the mean loss."""
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = lr * ratio
        mean = self.gradient(shares)
        if np.isfinite(mean):
            if self.plan.recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.trained, self.plan.recipe.clip_norm)
            self.optimizer.step()
        return mean

    def gradient(self, shares: list[range]) -> float:
        """Computes the gradient of the mean over the next samples; returns the mean loss."""
        batch = sum(map(len, shares))
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        summed = 0.0
        for share, unit in zip(shares, self._units(shares, batch), strict=True):
            self._check_budget()
            loss = self._loss(self._part(share)) * unit
            with user_code("the gradient of the workload's loss"):
                loss.backward()  # type: ignore[no-untyped-call]
            summed += float(loss.detach())
        self.consumed += batch
        return summed

    def _part(self, share: range) -> Any:
        start = self.consumed + share.start
        return self.train_stream.samples(start, start + len(share))

    def _units(self, shares: list[range], batch: int) -> list[float]:
        """Returns the factor of each micro-batch's loss: the sum is then the mean over the step."""
        own, total = [float(len(share)) for share in shares], float(batch)
        if self.workload.weight is not None:
            own = [self._weight(self._part(share), len(share)) for share in shares]
            total = sum(own)
            if not total > 0:
                raise unusable(f"the weights of a step sum to {total:g}, not above 0")
        return [1 / total if self.workload.reduction == "sum" else n / total for n in own]

    def _loss(self, batch: Any) -> Tensor:
        with (
            user_code("the workload's loss"),
            torch.autocast(self.device.type, self._amp, enabled=self._amp is not None),
        ):
            loss: Any = self.workload.loss(self.model, batch)
        if fault := fault_of_loss(loss):
            raise unusable(f"Workload.loss must return a {fault}")
        return loss  # type: ignore[no-any-return]

    @torch.no_grad()
    def evaluate(self, size: int) -> tuple[float, ...]:
        """Returns the mean loss on each of PARTS parts of `size` samples, the same for every trial."""
        self.model.eval()
        losses = []
        for index in range(PARTS):
            self._check_budget()
            batch = self._evaluation.samples(index * size, (index + 1) * size)
            loss = float(self._loss(batch))
            if self.workload.reduction == "sum":
                loss /= self._weight(batch, size)
            losses.append(loss)
        return tuple(losses)

    def _weight(self, batch: Any, size: int) -> float:
        """Returns the units of a batch of `size` samples."""
        if self.workload.weight is None:
            return float(size)
        with user_code("the workload's weight"):
            return float(self.workload.weight(batch))


def diverges(training: ShortTraining, shares: list[range], steps: int, lr_at: Callable[[int], float]) -> bool:
    """Trains for some steps, and tells whether it diverged: a loss far above the first, or not finite."""
    limit, high = 0.0, 0
    for step in range(steps):
        loss = training.step(shares, lr_at(step))
        if not np.isfinite(loss):
            return True
        limit = limit if step else loss + GROWTH * max(abs(loss), 0.25)
        high = high + 1 if loss > limit else 0
        if high >= PATIENCE_STEPS:
            return True
    return False
