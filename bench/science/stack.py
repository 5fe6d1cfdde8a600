"""Many small networks trained side by side: each learning rate (and each variant of the betas) with each seed is one of them.

All networks of a seed see the same samples in the same order, at every batch, and begin with the same weights. A training that is
interrupted goes on from a file and gives the same losses.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isobatch.validate.proofs.noise_scale import noise_scale

from optimizers import Stepper  # isort: skip
from tasks import PARTS  # isort: skip

WARMUP = 0.1
CHECKED = 64
"""The clock is looked at after so many steps."""


class TimeUp(Exception):
    """The part's minutes are over."""


@dataclass(frozen=True)
class Arm:
    """A learning rate, and betas and eps where they are not the optimizer's usual ones."""

    lr: float
    betas: tuple[float, float] | None = None
    eps: float | None = None


def course(part: float) -> float:
    """What of its peak the learning rate has: a tenth of warmup, then a cosine to 0."""
    if part < WARMUP:
        return part / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (part - WARMUP) / (1 - WARMUP)))


class Stack:
    """Arms × seeds of a task and an optimizer at one batch."""

    def __init__(
        self, task, optimizer: str, arms: list[Arm], *, seeds: int, batch: int, samples: int, device: str
    ) -> None:
        self.task, self.arms, self.seeds, self.batch, self.device = task, arms, seeds, batch, device
        self.steps = max(1, round(samples / batch))
        self.weights = [w.to(device).requires_grad_() for w in _beginning(task.shapes, seeds, len(arms))]
        self.rows = torch.stack([task.stream(s, self.steps * batch) for s in range(seeds)]).to(device)
        self.lr = torch.tensor([arm.lr for arm in arms] * seeds, device=device)[:, None, None]
        betas = eps = None
        if any(arm.betas or arm.eps for arm in arms):
            from optimizers import BETAS, EPS

            usual = BETAS[optimizer]
            pairs = [arm.betas or usual for arm in arms] * seeds
            betas = tuple(
                torch.tensor([p[i] for p in pairs], device=device, dtype=torch.float64) for i in (0, 1)
            )
            eps = torch.tensor([arm.eps or EPS for arm in arms] * seeds, device=device)
        self.stepper = Stepper(optimizer, self.weights, betas, eps)
        self.done = 0

    def train(self, until: float | None = None, deadline: float = math.inf, file: Path | None = None) -> None:
        """Trains to a part of the way, by default its end.

        Raises:
            TimeUp: the deadline passed; the state is in the file.
        """
        if file is not None and file.exists():
            self._load(file)
        steps = self.steps if until is None else round(until * self.steps)
        while self.done < steps:
            rows = self.rows[:, self.done * self.batch : (self.done + 1) * self.batch]
            self.stepper.step(self.gradients(rows), self.lr * course((self.done + 0.5) / self.steps))
            self.done += 1
            if file is not None and self.done % CHECKED == 0 and time.monotonic() > deadline:
                self._save(file)
                raise TimeUp
        if file is not None:
            file.unlink(missing_ok=True)

    def gradients(self, rows: Tensor) -> list[Tensor]:
        """Of the mean loss over rows of shape (seeds, samples, …), for each network."""
        # The sum over networks: each weight belongs to one, and gets that one's gradient.
        total = self.task.losses(self.weights, rows).mean(dim=1).sum()
        return list(torch.autograd.grad(total, self.weights))

    @torch.no_grad()
    def losses(self) -> np.ndarray:
        """Of the evaluation, shape (seeds, arms, PARTS)."""
        rows = self.task.held_out().to(self.device)
        found = self.task.losses(self.weights, rows.expand(self.seeds, *rows.shape))
        return found.view(self.seeds, len(self.arms), PARTS, -1).mean(dim=3).double().cpu().numpy()

    def noise(self, small: int, many: int = 8, draws: int = 16) -> tuple[float | None, float | None]:
        """The simple noise scale of the first seed's first network at its weights, and its standard error."""
        rows = self.task.stream(10**5, draws * many * small).to(self.device)
        local, averaged = [], []
        for draw in range(draws):
            found = []
            for part in range(many):
                at = (draw * many + part) * small
                own = rows[at : at + small].expand(self.seeds, small, rows.shape[1])
                found.append([g[0] for g in self.gradients(own)])
            local.append(np.mean([_square(one) for one in found]))
            averaged.append(_square([sum(group) / many for group in zip(*found, strict=True)]))
        return noise_scale(np.array(local), np.array(averaged), small, many * small)[:2]

    def _save(self, file: Path) -> None:
        part = file.with_suffix(".tmp")
        torch.save({"done": self.done, "weights": self.weights, **self.stepper.state()}, part)
        part.replace(file)

    def _load(self, file: Path) -> None:
        state = torch.load(file, map_location=self.device)
        self.done = state["done"]
        with torch.no_grad():
            for ours, theirs in zip(self.weights, state["weights"], strict=True):
                ours.copy_(theirs)
        self.stepper.load(state)


def _beginning(shapes, seeds: int, arms: int) -> list[Tensor]:
    """Weights by seed, the same for all arms, uniform as torch.nn.Linear's; an embedding's (256 rows) normal, as torch.nn.Embedding's
    scaled by ½."""
    found = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed + 7)
        for at, (rows, columns) in enumerate(shapes):
            if rows == 256 and at == 0:
                weight = 0.5 * torch.randn(rows, columns, generator=generator)
            else:
                weight = (2 * torch.rand(rows, columns, generator=generator) - 1) / columns**0.5
            found.append(weight)
    count = len(shapes)
    return [
        torch.stack([found[seed * count + at] for seed in range(seeds)]).repeat_interleave(arms, dim=0)
        for at in range(count)
    ]


def _square(tensors: list[Tensor]) -> float:
    return float(sum(t.double().square().sum() for t in tensors))
