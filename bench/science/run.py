"""Which scaling rule should one start with? Grids of learning rates at several batches and equal samples.

    python bench/science/run.py small.jsonl --minutes 10   # a part; the same command goes on

Each line of the file is a trial with its seed and losses, or a noise scale; cells come in the order of what they tell, and one that is
under way is kept beside the file. `table.py` makes the table of it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path

import numpy as np
import torch

from optimizers import BETAS, EPS  # isort: skip
from scales import BASE, noise_of, part_of, scales, variants  # isort: skip
from stack import Arm, Stack, TimeUp  # isort: skip
from tasks import TASKS  # isort: skip

START = {"sgd": 0.1, "adamw": 4e-3, "lion": 5e-4, "muon": 2e-2}
EDITIONS = {
    "tiny": {"tasks": TASKS, "ks": [4.0, 0.5], "samples": 2048, "seeds": 2, "dear": 10**9},
    "small": {
        "tasks": TASKS,
        "ks": [4.0, 16.0, 32.0, 0.25, 2.0, 8.0, 0.125, 0.5, 0.0625, 0.03125],
        "samples": 65_536,
        "seeds": 3,
        # Muon's steps are dear on a CPU: of more than so many only where all else is done.
        "dear": 2048,
    },
}
POINTS = (0.0625, 0.125, 0.25, 0.5)
"""Parts of the training at k = 1 at which the noise scale is measured. Half-way it is lost where the loss is nearly 0 by then."""
DRAWS = 64
"""Pairs of gradients, at the tuned batch and at 8 times that, for a noise scale."""
WIDEST = 16
"""Octaves that a grid grows to at most."""


class Cell:
    """One task, optimizer and k: arms that are in the file are not trained again."""

    def __init__(self, work, task: str, optimizer: str, k: float) -> None:
        self.work, self.task, self.optimizer, self.k = work, task, optimizer, k

    def losses(self, arms: dict[str, Arm]) -> dict[str, float]:
        """The mean loss of each arm by its name; infinite where one diverged. Names of learning rates are their octaves from START."""
        key = (self.task, self.optimizer, self.k)
        missing = {name: arm for name, arm in arms.items() if (*key, name) not in self.work.known}
        if missing:
            self._train(missing)
        return {name: self.work.known[(*key, name)] for name in arms}

    def _train(self, arms: dict[str, Arm]) -> None:
        edition, begun = self.work.edition, time.monotonic()
        stack = self.stack(list(arms.values()))
        stack.train(deadline=self.work.deadline, file=self._part(arms))
        found = stack.losses()
        rows = []
        for at, (name, arm) in enumerate(arms.items()):
            for seed in range(edition["seeds"]):
                losses = found[seed, at]
                fine = bool(np.isfinite(losses).all())
                rows.append(
                    {
                        "k": self.k,
                        "arm": name,
                        "lr": arm.lr,
                        "seed": seed,
                        "batch": stack.batch,
                        "steps": stack.steps,
                        "losses": [float(f"{x:.5g}") for x in losses] if fine else [],
                    }
                )
        self.work.keep(self.task, self.optimizer, rows)
        seconds = time.monotonic() - begun
        print(f"{self.task} {self.optimizer} k={self.k:g}: {len(arms)} arms, {seconds:.0f} s", flush=True)

    def stack(self, arms: list[Arm]) -> Stack:
        """The networks of these arms."""
        edition = self.work.edition
        return Stack(
            edition["tasks"][self.task], self.optimizer, arms, seeds=edition["seeds"],
            batch=round(BASE * self.k), samples=edition["samples"], device=self.work.device,
        )  # fmt: skip

    def _part(self, arms: dict[str, Arm]) -> Path:
        # Another set of arms is another training.
        first = next(iter(arms))
        name = f"{self.task}-{self.optimizer}-{self.k:g}-{first}-{len(arms)}.part"
        return self.work.file.with_name(self.work.file.stem + "-" + name.replace("/", "_"))

    def grid(self, octaves: list[float]) -> float:
        """The best octave of a grid that grows until its best lies inside, and is halved beside it."""
        octaves = sorted(octaves)
        while True:
            losses = self.losses(self._at(octaves))
            best = min(octaves, key=lambda o: losses[_name(o)])
            more = [o for o in (octaves[0] - 1, octaves[-1] + 1) if abs(o - best) == 1]
            if not more or octaves[-1] - octaves[0] > WIDEST or not math.isfinite(losses[_name(best)]):
                break
            # Two at once: a grid of one arm costs nearly as much.
            step = more[0] - best
            octaves = sorted([*octaves, *(more if len(more) == 2 else [best + step, best + 2 * step])])
        octaves = sorted({*octaves, best - 0.5, best + 0.5})
        losses = self.losses(self._at(octaves))
        return min(octaves, key=lambda o: losses[_name(o)])

    def _at(self, octaves: list[float]) -> dict[str, Arm]:
        return {_name(o): Arm(START[self.optimizer] * 2.0**o) for o in octaves}

    def rules(self, tuned: float, noise: float | None) -> None:
        """Trains what each rule gives, and the variants of AdamW's betas, all from the tuned learning rate."""
        lr = START[self.optimizer] * 2.0**tuned
        arms = {rule: Arm(lr * scale) for rule, scale in scales(self.k, noise).items()}
        if self.optimizer == "adamw":
            for name, (scale, betas, eps) in variants(self.k, BETAS["adamw"], EPS).items():
                arms[name] = Arm(lr * scale, betas, eps)
        self.losses(arms)


