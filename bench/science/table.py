"""The table of bench/science: python bench/science/table.py small.jsonl

Writes bench/results/science.md (for another edition: beside the file). docs/science.svg was drawn of it once.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import isobatch as ib
from isobatch.probing.estimate import Rates, interval

from choosing import inside, left_out  # isort: skip
from scales import BASE, RULES, VARIANTS, noise_of, part_of, scales, variants  # isort: skip

ROOT = Path(__file__).parent.parent.parent
NONE_LOST = 0.02
"""A gap below this counts as none: differences between seeds are as large."""


@dataclass(frozen=True)
class Row:
    """One task, optimizer and k. `gaps`: of each rule and variant, infinite where it diverged; `at`: the part of the training at which the noise
    scale was measured."""

    task: str
    optimizer: str
    noise: float | None
    k: float
    ratio: float
    ends: tuple[float, float]
    lowest: float
    error: float
    gaps: dict[str, float]
    at: float = 0.5

    @property
    def auto(self) -> str:
        """The rule that the planner's `auto` takes, asked of the planner."""
        return self.auto_with(self.noise is not None)

    def auto_with(self, known: bool) -> str:
        """The same for a recipe with or without the noise scale."""
        return auto_rule(self.optimizer, self.noise if known else None)

    @property
    def over(self) -> float | None:
        """The batch over the noise scale."""
        return None if self.noise is None else self.k * BASE / self.noise


@cache
def auto_rule(optimizer: str, noise: float | None) -> str:
    """As a plan names it."""
    recipe = ib.Recipe(effective_batch=BASE, lr=0.1, optimizer=optimizer, duration="100st", noise_scale=noise)
    return str(ib.plan(recipe, 1, policy=2 * BASE).require().rule)


def load(path: Path):
    """({(task, optimizer): {k: {arm: (lr, losses of shape (seeds, parts))}}}, {(task, optimizer): what was measured of the noise scale})."""
    arms, noise = defaultdict(lambda: defaultdict(lambda: defaultdict(dict))), defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        case = row["task"], row["optimizer"]
        if "noise_scale" in row:
            noise[case].append(row)
        else:
            arms[case][row["k"]][row["arm"]][row["seed"]] = row["lr"], row["losses"] or [math.inf] * 32
    found = {}
    for case, by_k in arms.items():
        found[case] = {
            k: {
                name: (seen[0][0], np.array([seen[s][1] for s in sorted(seen)]))
                for name, seen in by_name.items()
            }
            for k, by_name in by_k.items()
        }
    return found, noise


def grid_of(arms) -> Rates:
    """The learning rates of the search, which are named by numbers."""
    named = [arm for name, arm in arms.items() if name not in (*RULES, *VARIANTS)]
    return Rates([lr for lr, _ in named], np.array([losses for _, losses in named]))


def rows_of(found, noise) -> list[Row]:
    """A row for each case and k that is whole: its grid has its best inside, and the rules were trained."""
    rows = []
    for (task, optimizer), by_k in sorted(found.items()):
        if 1.0 not in by_k or (task, optimizer) not in noise:
            continue
        one = grid_of(by_k[1.0])
        scale, at = noise_of(noise[task, optimizer])
        drawn = one.resampled()[0]
        for k in sorted(set(by_k) - {1.0}):
            arms, rates = by_k[k], grid_of(by_k[k])
            if rates.at_edge or not arms.keys() >= scales(k, scale).keys():
                continue
            means = {name: float(losses.mean()) for name, (_, losses) in arms.items()}
            usual = {name: mean for name, mean in means.items() if name not in VARIANTS}
            best = min(usual, key=usual.get)
            by_seed = arms[best][1].mean(axis=1)
            wanted = [*scales(k, scale), *VARIANTS]
            rows.append(
                Row(
                    task=task,
                    optimizer=optimizer,
                    noise=scale,
                    at=at,
                    k=k,
                    ratio=rates.best / one.best,
                    ends=interval(np.exp(rates.resampled()[0] - drawn)),
                    lowest=usual[best],
                    error=float(by_seed.std(ddof=1) / math.sqrt(len(by_seed))),
                    gaps={name: means[name] - usual[best] for name in wanted if name in means},
                )
            )
    return rows


