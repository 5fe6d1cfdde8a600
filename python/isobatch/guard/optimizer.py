"""The optimizer's parameters, settings and state at the first step, and its learning rates at every step."""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isobatch.equivalence import clock
from isobatch.equivalence.groups import differing_setting, planned_settings
from isobatch.equivalence.laws import Cause, Diagnosis, either
from isobatch.equivalence.tensors import ulp
from isobatch.errors import InputError
from isobatch.guard.run import LOOK_EVERY_STEPS, Run, outside_of_graphs
from isobatch.training.lr import PlanLR

WITHOUT_FIELD = ("amsgrad", "dampening", "maximize", "nesterov")
MAX_OBSERVED_STEPS = 64  # steps whose learning rates are kept for the diagnosis
FACTOR_TOLERANCE = 1e-9  # a factor computed from a learning rate is not exact
MAX_SEARCHED_STEPS = 10_000_000  # of a plan, in search of a learning rate
STEPS_AHEAD = 64  # learning rates computed at once: faster than one by one
MAX_STEPS = 2**40  # taken for the length of a plan without a duration


def torch_optimizer(optimizer: Any, unchecked: list[str]) -> Any:
    """Returns the torch optimizer inside a wrapper or container; a hidden one is refused."""
    if type(optimizer).__name__ == "AcceleratedOptimizer":
        optimizer = optimizer.optimizer
    several = getattr(optimizer, "optimizers", None)
    if isinstance(several, list | tuple) and several:  # nobody steps the container's own groups
        if len(several) > 1:
            unchecked.append("optimizers other than the first")
        optimizer = several[0]
    if type(optimizer).__name__ == "ScheduleFreeWrapper":
        optimizer = optimizer.base
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        kind = type(optimizer).__name__
        raise InputError(f"{kind} cannot be watched: give the torch optimizer inside it", field="optimizer")
    return optimizer


def check_parameters(run: Run, model: nn.Module, optimizer: Any) -> None:
    """Stops if the model has gradients and the optimizer's parameters, perhaps copies, have none."""
    own = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p.grad is not None for p in model.parameters()) and all(p.grad is None for p in own):
        text = f"the model has gradients, but none of the optimizer's {len(own)} parameters has one"
        run.stop(Cause.OPTIMIZER_PARAMETERS, text)


