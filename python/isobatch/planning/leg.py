"""A part of a run under one plan: its steps, its samples, and the first plan's schedule's clock."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import NamedTuple, cast

from isobatch.planning.record import PlanRecord
from isobatch.planning.settings import HOLDS_LOSS
from isobatch.schedules.text import Length, Units

MAX_EPOCHS_WALKED = 10_000
"""Epochs after a move whose last steps are looked at one by one."""


class Position(NamedTuple):
    """A place in a run, after `step` optimizer steps.

    `samples` is its progress, counted as its duration is: samples of the dataset where that is in `ep`, else
    the samples of all steps. A sampler resumes in epoch `epoch` behind its first `offset` samples; None where
    the recipe has no dataset_size, or a convention without epochs.
    """

    step: int
    samples: int
    epoch: int | None
    offset: int | None


class Rest(NamedTuple):
    """The rest of an epoch: optimizer steps, samples served, of these repeats, and samples unseen."""

    steps: int
    served: int
    padded: int
    dropped: int


def rest_of_epoch(plan: PlanRecord, dataset: int, offset: int) -> Rest:
    """Computes the plan's rest of an epoch of `dataset` samples behind its first `offset`."""
    micro, accumulation, replicas, batch, irregular = plan.layout
    return Rest(*plan.recipe.core.epoch(dataset, offset, batch, replicas, micro, accumulation, irregular))


class Stage(NamedTuple):
    """A part of a run with one batch, at `lr_scale` times the full batch's learning rate (by `ramp_rule`)."""

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


class Frame:
    """The common ground of all legs of a run: its first plan, and how the run counts its progress."""

    def __init__(self, first: PlanRecord, *, holds_loss: bool) -> None:
        recipe = first.recipe
        self.first, self.recipe = first, recipe
        self.batch = first.layout.effective_batch
        self.dataset = recipe.dataset_size or 0
        self.epoch_steps = first.steps_per_epoch or 0
        self.ramped = recipe.ramp is not None
        self.holds_loss = holds_loss
        self.units = Units(
            tuned_batch=recipe.effective_batch,
            batch=self.batch,
            dataset_size=recipe.dataset_size,
            seq_len=recipe.seq_len,
        )
        self.duration = None if recipe.duration is None else Length.read(recipe.duration)
        in_epochs = self.duration is not None and self.duration.unit == "ep" and bool(self.epoch_steps)
        self.by_epochs = in_epochs and not self.ramped and not self.holds_loss

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

    @property
    def end(self) -> Fraction:
        """The clock at the end of the run."""
        duration = cast(Length, self.duration)
        if self.by_epochs:
            return duration.value * self.epoch_steps
        if self.holds_loss:
            return Fraction(cast(int, self.first.total_steps))
        return duration.samples(self.units) / self.batch


