"""From a recipe's schedule to the schedule of a plan."""

from __future__ import annotations

import msgspec

from isobatch.schedules.arguments import factor, rate
from isobatch.schedules.kind import Run, builder
from isobatch.schedules.lengths import Units
from isobatch.schedules.schedule import Schedule, lone
from isobatch.schedules.segments import line
from isobatch.schedules.text import check_spec


def resolve(
    spec: str | Schedule,
    *,
    peak: float,
    min_lr: float = 0.0,
    warmup_start: float = 0.0,
    warmup_steps: float = 0,
    total_steps: float,
    units: Units,
) -> Schedule:
    """The schedule of a plan, in its optimizer steps.

    A straight line from warmup_start to peak over warmup_steps, then the kind that `spec` names, from peak to
    min_lr, ending at total_steps. Lengths in the text are converted by samples and rounded half up; `%` of the run
    is floored. Milestones, stairs and `until` are counted from the start of the run.

    A `Schedule` in place of a text is the whole schedule of the tuned run, in tuned steps: its highest value
    becomes peak, and its clock is stretched so that it has the same value after as many samples.

    Args:
        spec: a text (see `check_spec`) or a Schedule.
        peak: the highest learning rate.
        min_lr: the learning rate at the end.
        warmup_start: the learning rate at step 0 of the warmup.
        warmup_steps: optimizer steps of warmup, fractional where a batch ramp counts full batches; as long as the
            run or longer, the run is all warmup.
        total_steps: optimizer steps of the run.
        units: what st, sp, ep and tok are worth.

    Raises:
        InputError: when the text cannot be read, a unit cannot be converted, or a number is out of range.

    >>> from isobatch.schedules import Units, resolve
    >>> units = Units(tuned_batch=256, batch=512, steps_per_epoch=100)
    >>> s = resolve("multistep(3ep, 6ep)", peak=0.4, warmup_steps=100, total_steps=900, units=units)
    >>> s.values([0, 100, 299, 300, 600]).round(4).tolist()
    [0.0, 0.4, 0.4, 0.04, 0.004]
    >>> s = resolve("cosine(until=90%)", peak=0.4, min_lr=0.04, total_steps=1000, units=units)
    >>> s.values([0, 450, 900, 1000]).round(4).tolist()
    [0.4, 0.22, 0.04, 0.04]
    """
    top, bottom, first = rate("peak", peak), rate("min_lr", min_lr), rate("warmup_start", warmup_start)
    total, warmup = total_steps, warmup_steps
    factor("total_steps", total)
    rate("warmup_steps", warmup)
    if isinstance(spec, Schedule):
        schedule = spec.scaled(top / spec.peak) if spec.peak else spec
        ratio = units.batch / units.tuned_batch
        schedule = schedule if ratio == 1 else schedule.with_clock([(0, 0), (1, ratio)])
        return _of_run(schedule, total)
    read = check_spec(spec)
    build = builder(read.kind)
    rise = [line(0.0, warmup, first, top)] if warmup else []
    if warmup >= total:
        return lone(*rise, run=total)
    return lone(*rise, *build(Run(read, top, bottom, warmup, total, units)), run=total)


def _of_run(schedule: Schedule, total: float) -> Schedule:
    return Schedule(msgspec.structs.replace(schedule.form, run=total))