def markdown(rows, meta, measured=None) -> str:
    """The document; `measured`: what was measured of each case's noise scale."""
    lines = [
        "# Which scaling rule to start with",
        "",
        f"Made by `python bench/science/run.py small.jsonl` and `table.py` ({meta['edition']} edition): {meta['samples']:,} samples "
        f"a trial at every batch, {meta['seeds']} seeds, tuned batch {meta['base_batch']}, cosine after 10 % warmup, no weight decay; torch {meta['torch']}, "
        f"Python {meta['python']}, {meta['device']} ({meta['machine']}). SGD has momentum 0.9; AdamW betas (0.9, 0.999), Lion (0.9, 0.99), Muon momentum 0.95, "
        "for all weights. `digits`: scikit-learn's 1,797 digits, a perceptron; the loss is that on the training images. `noisy`: the same, half of the labels "
        "drawn at random anew each time, which no model can learn. `source`: the next byte of Python's standard library from the 8 before it, the loss on "
        "bytes held out.",
        "",
        "The learning rate is tuned at k = 1 on a grid of √2 around its best. Each rule's learning rate at k is then trained itself, as is a grid around the best one there. "
        "**Gap**: the mean loss (nats) of a rule minus the lowest of all learning rates at that batch, at equal samples.",
        "",
        *answers(rows),
        "",
        *left_out(rows),
        "",
        *inside(rows),
        "",
        *averages(rows),
        "",
        "## Every cell",
        "",
        "`Bn`: the simple noise scale half-way through the best training at k = 1; @1/4: at a quarter of it, where half-way it was lost in its error. `best`: what the best learning rate is multiplied by, with a 95 % "
        f"bootstrap interval over seeds and evaluation samples. Then the gaps; **bold**: below {NONE_LOST}; †: `auto` takes it; ✗: diverged; –: no noise scale.",
        "",
        "| task | optimizer | Bn | k | B/Bn | best | lowest loss ± error | " + " | ".join(RULES) + " |",
        "|---|---|---|---|---|---|---|" + "---|" * len(RULES),
    ]
    for row in rows:
        cells = [_cell(row.gaps.get(name)) + "†" * (row.auto == name) for name in RULES]
        noise, over = (
            "–" if row.noise is None else f"{row.noise:,.0f}" + (f" @{_k(row.at)}" if row.at != 0.5 else ""),
            "–" if row.over is None else f"{row.over:.2g}",
        )
        lines.append(
            f"| {row.task} | {row.optimizer} | {noise} | {_k(row.k)} | {over} | {row.ratio:.2f} ({row.ends[0]:.2f} to {row.ends[1]:.2f}) "
            f"| {row.lowest:.3f} ± {row.error:.3f} | {' | '.join(cells)} |"
        )
    return "\n".join([*lines, "", *noises(measured or {})]) + "\n"


def noises(noise) -> list[str]:
    """The noise scale in the course of the training."""
    parts = sorted({part_of(row) for measured in noise.values() for row in measured})
    lines = [
        "## The noise scale over the training",
        "",
        "At k = 1 and its best learning rate, at parts of the training: samples ± standard error; –: not measured there, since half-way was enough; ∞: the mean "
        "gradient cannot be told from zero. Rules and cells take the latest whose error is below half of it, in bold. Where a loss goes to 0 (`digits`) it grows "
        "many times within the run: a rule that takes one figure is right at one time only.",
        "",
        "| task | optimizer | " + " | ".join(_k(part) for part in parts) + " |",
        "|---|---|" + "---|" * len(parts),
    ]
    for (task, optimizer), measured in sorted(noise.items()):
        taken, cells = noise_of(measured), dict.fromkeys(parts, "–")
        for row in measured:  # a later one, of more draws, takes an earlier one's place
            scale, part = row["noise_scale"], part_of(row)
            text = "∞" if scale is None else f"{scale:,.0f} ± {row['noise_error']:,.0f}"
            cells[part] = f"**{text}**" if (scale, part) == taken else text
        lines.append(f"| {task} | {optimizer} | {' | '.join(cells.values())} |")
    return lines


