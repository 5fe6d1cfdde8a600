"""Trains small networks at several batches, each scaling rule's learning rate beside a grid.

    python bench/science.py --tasks source --optimizers adamw --ks 4 --samples 8192      # a minute
    python bench/science.py --cells cells.jsonl            # all cells; the same command goes on

Prints the cells of bench/results/science.csv, without their intervals. Tasks: `source`, the next
byte of Python's standard library from the 8 before it; `digits`, scikit-learn's, by a perceptron; `noisy`,
the same with half of the labels drawn at random. All learning rates and seeds of a cell are trained side by
side: a weight has the shape (networks, rows, columns), networks being seeds × rates.
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import isobatch as ib
from isobatch.validate.proofs.noise_scale import noise_scale

BATCH = 64
"""Samples of a step at which each learning rate is tuned."""
KS = ["1/16", "1/8", "1/4", "1/2", "2", "4", "8", "16", "32"]
RULES = ("none", "sqrt", "linear", "saturating", "surge", "muon")
START = {"adamw": 4e-3, "lion": 5e-4, "muon": 2e-2, "sgd": 0.1}
"""Learning rates around which the grids lie."""
SHAPES = {
    "digits": ((64, 64), (64, 64), (10, 64)),
    "noisy": ((64, 64), (64, 64), (10, 64)),
    "source": ((256, 16), (96, 128), (256, 96)),
}
DRAWS = 64
"""Pairs of gradients for a noise scale, at the tuned batch and at 8 times that."""


@cache
def images() -> tuple[Tensor, Tensor]:
    """Returns the digits, shape (1797, 64), and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16 - 0.3, torch.tensor(digits.target)


@cache
def text() -> Tensor:
    """Returns 2 MB of Python's standard library, files by name."""
    source = b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        if len(source) < 2_000_000:
            source += path.read_bytes()
    return torch.frombuffer(bytearray(source), dtype=torch.uint8).long()


def draw(task: str, seed: int, samples: int, *, held_out: bool = False) -> tuple[Tensor, Tensor]:
    """Returns inputs and labels of a seed's samples; held-out ones are of the last tenth of the text."""
    generator = torch.Generator().manual_seed(seed)
    if task == "source":
        border = int(0.9 * len(text()))
        first, end = (border, len(text())) if held_out else (0, border)
        starts = torch.randint(first, end - 9, (samples, 1), generator=generator)
        window = text()[starts + torch.arange(9)]
        return window[:, :8], window[:, 8]
    rows = torch.randint(len(images()[0]), (samples,), generator=generator)
    labels = images()[1][rows]
    if task == "noisy":
        is_wrong = torch.rand(samples, generator=generator) < 0.5
        labels = torch.where(is_wrong, torch.randint(10, (samples,), generator=generator), labels)
    return images()[0][rows], labels


