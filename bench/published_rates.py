"""Published learning rates at several batches, beside the rates planned from the smallest by each rule.

    python bench/published_rates.py                  > bench/results/published_rates.md
    python bench/published_rates.py collect CHECKOUT > bench/results/published_rates.csv

CHECKOUT is a checkout of mlcommons/logging. Its reference convergence points (MLPerf Training 2.1 to 6.1)
name the batch, the learning rate, and the samples or epochs to the target quality of each reference run.
Only facts are taken: the newest round of each workload, and the mean of its runs. `k` is a batch over the
workload's smallest one.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from math import log2
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from msgspec import structs

import isobatch as ib
from isobatch.planning.published import PublishedRates

FACTS = Path(__file__).parent / "results" / "published_rates.csv"
RULES = ("auto", "muon", "sqrt", "surge", "saturating", "linear")
FIRST_ROUND = (2, 1)
WORKLOADS = {
    "bert": ("BERT-large", "lamb", "LAMB"),
    "rnnt": ("RNN-T", "lamb", "LAMB"),
    "resnet": ("ResNet-50", "lars", "LARS"),
    "maskrcnn": ("Mask R-CNN", "sgd", "SGD"),
    "unet3d": ("3D U-Net", "sgd", "segmentation, SGD"),
    "dlrm": ("DLRM", "sgd", "SGD"),
    "retinanet": ("RetinaNet", "adam", "detection, Adam"),
    "rgat": ("R-GAT", "adam", "graphs, Adam"),
    "gpt3": ("GPT-3 175B", "adam", "language models"),
    "llama31_8b": ("Llama 3.1 8B", "adamw", "language models"),
    "llama31_405b": ("Llama 3.1 405B", "adamw", "language models"),
    "gpt_oss_20b": ("gpt-oss 20B", "adamw", "language models"),
    "deepseekv3_671b": ("DeepSeek-V3 671B", "adamw", "language models"),
    "qwen35_397b_grpo": ("Qwen3.5 397B, GRPO", "adamw", "language models"),
    "llama2_70b_lora": ("Llama 2 70B", "adamw", "LoRA"),
    "stable_diffusion": ("Stable Diffusion 2", "adamw", "diffusion"),
    "flux1": ("FLUX.1", "adamw", "diffusion"),
}
"""Benchmark → its name, its optimizer, and its family. `ssd` and `gnn` are older names of two of these; of
`dlrm_dcnv2` no rule is known for its optimizer, Adagrad."""
PER_SAMPLE = {"stable_diffusion"}
"""Workloads whose scripts multiply the recorded rate by the batch."""


class Point(NamedTuple):
    """One reference run: `lr` at `batch`, and its samples or epochs to the target (None: not recorded)."""

    workload: str
    round: str
    batch: int
    lr: float
    length: float | None


class Pair(NamedTuple):
    """A workload's step from its smallest batch to a larger one; `planned` is planned over used, by rule."""

    workload: str
    k: float
    planned: dict[str, float]


def collect(checkout: Path) -> list[Point]:
    """Reads the newest round of each workload from a checkout of mlcommons/logging."""
    newest: dict[str, tuple[tuple[int, ...], str, dict[int, Point]]] = {}
    for path in sorted(checkout.glob("mlperf_logging/rcp_checker/training_*/rcps_*.json")):
        name = path.parent.name.removeprefix("training_")
        number = tuple(map(int, name.split(".")))
        if number < FIRST_ROUND:
            continue
        points: dict[str, dict[int, Point]] = defaultdict(dict)
        for run in json.loads(path.read_text(encoding="utf-8")).values():
            workload, batch = run["Benchmark"], run["BS"]
            lengths = run.get("Epochs to converge") or run.get("samples to converge")
            lr = run["Hyperparams"]["opt_base_learning_rate"] * (batch if workload in PER_SAMPLE else 1)
            length = fmean(lengths) if lengths else None
            points[workload][batch] = Point(workload, name, batch, lr, length)
        for workload, batches in points.items():
            if workload in WORKLOADS and (workload not in newest or number > newest[workload][0]):
                newest[workload] = (number, name, batches)
    return [newest[name][2][batch] for name in WORKLOADS for batch in sorted(newest[name][2])]


def read_facts() -> dict[str, list[Point]]:
    """Reads the committed facts, by workload, batches rising."""
    points: dict[str, list[Point]] = defaultdict(list)
    with FACTS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            length = float(row["length"]) if row["length"] else None
            point = Point(row["workload"], row["round"], int(row["batch"]), float(row["lr"]), length)
            points[point.workload].append(point)
    return dict(points)


