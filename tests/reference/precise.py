"""A form evaluated in 60 digits: what a schedule's value is, before anything is rounded."""

from functools import singledispatch

import mpmath
from mpmath import mp, mpf

from isobatch.schedules import form as F

mp.dps = 60


def value(form, step):
    """The exact value of a form at a step; the step may be an mpf."""
    x = clock(form.clock, mpf(step))
    total = track(form.tracks[0], x)
    for next_track in form.tracks[1:]:
        total = form.floor + (total - form.floor) * track(next_track, x)
    if form.low is not None:
        total = max(total, mpf(form.low))
    if form.high is not None:
        total = min(total, mpf(form.high))
    return total * mpf(form.scale)


def clock(knots, x):
    if not knots:
        return x
    knots = [(mpf(step), mpf(at)) for step, at in knots]
    if len(knots) == 1:
        return x - knots[0][0] + knots[0][1]
    index = max((i for i, (step, _) in enumerate(knots[:-1]) if step <= x), default=0)
    (x0, y0), (x1, y1) = knots[index], knots[index + 1]
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0)


def track(track, x):
    cycle, gain = track.cycle, mpf(1)
    if cycle is None:
        return segment_at(track, x, gain)
    assert not cycle.rounded, "torch's own rounding is no formula"
    start, length, index = mpf(0), mpf(cycle.period), 0
    if cycle.multiplier == 1:
        index = int(mpmath.floor(x / length))
        start = index * length
    else:
        while x >= start + length:
            start, length, index = start + length, length * mpf(cycle.multiplier), index + 1
    if cycle.limit is not None and index >= cycle.limit:
        return mpf(cycle.end)
    local = (x - start) / (length / mpf(cycle.period))
    if cycle.peak_decay != 1:
        return segment_at(track, local, mpf(cycle.peak_decay) ** index)
    about = mpf(cycle.about)
    return about + (segment_at(track, local, gain) - about) * mpf(cycle.amplitude_decay) ** index


def segment_at(track, x, gain):
    reached = [s for s in track.segments if (x > s.start if s.after else x >= s.start)]
    segment = reached[-1] if reached else track.segments[0]
    u = max((x - mpf(segment.origin)) / mpf(segment.length), mpf(0))
    if not segment.beyond:
        u = min(u, mpf(1))
    a, b = mpf(segment.a) * gain, mpf(segment.b)
    return b + (a - b) * share(segment.shape, u)


@singledispatch
def share(shape, u):
    raise NotImplementedError(type(shape))


@share.register
def _(shape: F.Flat, u):
    return mpf(1)


@share.register
def _(shape: F.Power, u):
    return (1 - u ** mpf(shape.stretch)) ** mpf(shape.exponent)


@share.register
def _(shape: F.Cosine, u):
    assert not shape.wrap, "transformers' own rounding is no formula"
    return ((1 + mpmath.cos(mp.pi * mpf(shape.waves) * u ** mpf(shape.stretch))) / 2) ** mpf(shape.exponent)


@share.register
def _(shape: F.Exponential, u):
    return mpf(shape.rate) ** (mpmath.floor(u) if shape.stairs else u)


@share.register
def _(shape: F.Reciprocal, u):
    return (1 + u) ** -mpf(shape.exponent)


@share.register
def _(shape: F.Rex, u):
    return (1 - u) / (1 - u / 2)


@share.register
def _(shape: F.Tanh, u):
    return (1 - mpmath.tanh(mpf(shape.lower) * (1 - u) + mpf(shape.upper) * u)) / 2


@share.register
def _(shape: F.Table, u):
    index = min(int(u), len(shape.values) - 1)
    before, after = mpf(shape.values[index]), mpf(shape.values[min(index + 1, len(shape.values) - 1)])
    return before + (after - before) * (u - index)


@share.register
def _(shape: F.Inner, u):
    return value(shape.form, u)
