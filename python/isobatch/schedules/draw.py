"""A schedule as a picture: inline SVG, or characters on a terminal."""

from __future__ import annotations

import html
import math

import numpy as np
from numpy.typing import NDArray

from isobatch._core import Evaluator
from isobatch.schedules import extent
from isobatch.schedules.form import Form

WIDTH, HEIGHT, MARGIN = 480, 160, 34
_BLOCKS = " ▁▂▃▄▅▆▇█"


def span(form: Form) -> float:
    """The steps worth showing: the run, else up to the schedule's end, else past what its last boundary starts."""
    end = extent.end(form) if form.run is None else form.run
    if end is None:
        end = 3 * max(*extent.breakpoints(form), 1.0)
    return float(end if form.last is None else min(end, form.last))


def _whole(steps: float) -> float:
    """The end to be written: of a batch ramp, counted in full batches, it is a fraction that says nothing."""
    return steps if steps < 100 else round(steps)


def svg(form: Form, curve: Evaluator, steps: float | None = None) -> str:
    """The whole curve as an SVG element with ticks, its peak and a title."""
    stop = span(form) if steps is None else steps
    x = np.unique(np.concatenate([np.linspace(0, stop, 240), _corners(form, stop)]))
    y = curve.values(x)
    top = float(y.max()) or 1.0
    across = MARGIN + x / (stop or 1) * (WIDTH - 2 * MARGIN)
    down = HEIGHT - MARGIN + -y / top * (HEIGHT - 2 * MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    base, right = HEIGHT - MARGIN, WIDTH - MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
        f"<title>{html.escape(extent.text(form))}</title>"
        f"{''.join(_tick(at, stop) for at in ticks(stop))}"
        f'<path d="M{MARGIN} {MARGIN}V{base}H{right}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.8"/>'
        f'<text x="{MARGIN}" y="{MARGIN - 8}" {_FONT}>learning rate {top:.12g}</text>'
        f'<text x="{right}" y="{MARGIN - 8}" text-anchor="end" {_FONT}>{_whole(stop):.12g} steps</text>'
        "</svg>"
    )


_FONT = 'font-family="sans-serif" font-size="11" fill="currentColor"'


def _tick(at: float, stop: float) -> str:
    """A tick of the lower axis with its step."""
    across, base = MARGIN + at / (stop or 1) * (WIDTH - 2 * MARGIN), HEIGHT - MARGIN
    return (
        f'<path d="M{across:.1f} {base}v4" stroke="currentColor" opacity=".4"/>'
        f'<text x="{across:.1f}" y="{base + 16}" text-anchor="middle" {_FONT}>{_brief(at)}</text>'
    )


def ticks(stop: float, most: int = 6) -> list[float]:
    """Round steps from 0 to the end, a few of them.

    >>> ticks(450_450), ticks(9)
    ([0.0, 100000.0, 200000.0, 300000.0, 400000.0], [0.0, 2.0, 4.0, 6.0, 8.0])
    """
    if not 0 < stop < math.inf:
        return [0.0]
    size = 10.0 ** math.floor(math.log10(stop / most))
    size *= next(part for part in (1, 2, 5, 10, 20) if stop / (part * size) <= most)
    return [size * n for n in range(math.floor(stop / size) + 1)]


def _brief(step: float) -> str:
    """A round step, in thousands or millions where it is.

    >>> _brief(100_000), _brief(2.5e6), _brief(8)
    ('100k', '2.5M', '8')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if step >= unit:
            return f"{step / unit:.12g}{name}"
    return f"{step:.12g}"


def _corners(form: Form, stop: float) -> NDArray[np.float64]:
    at: NDArray[np.float64] = np.array([x for x in extent.knots(form) if x <= stop])
    # Just before a jump as well, so that it is drawn upright.
    corners: NDArray[np.float64] = np.clip(np.concatenate([at, at - stop * 1e-6]), 0, stop)
    return corners


def terminal(
    form: Form, curve: Evaluator, steps: float | None = None, *, width: int = 72, rows: int = 8
) -> str:
    """The whole curve in block characters, `rows` lines high: each column is as high as the curve is anywhere in it."""
    stop = span(form) if steps is None else steps
    x = np.unique(np.concatenate([np.linspace(0, stop, 4 * width + 1), _corners(form, stop)]))
    y = curve.values(x)
    values = np.zeros(width)
    np.maximum.at(values, np.minimum((x / (stop or 1) * width).astype(int), width - 1), y)
    top = float(values.max()) or 1.0
    eighths = np.rint(values / top * rows * 8).astype(int)
    eighths[values > 0] = np.maximum(eighths[values > 0], 1)  # small is not nothing
    lines = []
    for row in reversed(range(rows)):
        cells = np.clip(eighths - row * 8, 0, 8)
        label = (
            f"{top:>10.6g} " if row == rows - 1 else f"{top / 2:>10.6g} " if 2 * row + 2 == rows else " " * 11
        )
        lines.append((label + "│" + "".join(_BLOCKS[cell] for cell in cells)).rstrip())
    lines += [" " * 11 + line for line in _axis(stop, width)]
    return "\n".join(lines)


def _axis(stop: float, width: int) -> list[str]:
    """The lower axis with its ticks, and below it their steps and the end."""
    line, below = list("└" + "─" * width), [" "] * (width + 1)
    end = f"{_whole(stop):,.12g} steps"
    for at in ticks(stop):
        place = 1 + min(round(at / (stop or 1) * width), width - 1)
        line[place] = "┴"
        text = _brief(at)
        if place + len(text) < width - len(end):
            below[place : place + len(text)] = text
    return ["".join(line), "".join(below)[: width + 1 - len(end)] + end]
