"""The course of a run: its optimizer steps, its samples, its place in the data, and its schedule's clock.

A run is a row of legs: what was planned at its start, and what each move made of it. All of it is exact:
counts are integers, and the clock, which says where in the first plan's schedule a step stands, is a
fraction.

Why a clock: after a move the learning rate must go on where it was, end where the run ends, and be what the
first plan's schedule has at the same progress, whatever kind of schedule that is. So the schedule is never
cut and made anew. It stays that of the first plan, and is read through a map from the steps of the run to the
steps of the first plan, which follows the samples. A fraction, since a step of another batch is rarely a
whole number of the first plan's, and since sums of floats over 100 moves would end a run one step early or
late.

Why two ways of progress: where the duration is in epochs, an epoch of the data is an epoch of the clock,
though the layouts before and after a move may pad or drop another number of samples at its end. The clock
then follows the samples up to the last step of an epoch, and that step, which may be smaller, takes the rest.
Everywhere else it counts samples alone; under a batch ramp in full batches of them, as Megatron counts; under
AdaScale by what a sample is worth.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor, isnan, nan
from typing import Any, TypeAlias, cast

import msgspec

from isobatch.errors import InputError
from isobatch.planning.leg import CourseLeg, Frame, Position, Stage, rest_of_epoch
from isobatch.planning.record import Handover, PlanRecord
from isobatch.planning.settings import HOLDS_LOSS
from isobatch.schedules.kinds import constant as level
from isobatch.schedules.schedule import Schedule, join, product
from isobatch.schedules.text import Length, resolve

Legs: TypeAlias = Sequence[tuple[int, PlanRecord]]
"""The parts of a run, in order: the optimizer step at which each starts, and its plan."""


class Course(Frame):
    """The whole run of a plan: its own leg, and those before its moves."""

    def __init__(self, plan_legs: Legs) -> None:
        super().__init__(plan_legs[0][1], holds_loss=any(plan.rule in HOLDS_LOSS for _, plan in plan_legs))
        self.floors = self.recipe.convention == "megatron"
        start = Position(0, 0, *((0, 0) if self.epoch_steps else (None, None)))
        self.legs = [CourseLeg(self.first, start, Fraction(0), self)]
        for step, plan in plan_legs[1:]:
            before = self.legs[-1].plan
            # Started again as it was: the leg goes on, with the pace that it has.
            if (plan.layout, plan.lr) == (before.layout, before.lr):
                continue
            position = self.position(step)
            self.legs.append(CourseLeg(plan, position, self.legs[-1].clock_at(Fraction(step)), self))

    def _leg(self, step: Fraction) -> CourseLeg:
        return next(leg for leg in reversed(self.legs) if leg.step <= step)

    def position(self, step: int) -> Position:
        """Finds the run's place after `step` optimizer steps."""
        leg, exact = self._leg(Fraction(step)), Fraction(step)
        place = (None, None) if leg.epoch is None else leg.epoch_and_offset(exact)
        epoch, offset = (None if part is None else int(part) for part in place)
        return Position(step, int(leg.samples_at(exact)), epoch, offset)

    def samples_at(self, step: Fraction) -> Fraction:
        """Counts the samples consumed after `step` steps, maybe fractional."""
        return self._leg(step).samples_at(step)

    def step_at(self, samples: Fraction) -> Fraction:
        """Finds the step, maybe fractional, after this many samples."""
        return next(leg for leg in reversed(self.legs) if leg.samples <= samples).step_at(samples)

    def batch_at(self, samples: int) -> int:
        """Finds the effective batch of the step behind this many samples, ramp included."""
        stages = self.legs[-1].stages
        return next((stage.batch for stage in reversed(stages) if stage.samples <= samples), stages[0].batch)

    @property
    def stages(self) -> list[Stage]:
        """The parts of the run with one batch each, moves included."""
        ends = [*(leg.step for leg in self.legs[1:]), None]
        return [
            stage
            for leg, end in zip(self.legs, ends, strict=True)
            for stage in leg.stages
            if end is None or stage.step < end
        ]

    # ---- lengths ----

    @property
    def warm(self) -> Fraction:
        """The clock at the end of the warmup."""
        steps = Fraction(cast(int, self.first.warmup_steps))
        if not self.ramped:
            return steps
        warmup = cast(Length, Length.read(self.recipe.warmup or "0sp"))
        share = warmup.unit == "%"
        return (self.legs[0].samples_at(steps) if share else warmup.samples(self.units)) / self.batch

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run, moves included."""
        if len(self.legs) == 1 or self.first.total_steps is None:
            return self.first.total_steps
        leg = self.legs[-1]
        if self.by_epochs and cast(int, leg.epoch) * self.epoch_steps >= self.end:
            return leg.step  # The move dropped what was left of the last epoch.
        step = leg.step_at_clock(self.end)
        return max(floor(step) if self.floors else ceil(step), leg.step)

    @property
    def warmup_steps(self) -> int | None:
        """The step at the end of the warmup, moves included."""
        if len(self.legs) == 1 or self.first.warmup_steps is None:
            return self.first.warmup_steps
        leg = next((leg for leg in reversed(self.legs) if leg.clock <= self.warm), self.legs[0])
        return ceil(leg.step_at_clock(self.warm))

    # ---- the schedule ----

    @property
    def schedule(self) -> Schedule:
        """The first plan's schedule, read through the clock, times the rule's factor in each leg."""
        first, recipe = self.first, self.recipe
        if first.total_steps is None or first.warmup_steps is None or first.lr is None:
            raise InputError("a schedule needs the run's length", field="duration")
        warmup: float = first.warmup_steps
        total: float = first.total_steps
        # Megatron has no epochs: there `ep` is the dataset's samples.
        epoch: float | None = first.steps_per_epoch or self.dataset / self.batch or None
        if self.ramped:  # Counted in samples, here in full batches of them, as Megatron counts.
            warmup, total, epoch = float(self.warm), float(self.end), self.dataset / self.batch or None
        schedule = resolve(
            recipe.schedule,
            peak=first.lr,
            min_lr=first.min_lr or 0.0,
            warmup_start=first.warmup_lr or 0.0,
            warmup_steps=warmup,
            total_steps=total,
            units=msgspec.structs.replace(self.units, steps_per_epoch=epoch),
        )
        knots = self._knots() if self.ramped or len(self.legs) > 1 else []
        if knots:
            schedule = schedule.with_clock(knots)
        factors: list[tuple[int, float]] = []
        for stage in self.stages:
            factor = cast(float, self._leg(Fraction(stage.step)).plan.lr) / first.lr * stage.lr_scale
            if not factors or factor != factors[-1][1]:
                factors.append((stage.step, factor))
        if factors == [(0, 1.0)]:
            return schedule
        return product(
            schedule, join([level(factor) for _, factor in factors], [at for at, _ in factors[1:]])
        )

    def _knots(self) -> list[tuple[float, float]]:
        """The clock's knots, those on a straight line left out; none where it shows the steps themselves."""
        ends = [Fraction(leg.step) for leg in self.legs[1:]]
        knots: list[tuple[Fraction, Fraction]] = []
        for point in (
            (step, leg.clock_at(step))
            for leg, end in zip(self.legs, [*ends, None], strict=True)
            for step in leg.bends(end)
        ):
            while len(knots) > 1 and _is_straight(knots[-2], knots[-1], point):
                knots.pop()
            knots.append(point)
        if len(knots) == 2 and knots[1][0] == knots[1][1]:
            return []
        return [(float(step), float(clock)) for step, clock in knots]


