"""The course of a run: its optimizer steps, its samples, its place in the data, and its schedule's clock.

A run is a row of legs: what was planned at its start, and what each move made of it. All of it is exact: counts are
integers, and the clock, which says where in the first plan's schedule a step stands, is a fraction.

Why a clock: after a move the learning rate must go on where it was, end where the run ends, and be what the first plan's schedule
has at the same progress, whatever kind of schedule that is. So the schedule is never cut and made anew. It stays that of the
first plan, and is read through a map from the steps of the run to the steps of the first plan, which follows the samples. A
fraction, since a step of another batch is rarely a whole number of the first plan's, and since sums of floats over 100
moves would end a run one step early or late.

Why two ways of progress: where the duration is in epochs, an epoch of the data is an epoch of the clock, though the layouts before
and after a move may pad or drop another number of samples at its end. The clock then follows the samples up to the last step of an
epoch, and that step, which may be smaller, takes the rest. Everywhere else it counts samples alone; under a batch ramp in full
batches of them, as Megatron counts; under AdaScale by what a sample is worth.
"""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, isnan, nan
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec

from isobatch.errors import InputError
from isobatch.planning.record import Handover, PlanRecord
from isobatch.planning.settings import HOLDS_LOSS
from isobatch.schedules.kinds import constant as level
from isobatch.schedules.schedule import Schedule, join, product
from isobatch.schedules.text import Length, Units, resolve

Legs: TypeAlias = Sequence[tuple[int, PlanRecord]]
"""The parts of a run, in order: the optimizer step at which each starts, and its plan."""

MAX_EPOCHS_WALKED = 10_000
"""Epochs after a move whose last steps are looked at one by one."""


class Position(NamedTuple):
    """A place in a run, after `step` optimizer steps.

    `samples` is its progress, counted as its duration is: samples of the dataset where that is in `ep`, else the
    samples of all steps. A sampler resumes in epoch `epoch` behind its first `offset` samples; None where the recipe
    has no dataset_size, or a convention without epochs.
    """

    step: int
    samples: int
    epoch: int | None
    offset: int | None


class Rest(NamedTuple):
    """The rest of an epoch: optimizer steps, samples served, of these repeats, and samples that nobody sees."""

    steps: int
    served: int
    padded: int
    dropped: int


def rest_of_epoch(plan: PlanRecord, dataset: int, offset: int) -> Rest:
    """Computes the plan's rest of an epoch of `dataset` samples behind its first `offset`."""
    micro, accumulation, replicas, batch, irregular = plan.layout
    return Rest(*plan.recipe.core.epoch(dataset, offset, batch, replicas, micro, accumulation, irregular))


class Stage(NamedTuple):
    """A part of a run with one batch: from optimizer step `step` and `samples` on, steps of `batch` samples, at a learning rate
    that is `lr_scale` times that of the full batch (by `ramp_rule`)."""

    step: int
    samples: int
    batch: int
    lr_scale: float


def _stages(plan: PlanRecord, at: Position) -> Iterator[Stage]:
    """Yields the stages of the plan's ramp still ahead of a run at `at`; one where there is no ramp."""
    full = plan.layout.effective_batch
    step, samples = at.step, at.samples
    ramp = plan.recipe.core.stages(full, plan.consumed, plan.settings.ramp_rule)
    for batch, until, scale in ramp or [(full, None, 1.0)]:
        if until is None or samples < until:
            yield Stage(step, samples, batch, scale)
        if until is not None and samples < until:
            steps = ceil(Fraction(until - samples, batch))
            step, samples = step + steps, samples + steps * batch


