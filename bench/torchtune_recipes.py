"""torchtune's published recipes, read by isobatch; they and the written ones, read by torchtune itself.

TORCHTUNE=CHECKOUT python bench/torchtune_recipes.py > bench/results/torchtune.md
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.utils.data import DataLoader, DistributedSampler
from torchtune import config as torchtune_config

import isobatch as ib
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job

SAMPLES = 5_203
COUNTS = (1, 2, 3, 4, 6, 8, 16)


def rates(settings: Any, replicas: int) -> list[float]:
    """The learning rate of each step, with the sampler, loader.

    Scheduler and counts of `full_finetune_distributed.py`.
    """
    data = range(SAMPLES)
    sampler = DistributedSampler(data, num_replicas=replicas, rank=0)
    batches = len(DataLoader(data, batch_size=settings.batch_size, sampler=sampler, drop_last=True))
    each = batches // settings.get("gradient_accumulation_steps", 1)
    if settings.max_steps_per_epoch is not None:
        each = min(each, settings.max_steps_per_epoch)
    total = settings.epochs * each
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(settings.optimizer.lr))
    if settings.get("lr_scheduler") is None:
        return [optimizer.param_groups[0]["lr"]] * total
    scheduler = torchtune_config.instantiate(
        settings.lr_scheduler, optimizer, num_training_steps=total, last_epoch=-1
    )
    rates_seen = []
    for _ in range(total):
        rates_seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates_seen


def compare(plan: ib.Plan, tool_rates: list[float]) -> str:
    """Says whether steps and learning rates are the plan's."""
    if len(tool_rates) != plan.total_steps:
        return f"{len(tool_rates) - plan.total_steps:+d} steps"
    worst = max(abs(rate - plan.lr_at(step)) for step, rate in enumerate(tool_rates)) / plan.lr
    return "same steps and rates" if worst < 1e-9 else "another rate"


def main() -> None:
    """Prints the counts."""
    root = Path(os.environ["TORCHTUNE"]) / "recipes"
    files, plain, written, refused = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for path in sorted(root.rglob("*.yaml")):
        settings = OmegaConf.load(path)
        try:
            reading = read_file(path)
        except ib.InputError:
            files["refused: no optimizer, so no training"] += 1
            continue
        files["a training, read" if not reading.faults else "a training, some of it asked for"] += 1
        if reading.faults or "ppo_batch_size" in settings:
            continue
        parallel = reading.fields.get("model_parallel", 1)
        unit = "" if settings.max_steps_per_epoch is None else f"{settings.epochs}ep"
        settings_given = {
            "dataset_size": SAMPLES,
            "gpus": 2 * parallel,
            **({"duration": unit} if unit else {}),
        }
        if unit:
            settings.max_steps_per_epoch = None
        recipe = ib.Recipe.read(path, **settings_given)
        plain[compare(ib.plan(recipe, 2 * parallel), rates(settings, 2))] += 1
        for count in COUNTS:
            plan = ib.plan(recipe, count * parallel, batch_tolerance=0.25)
            if plan.status == "infeasible":
                continue
            try:
                export = plan.to("torchtune", job=Job(own=OmegaConf.to_container(settings)))
            except ib.InputError:
                refused["optimizer_in_bwd with an accumulation"] += 1
                continue
            merged = OmegaConf.merge(settings, OmegaConf.create(export.settings))
            written[compare(plan, rates(merged, count))] += 1
    print("# torchtune's published recipes\n")
    print(
        "> All of torchtune's trainings but GRPO are read, and written files take the plan's steps and "
        "learning rates. An unchanged file may take one more step per epoch: its sampler repeats "
        "samples to fill all replicas.\n"
    )
    print(
        "Made by `TORCHTUNE=CHECKOUT python bench/torchtune_recipes.py`: the recipes of torchtune's "
        "repository at its end, its functions of "
        f"torchtune {version('torchtune')}, torch {torch.__version__.partition('+')[0]}, Python "
        f"{sys.version.split()[0]}.\n"
    )
    print("| what | result | count |\n|---|---|---|")
    for group, counts in (
        ("files", files),
        (f"as they are, {SAMPLES:,} samples, 2 replicas", plain),
        (f"written for {', '.join(map(str, COUNTS))} replicas", written),
        ("the same, refused", refused),
    ):
        for result, count in sorted(counts.items()):
            print(f"| {group} | {result} | {count} |")


if __name__ == "__main__":
    main()
