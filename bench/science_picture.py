"""Draws docs/science.svg of the cells in bench/results/science.csv.

    python bench/science_picture.py

A panel for each task and optimizer: the best learning rate over the batch, as multiples of the tuned ones.
"""

import csv
import math
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TUNED_BATCH = 64
PANEL, LEFT, TOP = (216, 190), 56, 76
WIDTH, HEIGHT = 176, 132
"""Of a panel's frame, inside of PANEL."""
TICKS = ("1/16", "1/4", "1", "4", "16")
OCTAVES_ACROSS, OCTAVES_UP = (-4.4, 5.4), (-5.0, 6.6)
STYLE = """:root { --paper: #ffffff; --ink: #1f2328; --soft: #57606a; --grid: #e2e6ea }
:root { --k: #2f62b5; --root: #1a7f4e; --best: #b3261e }
@media (prefers-color-scheme: dark) {
:root { --paper: #111a26; --ink: #e6edf3; --soft: #9aa7b4; --grid: #26323f }
:root { --k: #7fb0ff; --root: #4cc38a; --best: #ff9d94 }
}
text { fill: var(--ink); font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
.soft { fill: var(--soft) } .head { font-weight: 650 }
path, line { fill: none; stroke: var(--grid); stroke-width: 1.5 }
path { stroke-width: 1 } .noise { stroke: var(--soft); stroke-dasharray: 3 3 }
.none { stroke: var(--soft) } .root { stroke: var(--root) } .k { stroke: var(--k) }
.best { stroke: var(--best); stroke-width: 2 } circle { fill: var(--best) }"""


class Cell(NamedTuple):
    """A row of the table: the best multiple of the tuned learning rate, with its interval."""

    task: str
    optimizer: str
    noise_scale: float
    k: float
    best: float
    low: float
    high: float


def read_cells(file: Path = ROOT / "bench/results/science.csv") -> list[Cell]:
    """Reads the table's rows."""
    with file.open(encoding="utf-8", newline="") as table:
        return [
            Cell(
                row["task"],
                row["optimizer"],
                float(row["noise_scale"]),
                float(Fraction(row["k"])),
                *(float(row[name]) for name in ("best", "low", "high")),
            )
            for row in csv.DictReader(table)
        ]


def across(k: float) -> float:
    """Returns where a batch lies in its panel, px from the left."""
    first, last = OCTAVES_ACROSS
    return (math.log2(k) - first) / (last - first) * WIDTH


def down(multiple: float) -> float:
    """Returns where a learning rate lies in its panel, px from the top."""
    first, last = OCTAVES_UP
    return (last - min(max(math.log2(multiple), first), last)) / (last - first) * HEIGHT


def draw_panel(cells: list[Cell], *, has_left: bool, has_bottom: bool) -> str:
    """Draws grid, rules, noise scale and measured points."""
    parts = [f'<text class="head" y="-8">{cells[0].task}, {cells[0].optimizer}</text>']
    for tick in TICKS:
        x, y = across(float(Fraction(tick))), down(float(Fraction(tick)))
        parts.append(f'<path d="M{x:.1f} 0V{HEIGHT}M0 {y:.1f}H{WIDTH}"/>')
        if has_bottom:
            place = f'x="{x:.1f}" y="{HEIGHT + 16}" text-anchor="middle"'
            parts.append(f'<text class="soft" {place}>{tick}</text>')
        if has_left:
            parts.append(f'<text class="soft" x="-8" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
    ends = (1 / 16, 32.0)
    for name, power in (("none", 0), ("root", 0.5), ("k", 1)):
        (x, y), (right, up) = ((across(k), down(k**power)) for k in ends)
        parts.append(f'<line class="{name}" x1="{x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{up:.1f}"/>')
    noise = across(cells[0].noise_scale / TUNED_BATCH)
    if noise < WIDTH:
        parts.append(f'<line class="noise" x1="{noise:.1f}" y1="0" x2="{noise:.1f}" y2="{HEIGHT}"/>')
    for cell in cells:
        x = across(cell.k)
        parts.append(f'<path class="best" d="M{x:.1f} {down(cell.low):.1f}V{down(cell.high):.1f}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{down(cell.best):.1f}" r="3.5"/>')
    return "\n".join(parts)


def draw(cells: list[Cell]) -> str:
    """Draws all panels, optimizers across and tasks down, below one key."""
    panels = [list(group) for _, group in groupby(cells, key=lambda cell: (cell.task, cell.optimizer))]
    across_count = len({cell.optimizer for cell in cells})
    rows = math.ceil(len(panels) / across_count)
    width, height = LEFT + across_count * PANEL[0], TOP + rows * PANEL[1] + 4
    key, x = [], LEFT
    for name, label, length in (
        ("best", "best, with its 95 % interval", 226),
        ("none", "unchanged", 126),
        ("root", "√k", 72),
        ("k", "k", 62),
        ("noise", "noise scale", 110),
    ):
        mark = '<circle cx="12" cy="-4" r="3.5"/>' if name == "best" else ""
        line = f'<path class="{name}" d="M0-4h24"/>{mark}<text x="32">{label}</text>'
        key.append(f'<g transform="translate({x} 28)">{line}</g>')
        x += length
    for number, panel in enumerate(panels):
        row, column = divmod(number, across_count)
        drawn = draw_panel(panel, has_left=column == 0, has_bottom=row == rows - 1)
        place = f"translate({LEFT + column * PANEL[0]} {TOP + row * PANEL[1]})"
        key.append(f'<g transform="{place}">\n{drawn}\n</g>')
    title = "The best learning rate over the batch, both as multiples of the tuned ones, beside the rules"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-labelledby="title">\n<title id="title">{title}</title>\n<style>\n{STYLE}\n</style>\n'
        f'<rect width="{width}" height="{height}" rx="10" style="fill: var(--paper)"/>\n'
        + "\n".join(key)
        + f'\n<text class="soft" x="{LEFT}" y="{height - 12}">'
        + "across: batch ÷ 64; up: × learning rate</text>\n</svg>\n"
    )


if __name__ == "__main__":
    (ROOT / "docs/science.svg").write_text(draw(read_cells()), encoding="utf-8")
