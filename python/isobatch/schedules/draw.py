"""A schedule as a picture: inline SVG, or characters on a terminal."""

from __future__ import annotations

import html

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


def svg(form: Form, curve: Evaluator, steps: float | None = None) -> str:
    """The curve as an SVG element, with its peak, its last step and a title."""
    stop = span(form) if steps is None else steps
    x = np.unique(np.concatenate([np.linspace(0, stop, 240), _corners(form, stop)]))
    y = curve.values(x)
    top = float(y.max()) or 1.0
    across = MARGIN + x / (stop or 1) * (WIDTH - 2 * MARGIN)
    down = HEIGHT - MARGIN + -y / top * (HEIGHT - 2 * MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    base, right = HEIGHT - MARGIN, WIDTH - MARGIN
    text = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
        f"<title>{html.escape(extent.text(form))}</title>"
        f'<path d="M{MARGIN} {MARGIN}V{base}H{right}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="1.8"/>'
        f'<text x="{MARGIN}" y="{MARGIN - 8}" {text}>learning rate {top:.12g}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 16}" {text}>0</text>'
        f'<text x="{right}" y="{HEIGHT - MARGIN + 16}" text-anchor="end" {text}>{stop:.12g} steps</text>'
        "</svg>"
    )


def _corners(form: Form, stop: float) -> NDArray[np.float64]:
    at: NDArray[np.float64] = np.array([x for x in extent.knots(form) if x <= stop])
    # Just before a jump as well, so that it is drawn upright.
    corners: NDArray[np.float64] = np.clip(np.concatenate([at, at - stop * 1e-6]), 0, stop)
    return corners


def terminal(
    form: Form, curve: Evaluator, steps: float | None = None, *, width: int = 72, rows: int = 8
) -> str:
    """The curve in block characters, `rows` lines high."""
    stop = span(form) if steps is None else steps
    values = curve.values(np.linspace(0, stop, width))
    top = float(values.max()) or 1.0
    eighths = np.rint(values / top * rows * 8).astype(int)
    lines = []
    for row in reversed(range(rows)):
        cells = np.clip(eighths - row * 8, 0, 8)
        label = f"{top:>10.4g} " if row == rows - 1 else f"{0:>10} " if row == 0 else " " * 11
        lines.append(label + "│" + "".join(_BLOCKS[cell] for cell in cells))
    lines.append(" " * 11 + "└" + "─" * width)
    lines.append(" " * 11 + f" 0{f'{stop:.12g} steps':>{width - 1}}")
    return "\n".join(lines)
