"""Draws the loss of a run that was killed over its samples, on that of the undisturbed run, as SVG.

python examples/elastic/picture.py /tmp/elastic/run-0 /tmp/elastic/alone > docs/elastic.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo import SAMPLES, starts

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 330, 56, 16, 46, 44
COLOURS = ("#2563eb", "#059669", "#d97706", "#9333ea", "#0891b2", "#be123c")
DARK = "<style>@media (prefers-color-scheme: dark) { svg { filter: invert(0.9) hue-rotate(180deg) } }</style>"
BATCH, STEPS_PER_EPOCH, EPOCHS = 24, 21, 4


def samples_at(step: int) -> int:
    """The samples consumed before a step."""
    epoch, within = divmod(step, STEPS_PER_EPOCH)
    return epoch * SAMPLES + min(within * BATCH, SAMPLES)


def losses(start: dict[int, list[dict]]) -> list[tuple[int, float]]:
    """(samples, loss) of the steps that all ranks finished."""
    rows = sorted(start.items())
    return [
        (samples_at(step), sum(line["loss"] for line in ranks))
        for step, ranks in rows
        if len(ranks) == ranks[0]["of"]
    ]


class Axes:
    """Data to places in the picture."""

    def __init__(self, most: float) -> None:
        self.most = most

    def x(self, samples: float) -> float:
        return LEFT + samples / (EPOCHS * SAMPLES) * (WIDTH - LEFT - RIGHT)

    def y(self, loss: float) -> float:
        return TOP + (1 - loss / self.most) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: list[tuple[int, float]], style: str) -> str:
        places = " ".join(f"{self.x(samples):.1f},{self.y(loss):.1f}" for samples, loss in points)
        return f'<polyline points="{places}" fill="none" {style}/>'

    def frame(self) -> list[str]:
        bottom = HEIGHT - BOTTOM
        shapes = [f'<path d="M{LEFT},{TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#64748b"/>']
        for epoch in range(EPOCHS + 1):
            x, anchor = self.x(epoch * SAMPLES), "end" if epoch == EPOCHS else "middle"
            shapes.append(
                f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="{anchor}">{epoch * SAMPLES:,}</text>'
            )
        shapes += [
            f'<text x="{LEFT - 8}" y="{self.y(loss) + 4:.1f}" text-anchor="end">{loss}</text>'
            for loss in range(int(self.most) + 1)
        ]
        shapes.append(
            f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">samples</text>'
        )
        shapes.append(f'<text x="{LEFT - 40}" y="{TOP - 8}">loss</text>')
        return shapes


def picture(folder: Path, alone: Path) -> str:
    lives, whole = starts(folder), losses(starts(alone)[0])
    axes = Axes(max(loss for _, loss in whole) * 1.05)
    shapes = [*axes.frame(), axes.line(whole, 'stroke="#cbd5e1" stroke-width="7" stroke-linejoin="round"')]
    for index, life in enumerate(lives):
        points, replicas = losses(life), life[min(life)][0]["of"]
        colour = COLOURS[index % len(COLOURS)]
        shapes.append(axes.line(points, f'stroke="{colour}" stroke-width="1.6"'))
        begun = axes.x(samples_at(min(life)))
        place = f'x="{begun + 4:.1f}" y="{TOP - 8 - index % 2 * 15}"'
        shapes.append(f'<text {place} fill="{colour}">{replicas} ranks</text>')
        if index:
            edge = f"M{begun:.1f},{TOP - 20}V{HEIGHT - BOTTOM}"
            shapes.append(f'<path d="{edge}" stroke="#dc2626" stroke-dasharray="4 3"/>')
    shapes.append(
        f'<text x="{WIDTH - RIGHT}" y="{TOP + 12}" text-anchor="end" fill="#64748b">'
        "wide: one rank, undisturbed</text>"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="15">\n{DARK}\n<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *shapes, "</svg>"])


if __name__ == "__main__":
    print(picture(Path(sys.argv[1]), Path(sys.argv[2])))