def answers(rows) -> list[str]:
    """Which rule for which optimizer up to which k: by the largest gap over the tasks."""
    ks = sorted({row.k for row in rows})
    lines = [
        "## Which rule, for which optimizer, up to which k",
        "",
        "In each cell the rule whose largest gap over the tasks is smallest, and that gap; then what `auto` takes, and its largest gap. Rules that need "
        "the noise scale are in the running. Where several lose less than "
        f"{NONE_LOST}, the simplest is named: none, √, linear, then the others.",
        "",
        "| optimizer | " + " | ".join(f"k = {_k(k)}" for k in ks) + " |",
        "|---|" + "---|" * len(ks),
    ]
    for optimizer in dict.fromkeys(row.optimizer for row in rows):
        cells = []
        for k in ks:
            picked = [row for row in rows if row.optimizer == optimizer and row.k == k]
            cells.append(_answer(picked) if picked else "")
        lines.append(f"| {optimizer} | {' | '.join(cells)} |")
    return [*lines, "", *counted(rows)]


def worst(picked, rule: str) -> float:
    """The largest gap of a rule; infinite where it diverged or is not known in one of the rows."""
    return max(row.gaps.get(rule, math.inf) for row in picked)


def _answer(picked) -> str:
    by_rule = {rule: worst(picked, rule) for rule in RULES}
    best = next((rule for rule in RULES if by_rule[rule] < NONE_LOST), min(by_rule, key=lambda r: by_rule[r]))
    auto = picked[0].auto
    tail = "= `auto`" if best == auto else f"`auto`: {auto} {_cell(by_rule[auto])}"
    return f"{best} {_cell(by_rule[best])}; {tail} ({len(picked)} tasks)"


def counted(rows) -> list[str]:
    """How often each rule lost nothing, below and above the tuned batch and the noise scale."""
    groups = (
        ("k < 1", lambda row: row.k < 1),
        ("k = 2, 4", lambda row: 1 < row.k <= 4),
        ("k = 8, 16, 32", lambda row: row.k > 4),
        ("k > 1, B ≤ Bn", lambda row: row.k > 1 and row.over is not None and row.over <= 1),
        ("k > 1, B > Bn", lambda row: row.k > 1 and row.over is not None and row.over > 1),
    )
    lines = [
        f"Cells in which a rule lost less than {NONE_LOST}, and its median gap (✗ where half of them diverged):",
        "",
        "| rule | " + " | ".join(name for name, _ in groups) + " |",
        "|---|" + "---|" * len(groups),
    ]
    for rule in (*RULES, "auto"):
        cells = []
        for _, holds in groups:
            gaps = [
                row.gaps[row.auto if rule == "auto" else rule]
                for row in rows
                if holds(row) and (rule == "auto" or rule in row.gaps)
            ]
            fine = sum(gap < NONE_LOST for gap in gaps)
            cells.append(f"{fine} of {len(gaps)}, {_cell(float(np.median(gaps)))}" if gaps else "–")
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return lines


def averages(rows) -> list[str]:
    """What moving AdamW's betas did at √k."""
    lines = [
        "## AdamW's betas at √k",
        "",
        "Gaps against the best learning rate with the betas left as they are; below 0: better than that. `half_life`: β2^k. `sde`: β' = 1 − k(1−β) for both "
        "and ε/√k; –: infeasible. `sde_smooth`: β^k for both and ε/√k.",
        "",
        "| task | k | sqrt | half_life | sde | sde_smooth | β1, β2 of sde | of sde_smooth |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "half_life" in row.gaps:
            cells = [_cell(row.gaps.get(name), plain=True) for name in ("sqrt", *VARIANTS)]
            betas = {name: found[1] for name, found in variants(row.k, (0.9, 0.999), 1e-8).items()}
            shown = [
                f"{betas[name][0]:.3f}, {betas[name][1]:.4f}" if name in betas else "–"
                for name in ("sde", "sde_smooth")
            ]
            lines.append(f"| {row.task} | {_k(row.k)} | {' | '.join(cells)} | {' | '.join(shown)} |")
    return lines


def _cell(gap: float | None, *, plain: bool = False) -> str:
    if gap is None:
        return "–"
    if math.isinf(gap):
        return "✗"
    text = f"{gap:.3f}"
    return f"**{text}**" if gap < NONE_LOST and not plain else text


def _k(k: float) -> str:
    return f"{k:g}" if k >= 1 else f"1/{1 / k:g}"


def main() -> None:
    """Writes it."""
    path = Path(sys.argv[1])
    found, noise = load(path)
    rows = rows_of(found, noise)
    meta = json.loads(path.with_suffix(".meta.json").read_text())
    ours = meta["edition"] == "small"
    text = markdown(rows, meta, noise)
    (ROOT / "bench/results/science.md" if ours else path.with_suffix(".md")).write_text(text)
    print(text)


if __name__ == "__main__":
    main()
