"""The optimizer's values in an elastic run: the learning rate by the run's own step, and what else the plan moves."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from torch.optim import Optimizer

from isobatch.errors import InputError
from isobatch.integrations.torch.lr import PlanLR
from isobatch.planning.plan import Plan
from isobatch.planning.plan import plan as make_plan

_SCALED_FOR = "velocity_scaled_for_lr"


class ElasticLR(PlanLR):
    """A PlanLR at the step of a run. A step that a GradScaler skipped counts: its samples are consumed.

    Where the plan moves betas, eps or the weight decay, the optimizer's groups have them from the start, and again after the
    optimizer's state is loaded; a group's weight decay keeps its ratio to the recipe's, and 0 stays 0.

    A velocity that holds the learning rate moves with it, once (Goyal et al. 2017, remark 2): `velocity` is its name in the
    optimizer's state. That of timm's RMSpropTF (`lr_in_momentum`) is found without it; torch's own optimizers have none.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        step: int,
        completes: Callable[[ElasticLR], None],
        velocity: str | None = None,
    ) -> None:
        self._velocity = velocity
        self._tuned = make_plan(plan.recipe, 1, max_micro_batch=plan.recipe.effective_batch)
        super().__init__(optimizer, plan)
        self._completes = completes
        self.go_to(step)

    def go_to(self, step: int) -> None:
        """Goes to where `step` optimizer steps are done."""
        self._position = Fraction(step)
        self._steps_taken = 0
        self._set()

    def step(self, epoch: int | None = None) -> None:
        """Goes on by the step that the run is in.

        Raises:
            InputError: the step is not finished, or the scheduler was stepped in it before.
        """
        if self._started:
            self._completes(self)
            # A GradScaler skips an optimizer step by not calling it.
            self._steps_taken = self._steps_taken or 1
        super().step(epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Checks that a state is of the step that the run is at, where the scheduler already is.

        Raises:
            InputError: it is of another step.
        """
        if state_dict.get("step") != self.last_epoch:
            raise InputError(
                f"the scheduler's state must be of step {self.last_epoch}, where the run is, got {state_dict.get('step')!r}: load "
                "the checkpoint that run.state_dict() is in",
                field="state_dict",
            )

    def _set(self) -> None:
        super()._set()
        for group in self.optimizer.param_groups:
            for name, moved in self._moved().items():
                own = f"tuned_{name}"
                if name in group and (moved is not None or own in group):
                    # The group keeps its tuned value beside: a checkpoint has the one that the plan made of it.
                    tuned = group.setdefault(own, group[name])
                    group[name] = tuned if moved is None else moved(tuned)
            self._scale_velocity(group)

    def _scale_velocity(self, group: dict[str, Any]) -> None:
        name = self._velocity or ("momentum_buffer" if group.get("lr_in_momentum") else None)
        lr = self.plan.lr
        if name is None or not lr:
            return
        # The group keeps the learning rate that its velocity was scaled for, also in a checkpoint: so it is scaled once.
        before = group.setdefault(_SCALED_FOR, lr)
        if before != lr:
            group[_SCALED_FOR] = lr
            for parameter in group["params"]:
                if (velocity := self.optimizer.state.get(parameter, {}).get(name)) is not None:
                    velocity.mul_(lr / before)

    def _moved(self) -> dict[str, Callable[[Any], Any] | None]:
        """What the plan makes of a group's own values; None where it leaves them."""
        plan, tuned = self.plan, self._tuned
        betas = (plan.beta1, plan.beta2)
        return {
            "betas": None if betas == (tuned.beta1, tuned.beta2) else lambda _: betas,
            "eps": _ratio(plan.eps, tuned.eps),
            "weight_decay": _ratio(plan.weight_decay, tuned.weight_decay),
        }


def _ratio(now: float | None, tuned: float | None) -> Callable[[Any], Any] | None:
    """What multiplies a group's value as the plan's was; None where the plan's did not move."""
    if now is None or not tuned or now == tuned:
        return None
    factor = now / tuned
    return lambda own: own * factor