def noise_scale(points: list[Point]) -> float | None:
    """Fits `length = least · (1 + batch / noise scale)`; None where the lengths do not follow such a line.

    Needs three batches that span a factor of 2 (two always fit), and a correlation of 0.9.
    """
    known = [(point.batch, point.length) for point in points if point.length]
    if len(known) < 3 or known[-1][0] < 2 * known[0][0] or np.corrcoef(*zip(*known, strict=True))[0, 1] < 0.9:
        return None
    slope, least = np.polyfit(*zip(*known, strict=True), 1)
    return float(least / slope) if slope > 0 and least > 0 else None


def pairs(points: list[Point]) -> list[Pair]:
    """Plans each larger batch of a workload from its smallest, by each rule that can be used."""
    tuned, *larger = points
    scale = noise_scale(points)
    optimizer = WORKLOADS[tuned.workload][1]
    recipe = ib.Recipe(
        effective_batch=tuned.batch,
        micro_batch=1,
        gpus=tuned.batch,
        lr=tuned.lr,
        optimizer=optimizer,
        weight_decay=0.0,
    )
    measured = structs.replace(recipe, noise_scale=scale)
    rows = []
    for point in larger:
        planned = {}
        for rule in RULES:
            needs_scale = rule in {"muon", "surge", "saturating"}
            if needs_scale and scale is None:
                continue
            plan = ib.plan(measured if needs_scale else recipe, point.batch, policy=point.batch, rule=rule)
            assert plan.lr is not None, plan.reason
            planned[rule] = plan.lr / point.lr
        rows.append(Pair(tuned.workload, point.batch / tuned.batch, planned))
    return rows


def by_family(rows: Mapping[str, list[Pair]]) -> list[PublishedRates]:
    """Sums up the pairs of each family, as `isobatch explain --rules` shows them."""
    families: dict[str, list[Pair]] = defaultdict(list)
    for name, each in rows.items():
        families[WORKLOADS[name][2]] += each
    lines = []
    for family, each in families.items():
        ratios = [pair.planned["auto"] for pair in each]
        linear = all(pair.planned["auto"] == pair.planned["linear"] for pair in each)
        close = sum(abs(log2(ratio)) <= 1 + 1e-9 for ratio in ratios)
        largest = float(f"{max(pair.k for pair in each):.2g}")
        rule = "linear" if linear else "sqrt"
        span = round(min(ratios), 2), round(max(ratios), 2)
        lines.append(PublishedRates(family, rule, len(each), largest, *span, close))
    return lines


def show() -> None:
    """Prints the tables as Markdown."""
    facts = read_facts()
    rows = {name: pairs(points) for name, points in facts.items()}
    auto = [(pair.k, pair.planned["auto"]) for each in rows.values() for pair in each]

    def within(factor: float, most: float = float("inf")) -> str:
        errors = [abs(log2(ratio)) <= log2(factor) + 1e-9 for k, ratio in auto if k <= most]
        return f"{sum(errors)} of {len(errors)}"

    print("# Published learning rates, planned over used\n")
    print(f"> `auto` is within 2 × of the used rate in {within(2)} pairs of {len(rows)} workloads, within")
    print(f"> 1.5 × in {within(1.5)}; up to k = 4 within 2 × in {within(2, 4)}.\n")
    print(
        "`python bench/published_rates.py`; facts in published_rates.csv, from mlcommons/logging "
        "(29 July 2026).\n"
    )
    print("| family | workload | optimizer | batches | round | used, × | planned over used (`auto`) |")
    print("|---|---|---|---|---|---|---|")
    for name, points in facts.items():
        title, optimizer, family = WORKLOADS[name]
        used = [point.lr / points[0].lr for point in points[1:]]
        ratios = [pair.planned["auto"] for pair in rows[name]]
        batches = f"{points[0].batch} to {points[-1].batch}"
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"| {family} | {title} | {optimizer} | {batches} | {points[0].round} "
            f"| {min(used):.2f} to {max(used):.2f} | {span} |"
        )
    print("\nMean of |log2(planned / used)| by rule, over the pairs whose workload has a noise scale")
    print("(fitted to its samples or epochs to the target):\n")
    measured = [pair for each in rows.values() for pair in each if len(pair.planned) == len(RULES)]
    print(f"| rule | error, {len(measured)} pairs |\n|---|---|")
    for rule in RULES:
        print(f"| {rule} | {fmean(abs(log2(pair.planned[rule])) for pair in measured):.2f} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(Point._fields)
        writer.writerows(collect(Path(sys.argv[2])))
    else:
        show()
