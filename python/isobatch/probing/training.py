"""One short training: a workload from a seed, on samples and in a split that are given."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isobatch.diagnosis.tensors import AUTOCAST, mapped
from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.probing.ranks import Ranks, agree, first_ranks, sum_gradients
from isobatch.probing.stream import EVALUATION, Stream
from isobatch.probing.trials import PARTS
from isobatch.validate.ranks.group import Group
from isobatch.validate.workload import Workload, user_code

GROWTH = 4.0
"""A training has diverged where its loss is above its first by this much of it, or by 1, for PATIENCE steps."""
PATIENCE = 3
STEPS_TIMED, SECONDS_TIMED = 9, 0.5
"""Steps that are timed at most, and for how long about."""

Make = Callable[[int, Plan], Workload]


class Expired(Exception):
    """The budget is spent. All ranks raise it at the same place."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A replica's micro-batch of a step: its first sample, counted within the step, and how many."""

    start: int
    size: int


def shares(sizes: list[list[int]]) -> list[list[Share]]:
    """The micro-batches of each replica, which take the samples of a step in turn.

    >>> [[share.start for share in replica] for replica in shares([[2, 2], [3]])]
    [[0, 2], [4]]
    """
    found, start = [], 0
    for replica in sizes:
        row = []
        for size in replica:
            row.append(Share(start=start, size=size))
            start += size
        found.append(row)
    return found


