"""The picture of bench/science: the best learning rate over the batch, a panel for each task and optimizer."""

from __future__ import annotations

import math

WIDE, HIGH = 240, 210
LEFT, MIDDLE = 22, 118
ACROSS, UP = 19.0, 13.0
"""Of an octave of k and of the learning rate, in pixels."""
COLOURS = {"none": "#999999", "√k": "#2a7f4f", "k": "#3066be"}
RED = "#c0392b"


def picture(rows) -> str:
    """An SVG, a row of panels for each task and a column for each optimizer."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    optimizers = list(dict.fromkeys(row.optimizer for row in rows))
    high, wide = HIGH * len(tasks) + 44, WIDE * len(optimizers) + 16
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11" role="img" '
        'aria-label="The best learning rate over the batch, measured, beside the rules none, square root and linear">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for down, task in enumerate(tasks):
        for across, optimizer in enumerate(optimizers):
            picked = [row for row in rows if (row.task, row.optimizer) == (task, optimizer)]
            out += _panel(task, optimizer, picked, WIDE * across, HIGH * down)
    legend = (
        "red: what the best learning rate is multiplied by, measured, with its 95 % interval; lines: the rules none, √k and k; dashed: k at which the "
        "batch is the noise scale"
    )
    out.append(f'<text x="{LEFT}" y="{high - 24}" fill="#555555">{legend}</text>')
    out.append(
        f'<text x="{LEFT}" y="{high - 8}" fill="#555555">Across: k, the batch over the tuned one; up: the learning rate over the tuned one; both '
        "by factors of two.</text></svg>"
    )
    return "\n".join(out) + "\n"


def _panel(task: str, optimizer: str, rows, left: float, top: float) -> list[str]:
    def x(k: float) -> float:
        return left + LEFT + 100 + ACROSS * math.log2(k)

    def y(ratio: float) -> float:
        return top + MIDDLE - UP * math.log2(min(max(ratio, 2**-6.5), 2**6.5))

    out = [f'<text x="{left + LEFT}" y="{top + 18}" font-weight="bold">{task}, {optimizer}</text>']
    for slope, (name, colour) in zip((0.0, 0.5, 1.0), COLOURS.items(), strict=True):
        low, end = 1 / 32, 32.0
        out.append(
            f'<line x1="{x(low):.1f}" y1="{y(low**slope):.1f}" x2="{x(end):.1f}" y2="{y(end**slope):.1f}" stroke="{colour}"/>'
            f'<text x="{x(end) + 7:.1f}" y="{y(end**slope) + 4:.1f}" fill="{colour}">{name}</text>'
        )
    noise = rows[0].noise if rows else None
    if noise is not None and 1 / 32 <= noise / 64 <= 32:
        at = x(noise / 64)
        out.append(
            f'<line x1="{at:.1f}" y1="{top + 30}" x2="{at:.1f}" y2="{top + 186}" stroke="#bbbbbb" stroke-dasharray="3 3"/>'
        )
    out.append(f'<circle cx="{x(1):.1f}" cy="{y(1):.1f}" r="2.5" fill="#333333"/>')
    for row in rows:
        at = x(row.k)
        out.append(
            f'<line x1="{at:.1f}" y1="{y(row.ends[0]):.1f}" x2="{at:.1f}" y2="{y(row.ends[1]):.1f}" stroke="{RED}" stroke-width="2"/>'
            f'<circle cx="{at:.1f}" cy="{y(row.ratio):.1f}" r="3.5" fill="{RED}"/>'
        )
    for k, name in ((1 / 32, "1/32"), (1 / 4, "1/4"), (1, "1"), (4, "4"), (32, "32")):
        out.append(f'<text x="{x(k) - 3 * len(name):.1f}" y="{top + 200}" fill="#555555">{name}</text>')
    return out
