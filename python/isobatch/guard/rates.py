"""The learning rate of every parameter group, at every step."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause, Diagnosis, either
from isobatch.diagnosis.tensors import ulp
from isobatch.guard.run import Run

OBSERVED = 64  # steps kept for the diagnosis
ROUNDED = 1e-9  # a factor that is read off a learning rate is not exact
SEARCHED = 10_000_000  # steps of a plan in which a learning rate is looked for
AHEAD = 64  # steps whose learning rates are worked out at once: the code is then not fetched anew each time


class _Allowed(NamedTuple):
    """A group's factor, and how far its learning rate may be off: by so much, and by so much of it."""

    factor: float
    absolute: float
    relative: float

    def holds(self, rate: Any, planned: float) -> bool:
        """Whether a learning rate is the planned one. A NaN is not."""
        want = planned * self.factor
        return bool(abs(rate - want) <= self.absolute + self.relative * want)


class Rates:
    """Each group's learning rate must be the plan's, times a constant: the group's `lr_multiplier` where it has one, as PlanLR
    sets it, else the factor that it has at the first step whose rate is not 0. Without any multiplier, one group must have
    factor 1: one that was made with the plan's learning rate, where a scheduler wrote that down, else one that has it then."""

    def __init__(self, run: Run, optimizer: Any) -> None:
        self._run, self._optimizer = run, optimizer
        self._factors: list[float | None] = []
        self._allowed: list[_Allowed] = []  # when all factors are known
        self._ahead: list[float] = []
        self._plain = 0  # a group that has factor 1, if any has
        self._observed: dict[int, list[float]] = {}  # by step
        self._planned = run.plan.total_steps is not None
        self._peak = cast(float, run.plan.lr)
        if not self._planned:
            run.unchecked.append("the learning rate: the recipe has no duration")

    def check(self) -> None:
        """Before an optimizer step."""
        if not self._planned:
            return
        groups, since = self._optimizer.param_groups, self._run.since
        if since % AHEAD == 0:
            self._ahead = [self._at(step) for step in range(since, since + AHEAD)]
        planned = self._ahead[since % AHEAD]
        if len(groups) == len(self._allowed):  # all factors are known, and mostly there is nothing to see
            for group, (factor, absolute, relative) in zip(groups, self._allowed, strict=True):
                want = planned * factor
                if not abs(group["lr"] - want) <= absolute + relative * want:  # a NaN is not, either
                    break
            else:
                if len(self._observed) < OBSERVED:
                    self._observed[since] = [float(group["lr"]) for group in groups]
                return
        self._look(planned, [float(group["lr"]) for group in groups])

    def _look(self, planned: float, rates: list[float]) -> None:
        run = self._run
        if len(self._observed) < OBSERVED:
            self._observed[run.since] = rates
        if len(self._factors) != len(rates) or None in self._factors:
            self._settle(planned, rates)
            known = None not in self._factors
            self._allowed = [self._allow(index) for index in range(len(rates))] if known else []
        stray = self._strays(rates, planned)
        if stray and run.skipped:  # Many loops step the scheduler where the loss scaler skipped a step.
            stray = self._strays(rates, self._at(run.since + run.skipped))
        if stray:
            self._stop(stray, rates, planned)

    def _at(self, since: float) -> float:
        return self._run.plan.lr_at(float(self._run.start) + since)

    def _settle(self, planned: float, rates: list[float]) -> None:
        """The factors of the groups whose are not known yet."""
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
        """Whether a scheduler wrote down that a group was made with the plan's learning rate."""
        group = self._optimizer.param_groups[index]
        rate = group.get("initial_lr")
        return rate is not None and faults.close(float(rate), self._peak, self._peak, ulp(group["lr"]))

    def _allow(self, index: int) -> _Allowed:
        """What a group may have; one whose factor is not known, as if it were 1."""
        known = self._factors[index]
        factor = 1.0 if known is None else known
        rounding = faults.ULPS * ulp(self._optimizer.param_groups[index]["lr"]) * self._peak * factor
        return _Allowed(factor, rounding, 0.0 if factor == 1.0 else ROUNDED)

    def _strays(self, rates: list[float], planned: float) -> list[int]:
        """The groups whose learning rate is not the plan's."""
        return [i for i, rate in enumerate(rates) if not self._allow(i).holds(rate, planned)]

    def _stop(self, stray: list[int], rates: list[float], planned: float) -> None:
        run, groups = self._run, self._optimizer.param_groups
        index = self._plain if self._plain in stray else stray[0]
        alike = len(set(rates)) == 1  # then the groups differ in other things, such as their weight decay
        factor = self._factors[index]
        of = "" if alike else f" of parameter group {index}"
        text = f"learning rate {rates[index]:.6g}{of}, {planned * (1.0 if factor is None else factor):.6g} planned"
        if len(stray) < len(groups):
            why = Cause.GROUP_STRAYS.likely(f"group {index}")
        elif not alike and factor is None and not self._was_peak(index):
            why = Cause.ANOTHER_LR.likely("no parameter group has the plan's")
            text = f"learning rates {', '.join(f'{rate:.6g}' for rate in rates)}, {planned:.6g} planned"
        else:
            why = self._why(index, rates)
        run.stop(why, text, run.witnesses("learning rate"))

    def _why(self, index: int, rates: list[float]) -> Diagnosis:
        """Why a group's learning rate is not the plan's."""
        run, group, factor = self._run, self._optimizer.param_groups[index], self._factors[index] or 1.0
        initial = None if (made := group.get("initial_lr")) is None else float(made) / factor
        self._observed[run.since] = rates
        observed = {step: row[index] / factor for step, row in self._observed.items()}
        fault = faults.learning_rate(
            observed,
            self._at,
            peak=self._peak,
            pace=faults.Pace(run.plan.accumulation or 1, run.ranks, run.plan.steps_per_epoch),
            initial=initial,
            ulp=ulp(group["lr"]),
        )
        why = fault[1] if fault is not None else Cause.ANOTHER_LR.likely()
        made_so = initial is None or faults.close(initial, self._peak, self._peak, ulp(group["lr"]))
        resumed = run.since == 0 and why.cause is Cause.ANOTHER_LR and made_so
        if resumed and (steps := self._steps_with(observed[0])):
            where = f"it is the plan's at step {' or '.join(map(str, steps))}"
            why = either(why, Cause.RESUMED.likely(where))
        return why

    def _steps_with(self, rate: float) -> list[int]:
        """The steps at which the plan has this learning rate, if they are few."""
        values = self._run.plan.schedule.values(range(min(self._run.plan.total_steps or 0, SEARCHED)))
        lr = self._optimizer.param_groups[self._plain]["lr"]
        found = np.flatnonzero(np.abs(np.asarray(values) - rate) <= faults.ULPS * ulp(lr) * self._peak)
        return found.tolist() if len(found) <= 3 else []