def even(batch: int, replicas: int, most: int) -> list[list[int]]:
    """A batch over replicas, in micro-batches of at most so many samples.

    >>> even(10, 2, 3), even(7, 2, 8)
    ([[3, 2], [3, 2]], [[4], [3]])
    """
    counts = [batch // replicas + (rank < batch % replicas) for rank in range(replicas)]
    return [[most] * (n // most) + [n % most] * (n % most > 0) for n in counts if n]


class Course:
    """A learning rate at each step: a peak, and what of it there is at each part of the way."""

    def __init__(self, peak: float, steps: int, factor: Callable[[float], float]) -> None:
        self.peak, self.steps, self._factor = peak, steps, factor

    def at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 0."""
        return self.peak * self._factor((step + 0.5) / self.steps)


def shape_of(plan: Plan, *, constant: bool) -> Callable[[float], float]:
    """What of its peak the learning rate has at each part of a training: the plan's whole schedule, made as short as the trial; or
    a constant one after a tenth of warmup, where the recipe has no duration or the training goes on from a checkpoint."""
    if constant or plan.recipe.duration is None or not plan.lr or not plan.total_steps:
        return lambda part: min(1.0, part / 0.1)
    peak, steps, at = plan.lr, plan.total_steps, plan.lr_at
    return lambda part: at(part * steps) / peak


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leaves the process's random generators as they were."""
    ours, theirs = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(theirs)


def seed_all(seed: int) -> None:
    """Seeds torch, NumPy and Python."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


class Training:
    """A workload under training on this rank, from a seed.

    Args:
        plan: its optimizer's values, clipping and number format are used; its split is not.
        make: makes the workload for a seed and a plan.
        ranks: the processes.
        seed: of weights and samples.
        block: samples that are drawn at once.
        checkpoint: weights, and perhaps the optimizer's state, to begin with.
        double: in double precision, without dropout.
        expired: whether the budget is spent; asked before each micro-batch.

    Raises:
        InputError: the workload cannot be trained: it has no parameters to train, or its optimizer cannot be made.
    """

    def __init__(
        self,
        plan: Plan,
        make: Make,
        ranks: Ranks | Group,
        *,
        seed: int,
        block: int,
        checkpoint: dict[str, Any] | None = None,
        double: bool = False,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan, self.ranks, self._double, self._expired = plan, ranks, double, expired
        self.workload = make(seed, plan)
        self.model = self.workload.model.to(ranks.device)
        if double:
            self.model.double()
            for module in self.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        if checkpoint is not None:
            load_weights(self.model, checkpoint)
        first_ranks(ranks, [*self.model.parameters(), *self.model.buffers()])
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        if not self.trained:
            raise InputError(
                "the model has no parameter with requires_grad: there is nothing to train", field="workload"
            )
        with user_code("the workload's optimizer"):
            self.optimizer = self.workload.optimizer(self.trained)
        if checkpoint is not None and "optimizer" in checkpoint:
            load_optimizer(self.optimizer, checkpoint["optimizer"])
        self._amp = None if double else AUTOCAST[plan.recipe.precision]
        self._amp = torch.bfloat16 if self._amp == torch.float16 else self._amp
        first = float(self.optimizer.param_groups[0]["lr"])
        # Groups keep their ratios: a head that learns ten times as fast still does.
        self._ratios = [float(g["lr"]) / first if first else 1.0 for g in self.optimizer.param_groups]
        self.train_stream = Stream(self.workload, seed, block, ranks.device)
        self._evaluation = Stream(self.workload, EVALUATION, block, ranks.device)
        torch.manual_seed(seed * 65_537 + ranks.rank)  # dropout: other on each rank
        self.consumed = 0

    def step(self, replicas: list[list[Share]], lr: float) -> float:
        """One optimizer step on the next samples. Replicas are dealt out over the ranks in turn; each rank computes its own one after
        the other.

        Returns:
            The mean loss over the step, on all ranks; NaN or infinite where it is.

        Raises:
            Expired: the budget is spent.
        """
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = lr * ratio
        mean = self.gradient(replicas)
        if np.isfinite(mean):
            if self.plan.recipe.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.trained, self.plan.recipe.clip_norm)
            self.optimizer.step()
        return mean

    def gradient(self, replicas: list[list[Share]]) -> float:
        """Leaves the gradient of the mean over the next samples in the model, on all ranks; returns that mean loss.

        Raises:
            Expired: the budget is spent. A rank that sees so skips its other micro-batches and still meets the others, so that none
                waits for it: one collective tells both the loss and the end.
        """
        ranks, batch = self.ranks, sum(share.size for replica in replicas for share in replica)
        mine = [share for replica in replicas[ranks.rank :: ranks.world_size] for share in replica]
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        summed, late, fault = 0.0, self._expired(), None
        try:
            for share, unit in zip(mine, self._units(mine, batch), strict=True):
                if late := late or self._expired():
                    break
                loss = self._loss(self._part(share)) * unit
                if not loss.requires_grad:
                    raise InputError(
                        "the workload's loss has no gradient: compute it by calling the model, without no_grad or detach",
                        field="workload",
                    )
                with user_code("the gradient of the workload's loss"):
                    loss.backward()  # type: ignore[no-untyped-call]
                summed += float(loss.detach())
        except InputError as error:
            fault = error
        told = ranks.total(torch.tensor([summed, late, fault is not None], dtype=torch.float64))
        if told[2] > 0:
            agree(ranks, fault)
        if told[1] > 0:
            raise Expired
        sum_gradients(ranks, self.trained)
        self.consumed += batch
        return float(told[0])

    def _part(self, share: Share) -> Any:
        start = self.consumed + share.start
        return self._formatted(self.train_stream.samples(start, start + share.size))

    def _formatted(self, batch: Any) -> Any:
        if not self._double:
            return batch

        def wide(one: Any) -> Any:
            return one.double() if isinstance(one, Tensor) and one.is_floating_point() else one

        return mapped(batch, wide)

    def _units(self, mine: list[Share], batch: int) -> list[float]:
        """The factor of each micro-batch's loss, so that the sum over all ranks is the mean over the step."""
        weigh, summed = self.workload.weight, self.workload.reduction == "sum"
        own, total, fault = [float(share.size) for share in mine], float(batch), None
        if weigh is not None:
            try:
                with user_code("the workload's weight"):
                    own = [float(weigh(self._part(share))) for share in mine]
            except InputError as error:
                fault = error
            told = self.ranks.total(torch.tensor([sum(own), fault is not None], dtype=torch.float64))
            if told[1] > 0:
                agree(self.ranks, fault)
            total = float(told[0])
            if not total > 0:
                raise InputError(f"the weights of a step sum to {total:g}, not above 0", field="workload")
        return [1 / total if summed else n / total for n in own]

    def _loss(self, batch: Any) -> Tensor:
        with (
            user_code("the workload's loss"),
            torch.autocast(self.ranks.device.type, self._amp, enabled=self._amp is not None),
        ):
            loss: Any = self.workload.loss(self.model, batch)
        if not isinstance(loss, Tensor) or loss.dim():
            what = (
                f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            )
            hint = ", without .item()" if isinstance(loss, int | float) else ""
            raise InputError(
                f"the workload's loss must be a scalar tensor{hint}, got {what}", field="workload"
            )
        return loss

    @torch.no_grad()
    def evaluate(self, size: int) -> tuple[float, ...]:
        """The mean loss on each of PARTS parts of `size` samples that no trial trains on, the same for every trial, on all ranks.

        Raises:
            Expired: the budget is spent.
        """
        first_ranks(self.ranks, [b for b in self.model.buffers() if b.is_floating_point()])
        self.model.eval()
        found: dict[int, float] = {}
        fault = None
        try:
            for index in range(self.ranks.rank, PARTS, self.ranks.world_size):
                if self._expired():
                    break
                found[index] = self._evaluated(index, size)
        except InputError as error:
            fault = error
        agree(self.ranks, fault)
        every = {index: loss for part in self.ranks.gather(found) for index, loss in part.items()}
        if len(every) < PARTS:
            raise Expired
        return tuple(every[index] for index in range(PARTS))

    def _evaluated(self, index: int, size: int) -> float:
        """The mean loss on one part."""
        batch = self._formatted(self._evaluation.samples(index * size, (index + 1) * size))
        loss = float(self._loss(batch))
        if self.workload.reduction == "mean":
            return loss
        with user_code("the workload's weight"):
            return loss / (
                float(size) if self.workload.weight is None else float(self.workload.weight(batch))
            )

    def state(self) -> dict[str, Any]:
        """Copies of the weights and of the optimizer's state, as a checkpoint has them."""
        weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        return {"model": weights, "optimizer": copied(self.optimizer.state_dict())}


def run(training: Training, replicas: list[list[Share]], course: Course) -> tuple[bool, list[float]]:
    """Trains to the end of the course.

    Returns:
        (whether it diverged, the mean loss of each step).

    Raises:
        Expired: the budget is spent.
    """
    losses: list[float] = []
    high = 0
    for step in range(course.steps):
        losses.append(training.step(replicas, course.at(step)))
        limit = losses[0] + GROWTH * max(abs(losses[0]), 0.25)
        if not np.isfinite(losses[-1]):
            return True, losses
        high = high + 1 if losses[-1] > limit else 0
        if high >= PATIENCE:
            return True, losses
    return False, losses


def load_weights(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Gives a model a checkpoint's weights.

    Raises:
        InputError: they are another model's.
    """
    weights = checkpoint.get("model", checkpoint)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())[:300]
        raise InputError(
            f"the checkpoint is not of this workload's model: {said}", field="checkpoint"
        ) from None


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives an optimizer a checkpoint's state, and not its hyperparameters: those are the plan's.

    Raises:
        InputError: it is another optimizer's.
    """
    own = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
    try:
        optimizer.load_state_dict(copied(state))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the checkpoint is of another optimizer: {error}", field="checkpoint") from None
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


def read_checkpoint(path: str, device: torch.device) -> dict[str, Any]:
    """What torch.save wrote: tensors and plain values only.

    Raises:
        InputError: it cannot be read.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"cannot be read: {said}", file=path, field="checkpoint") from None
    if not isinstance(found, dict):
        raise InputError(
            f"must hold a dict of weights, got {type(found).__name__}", file=path, field="checkpoint"
        )
    return found


def copied(value: Any) -> Any:
    """A copy of a state: tensors are cloned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(one) for one in value)
    return value


def seconds_of_step(
    training: Training, replicas: list[list[Share]], clock: Callable[[], float] = time.monotonic
) -> float:
    """How long a step takes, the same on all ranks: the median of a few, behind one that warms up.

    Raises:
        Expired: the budget is spent.
    """
    taken: list[float] = []
    for _ in range(STEPS_TIMED + 1):
        begun = clock()
        training.step(replicas, 0.0)
        taken.append(clock() - begun)
        if training.ranks.from_first(len(taken) > 2 and sum(taken) > SECONDS_TIMED):
            break
    return float(training.ranks.from_first(float(np.median(taken[1:]))))