class _Leg:
    """A part of the run under one plan, from an optimizer step on."""

    def __init__(self, plan: PlanRecord, at: Position, clock: Fraction, course: "Course") -> None:
        self.batch = plan.layout.effective_batch
        self.plan, self.step, self.clock, self.course = plan, at.step, clock, course
        self.samples, self.epoch, self.offset = at.samples, at.epoch, at.offset or 0
        self.stages = list(_stages(plan, at))
        self.epoch_steps = plan.steps_per_epoch or 0
        self.rest = self.epoch_steps
        if self.epoch is not None and self.offset:
            left = rest_of_epoch(plan, course.dataset, self.offset)
            self.rest = left.steps
            if not left.steps:  # All of it is dropped here.
                self.epoch, self.offset, self.rest = self.epoch + 1, 0, self.epoch_steps
                if course.by_epochs:
                    self.samples = self.epoch * course.dataset

    # ---- progress, in samples ----

    def samples_at(self, step: Fraction) -> Fraction:
        if self.course.by_epochs:
            epoch, offset = self.epoch_and_offset(step)
            return epoch * self.course.dataset + min(offset, Fraction(self.course.dataset))
        stage = next(stage for stage in reversed(self.stages) if stage.step <= step)
        return stage.samples + (step - stage.step) * stage.batch

    def step_at(self, samples: Fraction) -> Fraction:
        if self.course.by_epochs:
            epoch, offset = divmod(samples, self.course.dataset)
            if epoch == self.epoch:
                return self.step + min((offset - self.offset) / self.batch, Fraction(self.rest))
            passed = self.rest + (epoch - cast(int, self.epoch) - 1) * self.epoch_steps
            return self.step + passed + min(offset / self.batch, Fraction(self.epoch_steps))
        stage = next(stage for stage in reversed(self.stages) if stage.samples <= samples)
        return stage.step + (samples - stage.samples) / stage.batch

    def epoch_and_offset(self, step: Fraction) -> tuple[int, Fraction]:
        """(epoch, offset) after `step` steps; only where there are epochs."""
        epoch, passed = cast(int, self.epoch), step - self.step
        if len(self.stages) > 1:
            samples = epoch * self.course.dataset + self.offset + self.samples_at(step) - self.samples
            return divmod(samples, self.course.dataset)
        if passed < self.rest:
            return epoch, self.offset + passed * self.batch
        epochs, steps = divmod(passed - self.rest, self.epoch_steps)
        return epoch + 1 + epochs, steps * self.batch

    # ---- the schedule's clock, in steps of the first plan ----

    @property
    def _epoch_end(self) -> int:
        return (cast(int, self.epoch) + 1) * self.course.epoch_steps

    @property
    def _rate(self) -> Fraction:
        """The worth of a sample here, in steps of the first plan: by AdaScale's gain, a sample of a larger batch is worth less."""
        return (
            self.course.progress_per_batch(self.plan)
            / self.course.progress_per_batch(self.course.first)
            / self.course.batch
        )

    def clock_at(self, step: Fraction) -> Fraction:
        """Reads the clock at a step: its place in the first plan's schedule."""
        if not self.course.by_epochs:
            return self.clock + (self.samples_at(step) - self.samples) * self._rate
        passed = step - self.step
        if passed <= self.rest:
            return _read(self._first_epoch, passed, 0)
        epochs, left = divmod(passed - self.rest, self.epoch_steps)
        return self._epoch_end + epochs * self.course.epoch_steps + _read(self._whole_epoch, left, 0)

    def step_at_clock(self, clock: Fraction) -> Fraction:
        """Finds the step at which the clock shows `clock`."""
        if not self.course.by_epochs:
            return self.step_at(self.samples + (clock - self.clock) / self._rate)
        if clock <= self._epoch_end:
            return self.step + _read(self._first_epoch, clock, 1)
        epochs, left = divmod(clock - self._epoch_end, self.course.epoch_steps)
        return self.step + self.rest + epochs * self.epoch_steps + _read(self._whole_epoch, left, 1)

    @cached_property
    def _first_epoch(self) -> list[tuple[Fraction, Fraction]]:
        return self._points(self.clock, self._epoch_end, self.rest)

    @cached_property
    def _whole_epoch(self) -> list[tuple[Fraction, Fraction]]:
        return self._points(Fraction(0), self.course.epoch_steps, self.epoch_steps)

    def _points(self, clock: Fraction, end: int, steps: int) -> list[tuple[Fraction, Fraction]]:
        """(steps, clock) through an epoch: it follows the samples, and the last step, which may be smaller, ends the epoch."""
        turn = clock + (steps - 1) * self.batch * self._rate
        points = [(Fraction(0), clock), (Fraction(steps), Fraction(end))]
        # Not so where the first plan dropped what is served here.
        if steps > 1 and turn < end and (turn - clock) * steps != (end - clock) * (steps - 1):
            points.insert(1, (Fraction(steps - 1), turn))
        return points

    def bends(self, until: Fraction | None) -> Iterator[Fraction]:
        """The steps before `until` where the clock may change its pace; None: all of them, and one past the last."""
        for step in self._bends(self.step_at_clock(self.course.end) if until is None else until):
            if until is not None and step >= until:
                return
            yield step
            if until is None and self.clock_at(step) >= self.course.end:
                break
        if until is None:
            yield step + self.course.batch

    def _bends(self, until: Fraction) -> Iterator[Fraction]:
        """Every step up to `until` where the pace may change, and at least one from there on.

        By epochs that is the last step of each, which may hold fewer samples. All epochs after the first are alike: where the
        last step is a full one they lie on one line. So do their ends in any case, and of very many epochs only those
        are taken: within an epoch the clock is then off by less than a step, in a run of at least ten thousand.
        """
        yield Fraction(self.step)
        for stage in self.stages[1:]:
            yield Fraction(stage.step)
        if not self.course.by_epochs:
            return
        first, steps = self.step + self.rest, self.epoch_steps
        if self.rest > 1:
            yield Fraction(first - 1)
        yield Fraction(first)
        epochs = max(0, ceil((until - first) / steps))
        alike = len(self._whole_epoch) == 2
        if alike or epochs > MAX_EPOCHS_WALKED:
            yield Fraction(first + epochs * steps)
            return
        for end in range(first + steps, first + epochs * steps + 1, steps):
            if steps > 1:
                yield Fraction(end - 1)
            yield Fraction(end)