class Work:
    """The file of trials, and what is left to do."""

    def __init__(self, file: Path, edition: str, device: str, deadline: float) -> None:
        self.file, self.edition, self.device, self.deadline = file, EDITIONS[edition], device, deadline
        self.known: dict[tuple, float] = {}
        self.measured: dict[tuple, list[dict]] = {}
        if file.exists():
            for line in file.read_text().splitlines():
                self._learn(json.loads(line))

    def keep(self, task: str, optimizer: str, rows: list[dict]) -> None:
        """Adds rows, all of them in one write."""
        rows = [{"task": task, "optimizer": optimizer, **row} for row in rows]
        with self.file.open("a") as out:
            out.write("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
        for row in rows:
            self._learn(row)

    def _learn(self, row: dict) -> None:
        case = row["task"], row["optimizer"]
        if "noise_scale" in row:
            self.measured.setdefault(case, []).append(row)
            return
        key = (*case, row["k"], row["arm"])
        mean = float(np.mean(row["losses"])) if row["losses"] else math.inf
        self.known[key] = self.known.get(key, 0.0) + mean / self.edition["seeds"]

    def tuned(self, task: str, optimizer: str) -> float:
        """The best octave at k = 1, with the noise scale in the course of its training."""
        cell = Cell(self, task, optimizer, 1.0)
        best = cell.grid([-2.0, -1.0, 0.0, 1.0, 2.0])
        known = self.measured.get((task, optimizer), [])
        tried = {part_of(row) for row in known if row.get("draws") == DRAWS}
        if noise_of(known)[0] is None and not tried.issuperset(POINTS):
            stack, found = cell.stack([Arm(START[optimizer] * 2.0**best)]), []
            for point in POINTS:
                stack.train(until=point)
                scale, error = stack.noise(BASE, draws=DRAWS)
                found.append(
                    {"k": 1.0, "noise_scale": scale, "noise_error": error, "at": point, "draws": DRAWS}
                )
            self.keep(task, optimizer, found)
        return best

    def cells(self) -> list[tuple[str, str, float]]:
        """In the order of what they tell; the dear ones last."""
        tasks, steps = list(self.edition["tasks"]), self.edition["samples"] / BASE
        found = [(t, o, 1.0) for t in tasks for o in START]
        found += [(t, o, k) for k in self.edition["ks"] for t in tasks for o in START]
        return sorted(found, key=lambda cell: cell[1] == "muon" and steps / cell[2] > self.edition["dear"])

    def all(self) -> None:
        """Every cell.

        Raises:
            TimeUp: the deadline passed.
        """
        for task, optimizer, k in self.cells():
            if time.monotonic() > self.deadline:
                raise TimeUp
            tuned = self.tuned(task, optimizer)
            if k == 1:
                continue
            cell, way = Cell(self, task, optimizer, k), math.log2(k)
            low, high = min(0.0, way), max(0.0, way)
            middle = round(tuned)
            cell.grid([float(o) for o in range(middle + math.floor(low) - 1, middle + math.ceil(high) + 2)])
            cell.rules(tuned, noise_of(self.measured[task, optimizer])[0])


def _name(octave: float) -> str:
    return f"{octave:g}"


def hardware(device: str) -> str:
    """What it runs on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    cpu = Path("/proc/cpuinfo")
    names = [line for line in cpu.read_text().splitlines() if "model name" in line] if cpu.exists() else []
    return f"one thread of a shared {names[0].partition(':')[2].strip()}" if names else "one CPU thread"


def main() -> None:
    """A part of the work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--edition", choices=EDITIONS, default="small")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
    edition = EDITIONS[args.edition]
    meta = {
        "edition": args.edition,
        "samples": edition["samples"],
        "seeds": edition["seeds"],
        "base_batch": BASE,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": hardware(args.device),
    }
    args.file.with_suffix(".meta.json").write_text(json.dumps(meta) + "\n")
    try:
        Work(args.file, args.edition, args.device, time.monotonic() + 60 * args.minutes).all()
    except TimeUp:
        print("time is up: the same command goes on")


if __name__ == "__main__":
    main()
