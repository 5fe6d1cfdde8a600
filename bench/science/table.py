"""The table and the picture of bench/science: python bench/science/table.py bench/science/results/small.jsonl

Writes bench/results/science.md (for another file: beside it) and docs/science.svg.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from isobatch.probing.estimate import Rates, interval

ROOT = Path(__file__).parent.parent.parent
BASE = 64
AUTO = {"sgd": "linear", "adamw": "sqrt", "lion": "sqrt", "muon": "sqrt"}


def rules(k, noise):
    """What multiplies the learning rate by each rule at k, with the noise scale where the rule needs it."""
    found = {"none": 1.0, "sqrt": math.sqrt(k), "linear": k}
    if noise:
        small, large = noise / BASE, noise / (BASE * k)
        found["saturating"] = (1 + small) / (1 + large)
        found["surge"] = (math.sqrt(small) + math.sqrt(1 / small)) / (math.sqrt(large) + math.sqrt(1 / large))
        found["muon"] = math.sqrt((1 + small) / (1 + large))
    return found


def load(path):
    """{(task, optimizer): ({k: Rates}, noise scale, its error)}."""
    losses, noise = defaultdict(lambda: defaultdict(lambda: defaultdict(dict))), {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case = row["task"], row["optimizer"]
        if "noise_scale" in row:
            noise[case] = row["noise_scale"], row["noise_error"]
        else:
            losses[case][row["k"]][row["lr"]][row["seed"]] = row["losses"] or [math.inf] * 32
    found = {}
    for case, by_k in losses.items():
        rates = {}
        for k, by_lr in by_k.items():
            seeds = max(map(len, by_lr.values()))
            whole = {lr: seen for lr, seen in by_lr.items() if len(seen) == seeds}
            one = Rates(list(whole), np.array([[seen[s] for s in sorted(seen)] for seen in whole.values()]))
            if not one.at_edge:
                rates[k] = one
        if 1.0 in rates:
            found[case] = rates, *noise.get(case, (None, None))
    return found


def gap(rates, lr):
    """The loss at a learning rate minus the lowest, interpolated over its logarithm; None where it diverged, or was not tried."""
    at = math.log(lr)
    if not rates.logs[0] - 1e-6 <= at <= rates.logs[-1] + 1e-6:
        return None
    right = min(int(np.searchsorted(rates.logs, at - 1e-6)), len(rates.logs) - 1)
    means = rates.means
    if abs(rates.logs[right] - at) < 1e-6 or right == 0:
        value = means[right]
    else:
        part = (at - rates.logs[right - 1]) / (rates.logs[right] - rates.logs[right - 1])
        value = (1 - part) * means[right - 1] + part * means[right]
    return float(value - means.min()) if np.isfinite(value) else None


def rows_of(found):
    """A row for each case and k."""
    rows = []
    for (task, optimizer), (rates, noise, error) in sorted(found.items()):
        one = rates[1.0]
        tuned, drawn = one.best, one.resampled()[0]
        # Rules start at the lowest learning rate of the grid at k = 1: theirs then lie on the grids.
        start = float(np.exp(one.logs[int(np.argmin(one.means))]))
        usable = noise if noise is not None and error is not None and 2 * error < noise else None
        for k in sorted(set(rates) - {1.0}):
            ends = interval(np.exp(rates[k].resampled()[0] - drawn))
            scales = rules(k, usable)
            rows.append(
                {
                    "task": task,
                    "optimizer": optimizer,
                    "noise": usable,
                    "k": k,
                    "ratio": rates[k].best / tuned,
                    "interval": ends,
                    "lowest": float(rates[k].means.min()),
                    "gaps": {name: gap(rates[k], start * scale) for name, scale in scales.items()},
                    "within": {name: ends[0] <= scale <= ends[1] for name, scale in scales.items()},
                    "scales": scales,
                }
            )
    return rows


def markdown(rows, found, meta):
    """The document."""
    names = ["none", "sqrt", "linear", "saturating", "surge", "muon"]
    seconds = f"{meta['samples']:,} samples a trial, {meta['seeds']} seeds, tuned batch {meta['base_batch']}"
    lines = [
        "# Which scaling rule to start with",
        "",
        f"Made by `python bench/science/run.py` and `table.py` ({meta['edition']} edition): {seconds}, cosine with 10 % warmup, no weight decay; "
        f"torch {meta['torch']}, Python {meta['python']}, {meta['device']} ({meta['machine']}). `digits`: scikit-learn's 1,797 digits, a perceptron. "
        "`source`: the next byte of Python's standard library from the 8 before it. SGD has momentum 0.9.",
        "",
        "k is the batch over the tuned one. `best` is what the best learning rate is multiplied by, with its 95 % bootstrap interval over seeds and "
        "evaluation samples. Then what each rule's learning rate loses in mean loss against the best of the grid, at equal samples; **bold**: the rule's "
        "factor lies in the interval; †: `auto` takes it; –: diverged, outside the grid, or no noise scale. `saturating`, `surge` and `muon` are interpolated between points of the grid.",
        "",
        "| task | optimizer | noise scale | k | best | lowest loss | " + " | ".join(names) + " |",
        "|---|---|---|---|---|---|" + "---|" * len(names),
    ]
    for row in rows:
        cells = []
        for name in names:
            lost = row["gaps"].get(name)
            cell = "–" if lost is None else f"{lost:.3f}"
            cell = f"**{cell}**" if row["within"].get(name) and lost is not None else cell
            cells.append(cell + ("†" if AUTO[row["optimizer"]] == name else ""))
        low, high = row["interval"]
        noise = "–" if row["noise"] is None else f"{row['noise']:,.0f}"
        lines.append(
            f"| {row['task']} | {row['optimizer']} | {noise} | {row['k']:g} | {row['ratio']:.2f} ({low:.2f} to {high:.2f}) | {row['lowest']:.3f} | "
            + " | ".join(cells)
            + " |"
        )
    lines += ["", *summary(rows, names)]
    return "\n".join(lines) + "\n"


def summary(rows, names):
    """How often each rule's factor lay in the interval, and how far its worst gap was."""
    lines = [
        "| rule | in the interval, k > 1 | k < 1 | largest gap where it is known | diverged or off the grid |",
        "|---|---|---|---|---|",
    ]
    for name in [*names, "auto"]:
        picked = [(row, AUTO[row["optimizer"]] if name == "auto" else name) for row in rows]
        picked = [(row, rule) for row, rule in picked if rule in row["scales"]]
        counts = [
            (
                sum(row["within"][rule] for row, rule in picked if side(row["k"])),
                sum(side(row["k"]) for row, _ in picked),
            )
            for side in (lambda k: k > 1, lambda k: k < 1)
        ]
        gaps = [row["gaps"][rule] for row, rule in picked]
        known = [lost for lost in gaps if lost is not None]
        largest = f"{max(known):.3f}" if known else "–"
        lines.append(
            f"| `{name}` | {counts[0][0]} of {counts[0][1]} | {counts[1][0]} of {counts[1][1]} | {largest} | {len(gaps) - len(known)} |"
        )
    return lines