class CourseLeg:
    """A part of the run under one plan, from an optimizer step on."""

    def __init__(self, plan: PlanRecord, at: Position, clock: Fraction, frame: Frame) -> None:
        self.batch = plan.layout.effective_batch
        self.plan, self.step, self.clock, self.frame = plan, at.step, clock, frame
        self.samples, self.epoch, self.offset = at.samples, at.epoch, at.offset or 0
        self.stages = list(_stages(plan, at))
        self.epoch_steps = plan.steps_per_epoch or 0
        self.rest = self.epoch_steps
        if self.epoch is not None and self.offset:
            rest = rest_of_epoch(plan, frame.dataset, self.offset)
            self.rest = rest.steps
            if not rest.steps:  # All of it is dropped here.
                self.epoch, self.offset, self.rest = self.epoch + 1, 0, self.epoch_steps
                if frame.by_epochs:
                    self.samples = self.epoch * frame.dataset

    # ---- progress, in samples ----

    def samples_at(self, step: Fraction) -> Fraction:
        if self.frame.by_epochs:
            epoch, offset = self.epoch_and_offset(step)
            return epoch * self.frame.dataset + min(offset, Fraction(self.frame.dataset))
        stage = next(stage for stage in reversed(self.stages) if stage.step <= step)
        return stage.samples + (step - stage.step) * stage.batch

    def step_at(self, samples: Fraction) -> Fraction:
        if self.frame.by_epochs:
            epoch, offset = divmod(samples, self.frame.dataset)
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
            samples = epoch * self.frame.dataset + self.offset + self.samples_at(step) - self.samples
            return divmod(samples, self.frame.dataset)
        if passed < self.rest:
            return epoch, self.offset + passed * self.batch
        epochs, steps = divmod(passed - self.rest, self.epoch_steps)
        return epoch + 1 + epochs, steps * self.batch

    # ---- the schedule's clock, in steps of the first plan ----

    @property
    def _epoch_end(self) -> int:
        return (cast(int, self.epoch) + 1) * self.frame.epoch_steps

    @property
    def _rate(self) -> Fraction:
        """The worth of a sample in steps of the first plan: by AdaScale's gain less in a larger batch."""
        frame = self.frame
        return frame.progress_per_batch(self.plan) / frame.progress_per_batch(frame.first) / frame.batch

    def clock_at(self, step: Fraction) -> Fraction:
        """Reads the clock at a step: its place in the first plan's schedule."""
        if not self.frame.by_epochs:
            return self.clock + (self.samples_at(step) - self.samples) * self._rate
        passed = step - self.step
        if passed <= self.rest:
            return _read(self._first_epoch, passed, 0)
        epochs, steps = divmod(passed - self.rest, self.epoch_steps)
        return self._epoch_end + epochs * self.frame.epoch_steps + _read(self._whole_epoch, steps, 0)

    def step_at_clock(self, clock: Fraction) -> Fraction:
        """Finds the step at a time of the clock."""
        if not self.frame.by_epochs:
            return self.step_at(self.samples + (clock - self.clock) / self._rate)
        if clock <= self._epoch_end:
            return self.step + _read(self._first_epoch, clock, 1)
        epochs, clock_steps = divmod(clock - self._epoch_end, self.frame.epoch_steps)
        return self.step + self.rest + epochs * self.epoch_steps + _read(self._whole_epoch, clock_steps, 1)

    @cached_property
    def _first_epoch(self) -> list[tuple[Fraction, Fraction]]:
        return self._points(self.clock, self._epoch_end, self.rest)

    @cached_property
    def _whole_epoch(self) -> list[tuple[Fraction, Fraction]]:
        return self._points(Fraction(0), self.frame.epoch_steps, self.epoch_steps)

    def _points(self, clock: Fraction, end: int, steps: int) -> list[tuple[Fraction, Fraction]]:
        """Returns (steps, clock) through an epoch; the last step, maybe a smaller one, ends it."""
        turn = clock + (steps - 1) * self.batch * self._rate
        points = [(Fraction(0), clock), (Fraction(steps), Fraction(end))]
        # Not so where the first plan dropped what is served here.
        if steps > 1 and turn < end and (turn - clock) * steps != (end - clock) * (steps - 1):
            points.insert(1, (Fraction(steps - 1), turn))
        return points

    def bends(self, until: Fraction | None) -> Iterator[Fraction]:
        """Yields the steps before `until` where the pace may change; None: all, and one past the last."""
        for step in self._bends(self.step_at_clock(self.frame.end) if until is None else until):
            if until is not None and step >= until:
                return
            yield step
            if until is None and self.clock_at(step) >= self.frame.end:
                break
        if until is None:
            yield step + self.frame.batch

    def _bends(self, until: Fraction) -> Iterator[Fraction]:
        """Every step up to `until` where the pace may change, and at least one from there on.

        By epochs that is the last step of each, which may hold fewer samples. All epochs after the first are
        alike: where the last step is a full one they lie on one line. So do their ends in any case, and of
        very many epochs only those are taken: within an epoch the clock is then off by less than a step, in a
        run of at least ten thousand.
        """
        yield Fraction(self.step)
        for stage in self.stages[1:]:
            yield Fraction(stage.step)
        if not self.frame.by_epochs:
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


def _read(points: Sequence[tuple[Fraction, Fraction]], value: Fraction, axis: int) -> Fraction:
    """Reads the line through `points` at `value` on an axis: the other coordinate."""
    index = next((i for i, point in enumerate(points[1:-1]) if value <= point[axis]), len(points) - 2)
    low, high = points[index], points[index + 1]
    slope = (high[1 - axis] - low[1 - axis]) / (high[axis] - low[axis])
    return low[1 - axis] + (value - low[axis]) * slope