def _is_straight(
    a: tuple[Fraction, Fraction], b: tuple[Fraction, Fraction], c: tuple[Fraction, Fraction]
) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) == (c[1] - b[1]) * (b[0] - a[0])


# ---- moves ----


def handover_at(course: Course, after: PlanRecord, step: int) -> Handover:
    """Computes the meaning of a move to the plan `after`, after `step` optimizer steps."""
    running, place = course.legs[-1].plan, course.position(step)
    repeated = skipped = 0
    samples, epoch, offset = place.samples, place.epoch, place.offset
    dataset = running.recipe.dataset_size
    if dataset is not None and epoch is not None and offset:
        stayed, moved = (rest_of_epoch(plan, dataset, offset) for plan in (running, after))
        repeated, skipped = max(0, moved.padded - stayed.padded), max(0, moved.dropped - stayed.dropped)
        if not moved.steps:
            epoch, offset = epoch + 1, 0
            samples = epoch * dataset if course.by_epochs else samples
    factor = (after.lr or 0.0) / (running.lr or 1.0)
    return Handover(step, samples, epoch, offset, repeated, skipped, factor)


def _warmup_lr(course: Course) -> float:
    # The warmup started under the first plan; here, as everywhere, it moves with the peak.
    first, last = course.legs[0].plan, course.legs[-1].plan
    return (first.warmup_lr or 0.0) * ((last.lr or 0.0) / (first.lr or 1.0))


def _hours(leg: PlanRecord) -> float:
    return nan if leg.step_seconds is None else leg.step_seconds / 3600


OF_COURSE: dict[str, Callable[[Course], float | None]] = {
    "warmup_steps": lambda course: course.warmup_steps,
    "total_steps": lambda course: course.total_steps,
    "warmup_lr": _warmup_lr,
}
"""Columns that are worked out of all legs: those that the core's list of columns marks `course`."""
EACH_STEP: dict[str, Callable[[PlanRecord], float]] = {
    "hours": _hours,
    "hours_error": lambda leg: (leg.step_error or nan) / 3600,
    "gpu_hours": lambda leg: _hours(leg) * leg.world_size,
    "cost": lambda leg: (
        _hours(leg)
        * leg.world_size
        * (nan if leg.cluster.price_per_gpu_hour is None else leg.cluster.price_per_gpu_hour)
    ),
}
"""The share of one step of a leg in a column that the core's list marks `sum`; NaN where unknown."""


def whole_run(plan_legs: Legs) -> dict[str, Any]:
    """Computes the last leg's fields about the whole run, moves included."""
    course = Course(plan_legs)
    ends = [*(step for step, _ in plan_legs[1:]), course.total_steps]
    parts = [
        (leg, None if end is None else end - start) for (start, leg), end in zip(plan_legs, ends, strict=True)
    ]

    def total(of_step: Callable[[PlanRecord], float]) -> float | None:
        added = sum(nan if steps is None else steps * of_step(leg) for leg, steps in parts)
        return None if isnan(added) else added

    return {name: work_out(course) for name, work_out in OF_COURSE.items()} | {
        name: total(of_step) for name, of_step in EACH_STEP.items()
    }
