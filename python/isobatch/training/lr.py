"""A plan's learning rate as a torch scheduler: PlanLR for one plan, ElasticLR for an elastic run."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from isobatch.errors import InputError
from isobatch.planning.plan import Plan, refuse_no_plan
from isobatch.planning.plan import plan as make_plan

_MULTIPLIER = "lr_multiplier"
_SCALED_FOR = "velocity_scaled_for_lr"
_SCHEDULERS: WeakKeyDictionary[Optimizer, ref[PlanLR]] = WeakKeyDictionary()


class PlanLR(LRScheduler):
    """Sets each parameter group's learning rate to `plan.lr_at(step)` times the group's multiplier.

    The value is closed form: it depends only on the step, not on earlier values. A group's multiplier is its
    `lr_multiplier`, if the group has that key, else its `lr` divided by the optimizer's default `lr`. So only
    ratios of the optimizer's own learning rates count. Call `step()` once after every `optimizer.step()`.

    The state is the progress in samples. If it is loaded into a PlanLR of another plan (another length, GPU
    count or batch), training continues there at the same progress. The new plan's learning rates are set at
    once, and again if the optimizer's state is loaded later.

    Args:
        optimizer: any torch optimizer, its state loaded or not.
        plan: a plan with a duration; it may have been moved by `replan`.

    Raises:
        InputError: `plan` is not a plan, is infeasible or has no duration; or the optimizer has no default
            `lr` to compare with, or is a wrapper; later, in `step()`, if it is not called once for every
            optimizer step.

    >>> import isobatch as ib
    >>> model = torch.nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD([{"params": model.weight}, {"params": model.bias, "lr": 0.05}], lr=0.1)
    >>> recipe = ib.Recipe(effective_batch=256, lr=3.0, optimizer="sgd", duration="10st", warmup="2st")
    >>> plan = ib.plan(recipe, 8)
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
                f"{type(optimizer).__name__} cannot be watched: give the torch optimizer inside it "
                "(Accelerate: before prepare)",
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
            if (scheduler := me()) is not None and not scheduler._is_blank():
                scheduler._steps_taken += 1

        def reset(*_: Any) -> None:
            if (scheduler := me()) is not None:
                scheduler._set()

        finalize(self, optimizer.register_step_post_hook(count).remove)
        finalize(self, optimizer.register_load_state_dict_post_hook(reset).remove)

    @classmethod
    def of(cls, optimizer: Optimizer) -> PlanLR | None:
        """Returns the last PlanLR of an optimizer; None if there is none."""
        last = _SCHEDULERS.get(optimizer)
        return None if last is None else last()

    @property
    def position(self) -> Fraction:
        """The progress in the plan's steps; may be a fraction after another plan's state was loaded."""
        return self._position

    def get_lr(self) -> list[float | torch.Tensor]:
        """Returns the learning rate of each group at the current step."""
        lr = self._lr_at(float(self._position))
        return [lr * multiplier for multiplier in self._multipliers]

    def step(self, epoch: int | None = None) -> None:
        """Goes on by one optimizer step.

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

    def _is_blank(self) -> bool:
        """Returns whether an optimizer step is not one of the training.

        torch's `set_state_dict` takes a step with learning rate 0 to make the optimizer's state.
        """
        groups = self.optimizer.param_groups
        rates = [
            group["lr"] for group in groups if not isinstance(group["lr"], torch.Tensor) or group["lr"].is_cpu
        ]
        return len(rates) == len(groups) and not any(rates) and any(self._last_lr)

    def _set(self) -> None:
        """Writes the learning rates of the current position into the optimizer."""
        self.last_epoch = int(self._position)
        groups = self.optimizer.param_groups
        self._last_lr = self.get_lr()  # not read back: that waits for the device
        for group, lr, multiplier in zip(groups, self._last_lr, self._multipliers, strict=True):
            group[_MULTIPLIER] = multiplier
            group["initial_lr"] = (self.plan.lr or 0.0) * multiplier
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Returns the progress: in samples, and in whole steps of this plan."""
        samples = self._course.samples_at(self._position)
        return {"samples": round(samples), "step": self.last_epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to the progress in `state_dict` under this scheduler's plan, and sets the learning rates.

        Raises:
            InputError: `state_dict` is not the state of a PlanLR.
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
            f"the scheduler was stepped, but the optimizer was not, after step {last}: call scheduler.step() "
            "once after each optimizer.step(), not for every micro-batch, nor for every process "
            "(Accelerate: leave it out of prepare), nor where a GradScaler skipped the step"
        )
    return (
        f"the optimizer took {steps} steps since the scheduler's last one, after step {last}: call "
        'scheduler.step() after each optimizer.step(), not once an epoch (Lightning: "interval": "step")'
    )


