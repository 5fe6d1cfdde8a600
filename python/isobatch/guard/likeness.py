"""Measures how a gradient is like a reference: how many times as large, and how much of it points elsewhere."""

import math
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from isobatch.diagnosis.tensors import chunks, products

Summed = Callable[[str, list[float]], list[float]]
"""Sums figures over ranks, where each has its own part of the gradient; by a tag."""


class Likeness(NamedTuple):
    """Compares a gradient with the reference: how many times as large it is along it, and was before it was clipped; and how much of it
    points elsewhere. `ratio` is NaN where the gradient was shortened otherwise than as a whole; `norm` and `planned` are those of both."""

    ratio: float
    unclipped: float
    residual: float
    norm: float
    planned: float

    def close(self, gate: float) -> bool:
        """Tells whether the size is the reference's, now or before the clipping."""
        return any(abs(ratio - 1) <= gate for ratio in self[:2])


def compare(
    found: list[Tensor], reference: list[Tensor], before: float, gate: float, summed: Summed
) -> Likeness:
    """Compares a gradient with a reference. Nothing here is as large as a parameter.

    Args:
        before: the gradient's norm before it was clipped; NaN where it is not known.
        gate: the residual from which on elements may have been shortened.
    """
    _, ff, fr, rr = summed("sums", products(found, reference))
    residual = math.sqrt(max(0.0, 1 - fr * fr / (ff * rr))) if ff and rr else math.nan
    ratio = fr / rr if rr else math.nan
    unclipped = 1.0 if math.isnan(before) or not ff else before / math.sqrt(ff)
    like = Likeness(ratio, ratio * unclipped, residual, math.sqrt(ff), math.sqrt(rr))
    if not residual > gate or math.isnan(before):
        return like
    # Clipped element by element, or row by row? Then none is longer than it was, and the norm from before says how large.
    ratio = before / math.sqrt(rr)
    off = 0.0
    for pair in zip(found, reference, strict=True):
        for f, r in zip(*map(chunks, pair), strict=True):
            f, whole = f.double(), ratio * r.double()
            off += float((f - f.clamp(whole.clamp(max=0), whole.clamp(min=0))).square().sum())
    shortened = like._replace(
        ratio=math.nan, unclipped=ratio, residual=math.sqrt(summed("beyond", [off])[0] / ff)
    )
    return shortened if shortened.residual <= gate else like


def beside_weights(
    found: list[Tensor], reference: list[Tensor], weights: list[Tensor], like: Likeness, summed: Summed
) -> Likeness:
    """Compares what of a gradient and of the reference is at a right angle to each weight: a penalty on the weights' size is not in it."""
    figures = list[float]()
    for f, r, w in zip(found, reference, weights, strict=True):
        _, ff, fr, rr = products([f], [r])
        figures += [ff, fr, rr, *products([f], [w])[2:], products([r], [w])[2]]
    figures = summed("weights", figures)
    a = b = c = 0.0
    for at in range(0, len(figures), 6):
        ff, fr, rr, fw, ww, rw = figures[at : at + 6]
        along = 1 / ww if ww else 0.0
        a, b, c = a + ff - fw * fw * along, b + fr - fw * rw * along, c + rr - rw * rw * along
    if min(a, c) <= 0:
        return like._replace(residual=math.nan)
    scale = b / c
    times = like.unclipped / like.ratio
    return like._replace(
        ratio=scale, unclipped=scale * times, residual=math.sqrt(max(0.0, 1 - b * b / (a * c)))
    )
