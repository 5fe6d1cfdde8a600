"""Oddities of a schedule: each ran for days before anybody noticed."""

from enum import StrEnum
from typing import Self

from isobatch._core import Evaluator
from isobatch.errors import InputError
from isobatch.schedules.extent import end as end_of
from isobatch.schedules.extent import knots, step_of
from isobatch.schedules.form import Flat, Form


class ScheduleReason(StrEnum):
    """A finding of `Schedule.check`. Each member has a `text`, a `source` and a `severity`."""

    text: str
    source: str
    severity: str

    def __new__(cls, value: str, text: str, source: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.text, member.source, member.severity = text, source, "caution"
        return member

    FIRST_UPDATE_AT_ZERO = (
        "first_update_at_zero",
        "the learning rate of the first update is 0, so it does nothing",
        "https://github.com/meta-pytorch/torchtune/issues/2010",
    )
    WARMUP_LONGER_THAN_RUN = (
        "warmup_longer_than_run",
        "the run ends before the learning rate reaches its peak",
        "https://github.com/open-mmlab/mmdetection/issues/3800",
    )
    REBOUND_PAST_END = (
        "rebound_past_end",
        "the learning rate rises again at or right after the end of the run",
        "https://github.com/pytorch/pytorch/issues/152081",
    )
    UNDEFINED_WITHIN_RUN = (
        "undefined_within_run",
        "the schedule is shorter than the run, and evaluating it past its end is an error",
        "https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.OneCycleLR.html",
    )
    OFF_BY_ONE_END = (
        "off_by_one_end",
        "the decay ends one step away from the last update: T − 1 was used for T, or T for T − 1",
        "https://github.com/pytorch/pytorch/issues/152081",
    )
    ENDS_ABOVE_MINIMUM = (
        "ends_above_minimum",
        "the run ends before the decay does, so the learning rate never reaches its minimum",
        "https://github.com/open-mmlab/mmdetection/issues/3800",
    )
    DECAY_SHORTER_THAN_STEP = (
        "decay_shorter_than_step",
        "part of the schedule is shorter than one step, so no update may ever use it",
        "https://github.com/pytorch/pytorch/issues/152081",
    )


def check(form: Form, curve: Evaluator, total_steps: int | None) -> tuple[ScheduleReason, ...]:
    """Lists the oddities of a form, evaluated by `curve`, over total_steps, its own run, or until its end."""
    end = end_of(form)
    own = form.run if form.run is not None else end
    total = total_steps if total_steps is not None else round(own) if own is not None else 0
    if total < 1:
        raise InputError(
            "must be at least 1 where the schedule has no end of its own; pass the length of the run",
            field="total_steps",
        )
    last = total - 1 if form.last is None else min(total - 1, int(form.last))
    values = curve.values([0, last])
    peak, final = max(curve.at(x) for x in knots(form)), float(values[1])
    oddities = []
    if values[0] == 0 and peak > 0:
        oddities.append(ScheduleReason.FIRST_UPDATE_AT_ZERO)
    if form.last is not None and form.last < total - 1:
        oddities.append(ScheduleReason.UNDEFINED_WITHIN_RUN)
    climbing = _rise_end(form) > total
    if climbing:
        oddities.append(ScheduleReason.WARMUP_LONGER_THAN_RUN)
    elif _rebounds(form, curve, peak, last):
        oddities.append(ScheduleReason.REBOUND_PAST_END)
    if end is not None and not climbing:
        # A decay of T steps is at its end at x = T, one past the last update; one of T − 1 is there with it.
        if end - total == 1 or total - end == 2:
            oddities.append(ScheduleReason.OFF_BY_ONE_END)
        elif end > total + 1 and final > curve.at(end):
            oddities.append(ScheduleReason.ENDS_ABOVE_MINIMUM)
    segments = [segment for track in form.tracks for segment in track.segments]
    if any(segment.length < 1 for segment in segments if not isinstance(segment.shape, Flat)):
        oddities.append(ScheduleReason.DECAY_SHORTER_THAN_STEP)
    return tuple(oddities)


def _rise_end(form: Form) -> float:
    """Returns the end of the rise at the start of the schedule; 0 without one."""
    first = form.tracks[0].segments[0]
    if isinstance(first.shape, Flat) or first.b <= first.a:
        return 0.0
    return step_of(form.clock or ((0.0, 0.0),), first.origin + first.length)


def _rebounds(form: Form, curve: Evaluator, peak: float, last: int) -> bool:
    """Returns whether the value rises right past the last update of a falling schedule."""
    beyond = [last + 1, last + 2, last + max(2, last // 10)]
    past = [x for x in beyond if form.last is None or x <= form.last]
    reached = curve.values([max(last - 1, 0), last, *past])
    falling = reached[0] > reached[1] or reached[1] == 0 < peak
    return bool(falling and len(reached) > 2 and (reached[2:] > reached[1] * (1 + 1e-9) + 1e-12 * peak).any())
