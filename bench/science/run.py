"""Which scaling rule should one start with? Grids of learning rates at several batches and equal samples.

    python bench/science/run.py bench/science/small.jsonl --minutes 10          # a part; the same command goes on
    python bench/science/run.py large.jsonl --edition large --device cuda       # bigger, in pieces of ten minutes

Each line of the file is a trial, with its seed and losses, or a noise scale. `table.py` makes the table and the picture of it.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch

import isobatch as ib
from isobatch.probing.critical import _noise
from isobatch.probing.lab import Lab
from isobatch.probing.options import ProbeOptions
from isobatch.probing.ranks import Alone
from isobatch.probing.training import Course, own_randomness, run, shape_of

from tasks import TASKS  # isort: skip

START = {"sgd": 0.1, "adamw": 4e-3, "lion": 5e-4, "muon": 2e-2}
EDITIONS = {
    "small": {
        "cases": [
            ("digits", "sgd"),
            ("digits", "adamw"),
            ("source", "adamw"),
            ("digits", "lion"),
            ("digits", "muon"),
            ("source", "sgd"),
        ],
        "ks": [1.0, 4.0, 16.0, 0.25],
        "samples": 16_384,
        "seeds": 2,
    },
    "large": {
        "cases": [(task, optimizer) for task in TASKS for optimizer in START],
        "ks": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 0.5, 0.25, 0.125, 0.0625, 0.03125],
        "samples": 262_144,
        "seeds": 5,
    },
}
BASE = 64


class Sweep:
    """One task and optimizer: trials that are in the file are not made again."""

    def __init__(self, task, optimizer, edition, file, device, deadline):
        self.task, self.optimizer, self.edition, self.file, self.deadline = (
            task,
            optimizer,
            edition,
            file,
            deadline,
        )
        recipe = ib.Recipe(
            effective_batch=BASE,
            lr=START[optimizer],
            optimizer=optimizer,
            momentum=0.9 if optimizer == "sgd" else None,
            duration=f"{edition['samples'] // BASE}st",
            warmup="10%",
        )
        self.plan = ib.plan(recipe, 1)
        options = ProbeOptions(workload="bench:" + task, seeds=edition["seeds"], device=device)
        self.lab = Lab(self.plan, options, Alone(device), factory=lambda: TASKS[task](self.plan))
        self.lab.micro = 1 << 14
        self.known = {}
        if file.exists():
            for line in file.read_text().splitlines():
                row = json.loads(line)
                self.known[row["task"], row["optimizer"], row["k"], row.get("step"), row.get("seed")] = row

    def keep(self, **row):
        row = {"task": self.task, "optimizer": self.optimizer, **row}
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        self.known[self.task, self.optimizer, row["k"], row.get("step"), row.get("seed")] = row
        return row

    def loss(self, k, step):
        """The mean loss over seeds at learning rate START · 2^step; infinite where one diverged."""
        found = []
        for seed in range(self.edition["seeds"]):
            row = self.known.get((self.task, self.optimizer, k, step, seed))
            if row is None:
                if time.monotonic() > self.deadline:
                    raise TimeoutError
                lr = START[self.optimizer] * 2.0**step
                trial = self.lab.train(round(BASE * k), lr, seed, self.edition["samples"])
                row = self.keep(
                    k=k, step=step, seed=seed, batch=trial.batch, lr=lr, steps=trial.steps, losses=trial.losses,
                    seconds=round(trial.seconds, 3),
                )  # fmt: skip
            found.append(np.mean(row["losses"]) if row["losses"] else np.inf)
        return float(np.mean(found))

    def noise(self, step):
        """The simple noise scale in the middle of the best training at k = 1."""
        if (self.task, self.optimizer, 1.0, None, None) in self.known:
            return
        with own_randomness():
            training = self.lab.training(BASE, 0)
            steps = self.edition["samples"] // BASE
            course = Course(START[self.optimizer] * 2.0**step, steps, shape_of(self.plan, constant=False))
            half = Course(
                course.peak, steps // 2, lambda part: course.at(int(part * steps / 2)) / course.peak
            )
            run(training, self.lab.split(BASE), half)
            scale, error = _noise(self.lab, BASE, training.state())
        self.keep(k=1.0, noise_scale=scale, noise_error=error)

    def all(self):
        """Every batch: at k = 1 the best learning rate, elsewhere from half the lower to twice the higher of 1 and k times it, and on
        while the best is at an edge."""
        best = self.grid(1.0, range(-2, 3))
        self.noise(best)
        for k in self.edition["ks"][1:]:
            ends = sorted((0, round(np.log2(k))))
            half = [] if np.log2(k) % 2 == 0 else [np.log2(k) / 2]
            for step in half:
                self.loss(k, best + step)
            self.grid(k, range(best + ends[0] - 1, best + ends[1] + 2))

    def grid(self, k, steps):
        """The best step of a grid that grows until its best lies inside."""
        steps = list(steps)
        while True:
            losses = {step: self.loss(k, step) for step in steps}
            best = min(losses, key=losses.get)
            more = [step for step in (best - 1, best + 1) if step not in losses]
            if not more or len(steps) > 14:
                return best
            steps += more


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--edition", choices=EDITIONS, default="small")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    edition, deadline = EDITIONS[args.edition], time.monotonic() + 60 * args.minutes
    meta = args.file.with_suffix(".meta.json")
    meta.write_text(
        json.dumps(
            {
                "edition": args.edition,
                "samples": edition["samples"],
                "seeds": edition["seeds"],
                "base_batch": BASE,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
                "device": torch.cuda.get_device_name() if args.device == "cuda" else "one CPU thread",
            }
        )
        + "\n"
    )
    for task, optimizer in edition["cases"]:
        try:
            Sweep(task, optimizer, edition, args.file, args.device, deadline).all()
        except TimeoutError:
            print(f"time is up in {task}, {optimizer}: the same command goes on")
            return
        print(f"{task}, {optimizer}: done", flush=True)


if __name__ == "__main__":
    main()