class Optimizers:
    """Finds the optimizers of the model's parameters in the first steps: the attached one, then others."""

    def __init__(self, run: Run, model: nn.Module, optimizer: Any, on_inner: Callable[[Any], None]) -> None:
        """`on_inner(optimizer)`: it steps, and shares the attached one's groups, as inside of SAM's."""
        self._run, self._model, self._found, self._on_inner = run, model, [optimizer], on_inner
        self.elsewhere = False  # another optimizer steps on the attached one's parameters
        self._named = {id(p): (name, p) for name, p in model.named_parameters() if p.requires_grad}
        self._attached, self._known = self.owned(), {id(p) for p in model.parameters()}
        run.first_hooks.callback(register_optimizer_step_pre_hook(self._steps).remove)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self._found for group in optimizer.param_groups]

    def owned(self) -> set[int]:
        """Returns the identities of all optimizers' parameters."""
        return {id(p) for group in self.param_groups for p in group["params"]}

    @outside_of_graphs
    def _steps(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        attached = self._found[0]
        if optimizer is not attached and optimizer.param_groups is attached.param_groups:
            self._on_inner(optimizer)
            return
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.elsewhere = self.elsewhere or (optimizer is not self._found[0] and bool(own & self._attached))
        # An optimizer inside of another one has the same parameters.
        if own & self._named.keys() and not own & self.owned():
            self._found.append(optimizer)

    def check_replaced(self) -> None:
        """Notes the model's new parameters, made since the guard was attached, without an optimizer."""
        owned, known = self.owned(), self._known
        new = [
            name for name, p in self._model.named_parameters() if id(p) not in known and id(p) not in owned
        ]
        if new and owned & known:
            self._run.note(
                f"{len(new)} of the model's parameters are new since the guard was attached and "
                f"are in no optimizer, such as {new[0]}: they do not train"
            )

    def check(self) -> None:
        """Notes parameters with gradients and no optimizer, unless an optimizer has its own copies."""
        owned = self.owned()
        frozen = [name for name, p in self._model.named_parameters() if not p.requires_grad]
        if frozen and owned & self._named.keys():
            self._run.leave(
                f"whether {len(frozen)} of the model's parameters are meant to be frozen, such as {frozen[0]}"
            )
        untrained = [
            name for key, (name, p) in self._named.items() if key not in owned and p.grad is not None
        ]
        if untrained and owned & self._named.keys():
            self._run.note(
                f"{len(untrained)} of the model's {len(self._named)} parameters have gradients but are in no "
                f"optimizer that steps, such as {untrained[0]}: they do not train"
            )


def own_warmup(group: dict[str, Any]) -> int:
    """Returns the steps of a warmup inside the optimizer itself, as in schedule-free ones; else 0."""
    steps = group.get("warmup_steps") or 0
    return int(steps) if isinstance(steps, int | float) else 0


def clips_itself(optimizer: Any) -> bool:
    """Tells whether an optimizer clips inside of its step, as LAMB does."""
    return any(
        "clip" in name or "max_grad_norm" in name for group in optimizer.param_groups for name in group
    )


def check_settings(run: Run, optimizer: Any) -> None:
    """Compares the optimizer's settings with the plan's, and names settings without a field in the recipe."""
    recipe, plan = run.plan.recipe, run.plan
    more = {
        name: group[name] for group in optimizer.param_groups for name in WITHOUT_FIELD if group.get(name)
    }
    if more:
        settings = ", ".join(f"{name}={value}" for name, value in more.items())
        run.leave(f"settings of the optimizer that the recipe has no field for: {settings}")
    planned = planned_settings(plan)
    decays = [group for group in optimizer.param_groups if group.get("weight_decay")]
    if planned["weight_decay"] and any(p.dim() < 2 for group in decays for p in group["params"]):
        run.leave("which parameters decay: biases or norms do, and the plan does not say")
    difference = differing_setting(optimizer, recipe.optimizer, planned)
    if difference is not None:
        name, text = difference
        run.stop(Cause.ANOTHER_SETTING.likely(name), text, run.witnesses(name))


def waits(rate: Any) -> bool:
    """Tells whether reading a learning rate waits for a GPU."""
    return isinstance(rate, Tensor) and not rate.is_cpu


def check_state(run: Run, optimizer: Any) -> None:
    """Stops a resumed run without its optimizer's state."""
    keeps = "betas" in optimizer.defaults or bool(optimizer.defaults.get("momentum"))
    if run.start and keeps and not optimizer.state:
        text = f"the optimizer has no state at step {run.step:,}, where the run resumes"
        run.stop(Cause.NEW_STATE, text)


def settle_start(run: Run, optimizer: Any, start_step: int | None, place: tuple[int, int] | None) -> None:
    """Sets the plan's step at the start of this training, and compares the sampler with it.

    The step is `start_step`, else that of the optimizer's PlanLR, else of the PlanSampler that began at
    `place`, (epoch, offset), else of the plan's last move.
    """
    if run.plan.recipe.dataset_size is None:
        place = None  # the plan knows no epochs
    scheduler = PlanLR.of(optimizer)
    if start_step is not None:
        run.start = start_step
    elif scheduler is not None:
        position = scheduler.position
        run.start = int(position) if position.denominator == 1 else position
    elif place is not None:
        run.start = _step_at(run, place)
    if place is None or run.plan.recipe.ramp is not None or not isinstance(run.start, int):
        return
    planned = run.plan.position(int(run.start))
    if (planned.epoch, planned.offset) != place:
        text = (
            f"the sampler begins in epoch {place[0]} after sample {place[1]}; planned: epoch "
            f"{planned.epoch}, {planned.offset}"
        )
        run.stop(Cause.ANOTHER_PLACE, text)


def _step_at(run: Run, place: tuple[int, int]) -> int:
    """Returns the first step, after the last move, at this place in the data."""
    plan = run.plan
    steps = range(int(run.start), MAX_STEPS if plan.total_steps is None else plan.total_steps + 1)

    def where(step: int) -> tuple[int, int]:
        position = plan.position(step)
        return position.epoch or 0, position.offset or 0

    return steps[min(bisect_left(steps, place, key=where), len(steps) - 1)]


def _same(rate: float, peak: float) -> bool:
    return clock.close(rate, peak, peak)


class _Bounds(NamedTuple):
    """Bounds of a group's learning rate around its factor times the plan's."""

    factor: float
    absolute: float
    relative: float

    def holds(self, rate: Any, planned: float) -> bool:
        """Tells whether a learning rate is the planned one. A NaN is not."""
        want = planned * self.factor
        return bool(abs(rate - want) <= self.absolute + self.relative * want)


class LearningRates:
    """Checks each group's learning rate: the plan's, times a constant factor of the group.

    The factor is the group's `lr_multiplier`, as PlanLR sets it, else its factor at the first step with a
    rate above 0. Without any multiplier, one group must have factor 1: a group made with the plan's learning
    rate, if a scheduler recorded that (`initial_lr`), else a group that has it now.
    """

    def __init__(self, run: Run, optimizer: Any) -> None:
        self._run, self._optimizer = run, optimizer
        self._factors = list[float | None]()
        self._allowed = list[_Bounds]()  # when all factors are known
        self._ahead = list[float]()
        self._waited = False  # whether reading the last rates waited for a GPU
        self._plain = 0  # the index of a group with factor 1, if there is one
        self._observed: dict[int, list[float]] = {}  # by step
        self._at_first_call = list[float]()
        self._planned = run.plan.total_steps is not None
        self._peak = cast(float, run.plan.lr)
        if not self._planned:
            run.leave("the learning rate: the recipe has no duration")
        elif any(group["lr"] is None for group in optimizer.param_groups):  # transformers' Adafactor
            self._planned = False
            run.leave("the learning rate: the optimizer sets a relative one itself")
        self._own_warmup = 0
        if self._planned and (lengths := {own_warmup(group) for group in optimizer.param_groups} - {0}):
            self._own_warmup = max(lengths)
            if lengths != {planned := int(run.plan.warmup_steps or 0)}:
                text = f"the optimizer's own warmup_steps is {max(lengths):,}, {planned:,} planned"
                run.stop(Cause.ANOTHER_LR.likely("another warmup"), text, run.witnesses("warmup"))

    def begin(self) -> None:
        """Notes the rates at the model's first call: no scheduler of micro-batches has stepped yet."""
        if not self._at_first_call:
            self._at_first_call = [float(group["lr"] or 0) for group in self._optimizer.param_groups]

    def check(self) -> None:
        """Checks before an optimizer step."""
        if not self._planned:
            return
        run, groups, since = self._run, self._optimizer.param_groups, self._run.since
        if since % STEPS_AHEAD == 0:
            self._ahead = [self._at(step) for step in range(since, since + STEPS_AHEAD)]
        planned = self._ahead[since % STEPS_AHEAD]
        if self._waited and not (run.rare or since % LOOK_EVERY_STEPS == 0):
            return
        self._waited = any(waits(group["lr"]) for group in groups)
        if len(self._observed) < MAX_OBSERVED_STEPS:
            self._observed[since] = [float(group["lr"]) for group in groups]
        if len(groups) == len(self._allowed):  # all factors are known: the usual case
            bounds = zip(self._allowed, groups, strict=True)
            if all(allowed.holds(group["lr"], planned) for allowed, group in bounds):
                return
        self._look(planned, [float(group["lr"]) for group in groups])

    def _look(self, planned: float, rates: list[float]) -> None:
        run = self._run
        if len(self._factors) != len(rates) or None in self._factors:
            self._settle(planned, rates)
            known = None not in self._factors
            self._allowed = [self._allow(index) for index in range(len(rates))] if known else []
        stray = self._strays(rates, planned)
        if stray and run.skipped:  # Many loops step the scheduler where the loss scaler skipped a step.
            stray = self._strays(rates, self._at(run.since + run.skipped))
        if stray and not run.near and any("swa_lr" in group for group in self._optimizer.param_groups):
            run.note(
                f"SWALR sets the learning rate from step {run.step:,} on: it is not compared with the plan's"
            )
            self._planned = False
        elif stray:
            self._stop(stray, rates, planned)

    def _at(self, since: float) -> float:
        """Returns the plan's learning rate: behind the optimizer's own warmup, from the start."""
        return self._run.plan.lr_at(max(float(self._run.start) + since, self._own_warmup))

    def _settle(self, planned: float, rates: list[float]) -> None:
        """Finds the missing factors of groups."""
        groups = self._optimizer.param_groups
        self._factors += [group.get("lr_multiplier") for group in groups[len(self._factors) :]]
        unknown = [index for index, factor in enumerate(self._factors) if factor is None]
        made_so = [i for i in unknown if self._was_peak(i)]
        following = [i for i in unknown if self._allow(i).holds(rates[i], planned)]
        plain = [i for i in made_so if i in following] or made_so or following
        self._plain = next(iter(plain), self._plain)
        base = rates[self._plain] if plain else planned
        if base and planned and (plain or len(unknown) < len(groups)):
            for index in unknown:
                self._factors[index] = 1.0 if index in plain else rates[index] / base

    def _was_peak(self, index: int) -> bool:
        """Tells whether a group was made with the plan's learning rate, as its scheduler recorded."""
        group = self._optimizer.param_groups[index]
        rate = group.get("initial_lr")
        return rate is not None and clock.close(float(rate), self._peak, self._peak, ulp(group["lr"]))

    def _allow(self, index: int) -> _Bounds:
        """Returns the bounds of a group; an unknown factor counts as 1."""
        known = self._factors[index]
        factor = 1.0 if known is None else known
        rounding = clock.ULPS * ulp(self._optimizer.param_groups[index]["lr"]) * self._peak * factor
        return _Bounds(factor, rounding, 0.0 if factor == 1.0 else FACTOR_TOLERANCE)

    def _strays(self, rates: list[float], planned: float) -> list[int]:
        """Lists the groups off the plan's learning rate."""
        return [i for i, rate in enumerate(rates) if not self._allow(i).holds(rate, planned)]

    def _stop(self, stray: list[int], rates: list[float], planned: float) -> None:
        run, groups = self._run, self._optimizer.param_groups
        index = self._plain if self._plain in stray else stray[0]
        alike = len(set(rates)) == 1  # then the groups differ in other things, such as their weight decay
        factor = self._factors[index]
        known = 1.0 if factor is None else factor
        of = "" if alike else f" of parameter group {index}"
        text = f"learning rate {rates[index]:.6g}{of}, {planned * known:.6g} planned"
        if len(stray) < len(groups):
            why = Cause.GROUP_STRAYS.likely(f"group {index}")
        elif not alike and factor is None and not self._was_peak(index):
            why = Cause.ANOTHER_LR.likely("no parameter group has the plan's")
            text = f"learning rates {', '.join(f'{rate:.6g}' for rate in rates)}, {planned:.6g} planned"
        else:
            why = self._why(index, rates)
        run.stop(why, text, run.witnesses("learning rate"))

    def _why(self, index: int, rates: list[float]) -> Diagnosis:
        """Diagnoses a group's learning rate off the plan's."""
        run, group, factor = self._run, self._optimizer.param_groups[index], self._factors[index] or 1.0
        initial = None if (initial_lr := group.get("initial_lr")) is None else float(initial_lr) / factor
        self._observed[run.since] = rates
        fault = clock.learning_rate(
            {step: row[index] / factor for step, row in self._observed.items()},
            self._at,
            peak=self._peak,
            pace=clock.Pace(run.plan.accumulation or 1, run.ranks, run.plan.steps_per_epoch),
            initial=initial,
            ulp=ulp(group["lr"]),
        )
        why = fault[1] if fault is not None else Cause.ANOTHER_LR.likely()
        rate = self._at_first_call[index] / factor if index < len(self._at_first_call) else 0.0
        if run.since == 0 and run.start == 0 and rate > self._at(0) and _same(rate, self._peak):
            return Cause.ANOTHER_LR.likely("no warmup")
        made_so = initial is None or clock.close(initial, self._peak, self._peak, ulp(group["lr"]))
        if run.since == 0 and why.cause is Cause.ANOTHER_LR and made_so:  # perhaps resumed
            steps = self._steps_with(rates[index] / factor)
            if steps:
                why = either(
                    why, Cause.RESUMED.likely(f"it is the plan's at step {' or '.join(map(str, steps))}")
                )
        return why

    def _steps_with(self, rate: float) -> list[int]:
        """Lists the plan's steps with this learning rate, if they are few."""
        length = min(self._run.plan.total_steps or 0, MAX_SEARCHED_STEPS)
        values = np.asarray(self._run.plan.schedule.values(range(length)))
        lr = self._optimizer.param_groups[self._plain]["lr"]
        steps = np.flatnonzero(np.abs(values - rate) <= clock.ULPS * ulp(lr) * self._peak)
        return steps.tolist() if len(steps) <= 3 else []