class Course:
    """The whole run of a plan: its own leg, and those before its moves."""

    def __init__(self, legs: Legs) -> None:
        first = legs[0][1]
        recipe = first.recipe
        self.first, self.recipe = first, recipe
        self.batch = first.layout.effective_batch
        self.dataset = recipe.dataset_size or 0
        self.epoch_steps = first.steps_per_epoch or 0
        self.floors = recipe.convention == "megatron"
        self.ramped = recipe.ramp is not None
        self.holds_loss = any(plan.rule in HOLDS_LOSS for _, plan in legs)
        self.units = Units(
            tuned_batch=recipe.effective_batch,
            batch=self.batch,
            dataset_size=recipe.dataset_size,
            seq_len=recipe.seq_len,
        )
        self.duration = None if recipe.duration is None else Length.read(recipe.duration)
        in_epochs = self.duration is not None and self.duration.unit == "ep" and bool(self.epoch_steps)
        self.by_epochs = in_epochs and not self.ramped and not self.holds_loss
        start = Position(0, 0, *((0, 0) if self.epoch_steps else (None, None)))
        self.legs = [_Leg(first, start, Fraction(0), self)]
        for step, plan in legs[1:]:
            before = self.legs[-1].plan
            # Started again as it was: the leg goes on, with the pace that it has.
            if (plan.layout, plan.lr) == (before.layout, before.lr):
                continue
            here = self.position(step)
            self.legs.append(_Leg(plan, here, self.legs[-1].clock_at(Fraction(step)), self))

    def progress_per_batch(self, plan: PlanRecord) -> Fraction:
        """Computes the worth of a tuned batch of samples, in steps of the tuned run."""
        if plan.rule not in HOLDS_LOSS:
            return Fraction(1)
        gain = Fraction(cast(float, plan.lr_scale))
        if plan.rule == "adamscale":  # its learning rate follows the root
            noise, signal = cast(float, self.recipe.sigma_sq), cast(float, self.recipe.mu_sq)
            k = cast(int, plan.effective_batch) / self.recipe.effective_batch
            gain = Fraction((noise + signal) / (noise / k + signal)) if k != 1 else gain
        return gain * self.recipe.effective_batch / cast(int, plan.effective_batch)

    def _leg(self, step: Fraction) -> _Leg:
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
    def end(self) -> Fraction:
        """The clock at the end of the run."""
        duration = cast(Length, self.duration)
        if self.by_epochs:
            return duration.value * self.epoch_steps
        if self.holds_loss:
            return Fraction(cast(int, self.first.total_steps))
        return duration.samples(self.units) / self.batch

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
        """The learning rate at every optimizer step of the run.

        It is the first plan's schedule, read through the clock, times what the rule makes of it in each leg.

        Raises:
            InputError: the recipe has no duration.
        """
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
            while len(knots) > 1 and _straight(knots[-2], knots[-1], point):
                knots.pop()
            knots.append(point)
        if len(knots) == 2 and knots[1][0] == knots[1][1]:
            return []
        return [(float(step), float(clock)) for step, clock in knots]


def _read(points: Sequence[tuple[Fraction, Fraction]], value: Fraction, axis: int) -> Fraction:
    """Reads the line through `points` at `value` on an axis: the other coordinate."""
    index = next((i for i, point in enumerate(points[1:-1]) if value <= point[axis]), len(points) - 2)
    low, high = points[index], points[index + 1]
    slope = (high[1 - axis] - low[1 - axis]) / (high[axis] - low[axis])
    return low[1 - axis] + (value - low[axis]) * slope


def _straight(
    a: tuple[Fraction, Fraction], b: tuple[Fraction, Fraction], c: tuple[Fraction, Fraction]
) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) == (c[1] - b[1]) * (b[0] - a[0])


# ---- moves ----


def handover_at(course: Course, after: PlanRecord, step: int) -> Handover:
    """Computes the meaning of a move to the plan `after`, after `step` optimizer steps."""
    running, here = course.legs[-1].plan, course.position(step)
    repeated = skipped = 0
    samples, epoch, offset = here.samples, here.epoch, here.offset
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
"""What one step of a leg adds to a column, NaN where that is not known: those that the core's list marks `sum`."""


def whole_run(legs: Legs) -> dict[str, Any]:
    """Computes the last leg's fields about the whole run, moves included."""
    course = Course(legs)
    ends = [*(step for step, _ in legs[1:]), course.total_steps]
    parts = [
        (leg, None if end is None else end - start) for (start, leg), end in zip(legs, ends, strict=True)
    ]

    def total(of_step: Callable[[PlanRecord], float]) -> float | None:
        added = sum(nan if steps is None else steps * of_step(leg) for leg, steps in parts)
        return None if isnan(added) else added

    return {name: work_out(course) for name, work_out in OF_COURSE.items()} | {
        name: total(of_step) for name, of_step in EACH_STEP.items()
    }