def losses(weights: list[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean loss of each network on inputs of shape (networks, samples, …)."""
    hidden = inputs
    layers = weights
    if not inputs.is_floating_point():
        networks = torch.arange(len(inputs))[:, None, None]
        hidden, layers = weights[0][networks, inputs].flatten(2), weights[1:]
    for number, weight in enumerate(layers):
        hidden = (functional.relu(hidden) if number else hidden) @ weight.mT
    return functional.cross_entropy(hidden.mT, labels, reduction="none").mean(dim=1)


class Networks:
    """Networks of a task with one optimizer, a learning rate each, over seeds."""

    def __init__(self, task: str, optimizer: str, rates: list[float], seeds: int) -> None:
        self.task, self.optimizer, self.seeds, self.count = task, optimizer, seeds, 0
        self.rates = torch.tensor(rates * seeds)[:, None, None]
        self.weights = []
        for rows, columns in SHAPES[task]:
            starts = []
            for seed in range(seeds):
                generator = torch.Generator().manual_seed(1000 * rows + columns + seed)
                start = 2 * torch.rand(rows, columns, generator=generator) - 1
                starts += [start / columns**0.5] * len(rates)
            self.weights.append(torch.stack(starts).requires_grad_())
        self.first = [torch.zeros_like(weight) for weight in self.weights]
        self.second = [torch.zeros_like(weight) for weight in self.weights]

    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Returns each network's gradient on samples of shape (seeds, samples, …)."""
        each = len(self.rates) // self.seeds
        inputs, labels = inputs.repeat_interleave(each, 0), labels.repeat_interleave(each, 0)
        return torch.autograd.grad(losses(self.weights, inputs, labels).sum(), self.weights)

    def train(self, batch: int, samples: int, part: float = 1.0) -> None:
        """Takes a part of the steps over `samples`: a tenth of warmup, then a cosine to 0."""
        steps = samples // batch
        streams = [draw(self.task, seed, steps * batch) for seed in range(self.seeds)]
        inputs, labels = (torch.stack(column) for column in zip(*streams, strict=True))
        for step in range(round(part * steps)):
            progress = (step + 0.5) / steps
            height = min(progress / 0.1, 0.5 + 0.5 * math.cos(math.pi * (progress - 0.1) / 0.9))
            rows = slice(step * batch, (step + 1) * batch)
            self.step(self.gradients(inputs[:, rows], labels[:, rows]), self.rates * height)

    @torch.no_grad()
    def step(self, gradients: tuple[Tensor, ...], rates: Tensor) -> None:
        """Takes one step, as torch.optim and Lion's paper have it, without weight decay."""
        self.count += 1
        for weight, gradient, mean, square in zip(
            self.weights, gradients, self.first, self.second, strict=True
        ):
            if self.optimizer == "sgd":
                weight -= rates * mean.mul_(0.9).add_(gradient)
            elif self.optimizer == "adamw":
                mean.lerp_(gradient, 0.1)
                square.lerp_(gradient.square(), 0.001)
                root = (square / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
                weight -= rates / (1 - 0.9**self.count) * mean / root
            elif self.optimizer == "lion":
                weight -= rates * mean.lerp(gradient, 0.1).sign_()
                mean.lerp_(gradient, 0.01)
            else:
                mean.lerp_(gradient, 0.05)
                rows, columns = weight.shape[1:]
                weight -= rates * max(1.0, rows / columns) ** 0.5 * orthogonal(gradient.lerp(mean, 0.95))

    @torch.no_grad()
    def evaluate(self) -> np.ndarray:
        """Returns held-out losses, shape (seeds, rates)."""
        inputs, labels = draw(self.task, 10**6, 2048, held_out=True)
        networks = len(self.rates)
        result = losses(self.weights, inputs.expand(networks, *inputs.shape), labels.expand(networks, -1))
        return result.double().view(self.seeds, -1).numpy()

    def noise(self) -> float | None:
        """Returns the simple noise scale of the first network, or None where it is lost in its error."""
        small, large = [], []
        for number in range(DRAWS):
            inputs, labels = draw(self.task, 10**5 + number, 8 * BATCH)
            parts = []
            for rows in range(0, 8 * BATCH, BATCH):
                batch = (inputs[rows : rows + BATCH], labels[rows : rows + BATCH])
                gradients = self.gradients(*(x.expand(self.seeds, *x.shape) for x in batch))
                parts.append(torch.cat([gradient[0].flatten() for gradient in gradients]).double())
            small.append(np.mean([float(part.square().sum()) for part in parts]))
            large.append(float(torch.stack(parts).mean(dim=0).square().sum()))
        scale, error, *_ = noise_scale(np.array(small), np.array(large), BATCH, 8 * BATCH)
        return scale if scale and error and 2 * error < scale else None


def orthogonal(update: Tensor) -> Tensor:
    """Returns five Newton-Schulz iterations of it, as torch.optim.Muon makes them."""
    is_tall = update.shape[1] > update.shape[2]
    x = update.mT if is_tall else update
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return x.mT if is_tall else x


def tune(
    task: str, optimizer: str, batch: int, around: float, args: argparse.Namespace
) -> tuple[float, float]:
    """Returns the best learning rate and its mean loss, of a grid of √2 that grows until it lies inside."""
    tried: dict[float, float] = {}
    octaves = [-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5]
    while True:
        new = [octave for octave in octaves if octave not in tried]
        networks = Networks(task, optimizer, [around * 2.0**octave for octave in new], args.seeds)
        networks.train(batch, args.samples)
        means = np.nan_to_num(networks.evaluate().mean(axis=0), nan=math.inf)
        tried |= dict(zip(new, means.tolist(), strict=True))
        best = min(tried, key=lambda octave: tried[octave])
        if min(tried) < best < max(tried) or abs(best) > 12:
            return around * 2.0**best, tried[best]
        octaves = [best + way * number / 2 for way in (-1, 1) for number in range(1, 5)]


def measure(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields cells as they are trained; cells of the file are not trained again."""
    lines = args.cells.read_text(encoding="utf-8").splitlines() if args.cells.exists() else []
    cells = [json.loads(line) for line in lines]
    yield from cells
    measured = {(cell["task"], cell["optimizer"], cell["k"]) for cell in cells}
    for task in args.tasks:
        for optimizer in args.optimizers:
            ks = [k for k in args.ks if (task, optimizer, k) not in measured]
            if not ks:
                continue
            tuned, _ = tune(task, optimizer, BATCH, START[optimizer], args)
            networks = Networks(task, optimizer, [tuned], args.seeds)
            networks.train(BATCH, args.samples, part=0.5)
            recipe = ib.Recipe(
                effective_batch=BATCH,
                lr=tuned,
                optimizer=optimizer,
                duration="1000st",
                noise_scale=networks.noise(),
            )
            for k in ks:
                cell = compare_rules(task, recipe, k, args)
                with args.cells.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(cell) + "\n")
                yield cell


def compare_rules(task: str, recipe: ib.Recipe, k: str, args: argparse.Namespace) -> dict[str, Any]:
    """Trains what each rule gives at k times the batch, and tells its loss from the lowest of all."""
    batch = round(BATCH * Fraction(k))
    plans = {rule: ib.plan(recipe, 1, policy=batch, rule=rule) for rule in (*RULES, "auto")}
    rates = {rule: plan.lr for rule, plan in plans.items() if plan.lr}
    best, lowest = tune(task, recipe.optimizer, batch, rates["auto"], args)
    networks = Networks(task, recipe.optimizer, list(rates.values()), args.seeds)
    networks.train(batch, args.samples)
    means = dict(zip(rates, networks.evaluate().mean(axis=0).tolist(), strict=True))
    lowest = min(lowest, *(loss for loss in means.values() if math.isfinite(loss)))
    gaps = {rule: round(loss - lowest, 4) if math.isfinite(loss) else None for rule, loss in means.items()}
    return {
        "task": task,
        "optimizer": recipe.optimizer,
        "noise_scale": recipe.noise_scale,
        "k": k,
        "best": best / recipe.lr,
        "loss": lowest,
        "auto": plans["auto"].rule,
        "gaps": gaps,
    }


def table_row(cell: dict[str, Any]) -> str:
    """Writes a cell as a row; †: `auto` takes this rule; ✗: it diverged; –: no noise scale."""
    gaps = []
    for rule in RULES:
        gap = cell["gaps"].get(rule, "–")
        if gap is None:
            gap = "✗"
        elif gap != "–":
            gap = f"**{gap:.3f}**" if gap < 0.02 else f"{gap:.3f}"
        gaps.append(gap + "†" * (rule == cell["auto"]))
    noise = f"{cell['noise_scale']:,.0f}" if cell["noise_scale"] else "–"
    columns = [
        cell["task"],
        cell["optimizer"],
        noise,
        cell["k"],
        f"{cell['best']:.2f}",
        f"{cell['loss']:.3f}",
    ]
    return f"| {' | '.join([*columns, *gaps])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--optimizers", nargs="+", default=list(START), choices=START)
    parser.add_argument("--ks", nargs="+", default=KS, help="multiples of the batch")
    parser.add_argument("--samples", type=int, default=65_536, help="of each training, at every batch")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cells", type=Path, default=Path("cells.jsonl"), help="where they are kept")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    print(f"| task | optimizer | Bn | k | best | lowest loss | {' | '.join(RULES)} |\n|{'---|' * 12}")
    for cell in measure(args):
        print(table_row(cell), flush=True)


if __name__ == "__main__":
    main()