def picture(rows):
    """The best learning rate over the batch, for each case, in logarithms."""
    cases = list(dict.fromkeys((row["task"], row["optimizer"]) for row in rows))
    wide, high, across = 230, 200, 3
    down = -(-len(cases) // across)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide * across} {high * down + 26}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for at, case in enumerate(cases):
        left, top = wide * (at % across), high * (at // across)

        def x(k, left=left):
            return left + 120 + 28 * math.log2(k) / 1.5

        def y(ratio, top=top):
            return top + 110 - 20 * math.log2(ratio)

        out.append(f'<text x="{left + 20}" y="{top + 16}" font-weight="bold">{case[0]}, {case[1]}</text>')
        for slope, name, colour in ((0.0, "none", "#bbb"), (0.5, "√k", "#4a7"), (1.0, "k", "#47a")):
            low, top_k = 0.25, 16.0
            out.append(
                f'<line x1="{x(low):.1f}" y1="{y(low**slope):.1f}" x2="{x(top_k):.1f}" y2="{y(top_k**slope):.1f}" stroke="{colour}"/>'
                f'<text x="{x(top_k) + 3:.1f}" y="{y(top_k**slope) + 4:.1f}" fill="{colour}">{name}</text>'
            )
        out.append(f'<circle cx="{x(1):.1f}" cy="{y(1):.1f}" r="3" fill="#333"/>')
        for row in rows:
            if (row["task"], row["optimizer"]) == case:
                ends = row["interval"]
                out.append(
                    f'<line x1="{x(row["k"]):.1f}" y1="{y(ends[0]):.1f}" x2="{x(row["k"]):.1f}" y2="{y(ends[1]):.1f}" stroke="#c33" stroke-width="2"/>'
                    f'<circle cx="{x(row["k"]):.1f}" cy="{y(row["ratio"]):.1f}" r="4" fill="#c33"/>'
                    f'<text x="{x(row["k"]) - 6:.1f}" y="{top + 190}" fill="#555">{row["k"]:g}</text>'
                )
    out.append(
        f'<text x="20" y="{high * down + 18}" fill="#555">red: measured best learning rate over the tuned one, 95 % interval; across: k; both axes logarithmic</text></svg>'
    )
    return "\n".join(out) + "\n"


def main():
    path = Path(sys.argv[1])
    found = load(path)
    rows = rows_of(found)
    meta = json.loads(path.with_suffix(".meta.json").read_text())
    ours = meta["edition"] == "small"
    (ROOT / "bench/results/science.md" if ours else path.with_suffix(".md")).write_text(
        markdown(rows, found, meta)
    )
    (ROOT / "docs/science.svg" if ours else path.with_suffix(".svg")).write_text(picture(rows))
    print(markdown(rows, found, meta))


if __name__ == "__main__":
    main()