class ElasticLR(PlanLR):
    """A PlanLR at the step of a run; a step skipped by a GradScaler counts, as its samples are consumed.

    If the plan changes betas, eps or the weight decay, the optimizer's groups get the new values at the
    start, and again after the optimizer's state is loaded. A group's weight decay keeps its ratio to the
    recipe's, so 0 stays 0.

    If the optimizer's momentum includes the learning rate, it is rescaled once with the learning rate (Goyal
    et al. 2017, remark 2): `velocity` is its name in the optimizer's state. For timm's RMSpropTF
    (`lr_in_momentum`) no name is needed; torch's own optimizers have no such momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        step: int,
        completes: Callable[[ElasticLR], bool],
        velocity: str | None = None,
    ) -> None:
        self._velocity = velocity
        self._tuned = make_plan(plan.recipe, 1, max_micro_batch=plan.recipe.effective_batch)
        super().__init__(optimizer, plan)
        self._completes = completes
        self.go_to(step)

    def go_to(self, step: int) -> None:
        """Goes to the place after `step` optimizer steps."""
        self._position = Fraction(step)
        self._steps_taken = 0
        self._set()

    def step(self, epoch: int | None = None) -> None:
        """Goes on by the run's step.

        Raises:
            InputError: the step is not finished, or the scheduler was stepped in it before.
        """
        if self._started:
            if not self._completes(self):
                return
            # A GradScaler skips an optimizer step by not calling it.
            self._steps_taken = self._steps_taken or 1
        super().step(epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Checks a state for the run's own step, where the scheduler already is.

        Raises:
            InputError: the state is of another step.
        """
        if state_dict.get("step") != self.last_epoch:
            raise InputError(
                f"the scheduler's state must be of step {self.last_epoch}, where the run is, got "
                f"{state_dict.get('step')!r}: load the checkpoint that run.state_dict() is in",
                field="state_dict",
            )

    def _set(self) -> None:
        super()._set()
        for group in self.optimizer.param_groups:
            for name, change in self._changes().items():
                own = f"tuned_{name}"
                if name in group and (change is not None or own in group):
                    # The group also keeps its tuned value, as a checkpoint has the value set by the plan.
                    tuned = group.setdefault(own, group[name])
                    group[name] = tuned if change is None else change(tuned)
            self._scale_velocity(group)

    def _scale_velocity(self, group: dict[str, Any]) -> None:
        name = self._velocity or ("momentum_buffer" if group.get("lr_in_momentum") else None)
        lr = self.plan.lr
        if name is None or not lr:
            return
        # The group, also in a checkpoint, keeps the learning rate its velocity was scaled for, so that it is
        # scaled only once.
        before = group.setdefault(_SCALED_FOR, lr)
        if before != lr:
            group[_SCALED_FOR] = lr
            for parameter in group["params"]:
                if (velocity := self.optimizer.state.get(parameter, {}).get(name)) is not None:
                    velocity.mul_(lr / before)

    def _changes(self) -> dict[str, Callable[[Any], Any] | None]:
        """Returns a function for each of a group's values; None if the plan does not change the value."""
        plan, tuned = self.plan, self._tuned
        betas = (plan.beta1, plan.beta2)
        return {
            "betas": None if betas == (tuned.beta1, tuned.beta2) else lambda _: betas,
            "eps": _ratio(plan.eps, tuned.eps),
            "weight_decay": _ratio(plan.weight_decay, tuned.weight_decay),
        }


def _ratio(now: float | None, tuned: float | None) -> Callable[[Any], Any] | None:
    """Returns a function to scale a group's value like the plan's; None if the plan's did not change."""
    if now is None or not tuned or now == tuned:
        return None
    factor = now / tuned
    return lambda own: own * factor
