"""A plan's learning rate, as a torch scheduler."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from isobatch.errors import InputError
from isobatch.planning.plan import Plan, refuse_no_plan

_MULTIPLIER = "lr_multiplier"
_SCHEDULERS: WeakKeyDictionary[Optimizer, ref[PlanLR]] = WeakKeyDictionary()


class PlanLR(LRScheduler):
    """Sets each parameter group's learning rate to `plan.lr_at(step)` times the group's multiplier.

    The value is closed form: it depends on the step alone, not on the values before. A group's multiplier is its
    `lr_multiplier`, where the group has that key, else its `lr` over the optimizer's default `lr`; so the optimizer's own
    learning rate is free, the plan's counts. Call `step()` once after every `optimizer.step()`.

    The state is the progress in samples. Loaded into a PlanLR of another plan (another length, GPU count or batch), training
    goes on there at the same progress: the plan it is built with wins, and the optimizer's learning rates are set at once, also
    when the optimizer's state is loaded later.

    Args:
        optimizer: any torch optimizer, its state loaded or not.
        plan: a plan with a duration; also one that `replan` moved.

    Raises:
        InputError: the plan is none, is infeasible or has no duration, or the optimizer has no default `lr` to compare with, or is
            a wrapper; later, in `step()`, when it is not called once for every optimizer step.

    >>> import isobatch as ib
    >>> model = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD([{"params": model.weight}, {"params": model.bias, "lr": 0.05}], lr=0.1)
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=3.0, optimizer="sgd", duration="10st", warmup="2st"), 8)
    >>> scheduler = PlanLR(optimizer, plan)
    >>> for _ in range(2):
    ...     optimizer.step()
    ...     scheduler.step()
    >>> scheduler.get_last_lr()
    [3.0, 1.5]
    """

    def __init__(self, optimizer: Optimizer, plan: Plan) -> None:
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):
            raise InputError(
                f"{type(optimizer).__name__} cannot be watched: give the torch optimizer inside it (Accelerate: before prepare)",
                field="optimizer",
            )
        refuse_no_plan(plan)
        self.plan = plan
        self._course, self._lr_at = plan.course, plan.lr_at
        self._position = Fraction(0)
        self._steps_taken, self._started = 0, False
        self._multipliers = [_multiplier(group, optimizer.defaults) for group in optimizer.param_groups]
        for group, multiplier in zip(optimizer.param_groups, self._multipliers, strict=True):
            group["initial_lr"] = (plan.lr or 0.0) * multiplier  # becomes base_lrs
        super().__init__(optimizer)
        # The optimizer outlives schedulers: a hook must not keep one alive.
        me = _SCHEDULERS[optimizer] = ref(self)

        def count(*_: Any) -> None:
            if (scheduler := me()) is not None:
                scheduler._steps_taken += 1

        def reset(*_: Any) -> None:
            if (scheduler := me()) is not None:
                scheduler._set()

        optimizer.register_step_post_hook(count)
        optimizer.register_load_state_dict_post_hook(reset)

    @classmethod
    def of(cls, optimizer: Optimizer) -> PlanLR | None:
        """The PlanLR that was last made for an optimizer; None where there is none."""
        made = _SCHEDULERS.get(optimizer)
        return None if made is None else made()

    @property
    def position(self) -> Fraction:
        """The optimizer steps done, counted as the plan counts; a fraction where a state of another plan was loaded."""
        return self._position

    def get_lr(self) -> list[float | torch.Tensor]:
        """The learning rate of each group at the current step."""
        lr = self._lr_at(float(self._position))
        return [lr * multiplier for multiplier in self._multipliers]

    def step(self, epoch: int | None = None) -> None:
        """Goes on by the one optimizer step that was taken.

        Raises:
            InputError: no optimizer step was taken since the last call, or more than one.
        """
        if epoch is not None:
            raise InputError("PlanLR counts optimizer steps itself: call step() without it", field="epoch")
        if self._started:
            if self._steps_taken != 1:
                raise InputError(_wrong_count(self._steps_taken, self.last_epoch))
            self._steps_taken = 0
            self._position += 1
        self._started = True  # LRScheduler's own first call sets the first learning rate.
        self._set()

    def _set(self) -> None:
        """Writes the learning rates of the current position into the optimizer."""
        self.last_epoch = int(self._position)
        groups = self.optimizer.param_groups
        for group, lr, multiplier in zip(groups, self.get_lr(), self._multipliers, strict=True):
            group[_MULTIPLIER] = multiplier
            group["initial_lr"] = (self.plan.lr or 0.0) * multiplier
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        self._last_lr = [float(group["lr"]) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        """The progress: samples, and the optimizer steps that they took here."""
        samples = self._course.samples_at(self._position)
        return {"samples": round(samples), "step": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to the progress in `state_dict`, under this scheduler's own plan, and sets the optimizer's learning rates.

        Raises:
            InputError: it is no state of a PlanLR.
        """
        samples = state_dict.get("samples")
        if type(samples) is not int or samples < 0:
            raise InputError("not the state of a PlanLR: it has no samples", field="state_dict")
        self._position = self._course.step_at(Fraction(samples))
        self._steps_taken = 0
        self._set()


def _multiplier(group: dict[str, Any], defaults: dict[str, Any]) -> float:
    if _MULTIPLIER in group:
        return float(group[_MULTIPLIER])
    default = float(defaults.get("lr") or 0.0)
    if default <= 0:
        raise InputError(
            f"the optimizer's default lr is {default:g}: give each group its {_MULTIPLIER}", field="lr"
        )
    return float(group["lr"]) / default


def _wrong_count(steps: int, last: int) -> str:
    if steps == 0:
        return (
            f"the scheduler was stepped, but the optimizer was not, after step {last}: call scheduler.step() once after each "
            "optimizer.step(), not for every micro-batch, nor for every process (Accelerate: leave it out of prepare), nor where a "
            "GradScaler skipped the step"
        )
    return (
        f"the optimizer took {steps} steps since the scheduler's last one, after step {last}: call scheduler.step() after each "
        'optimizer.step(), not once an epoch (Lightning: "interval": "step")'
    )
