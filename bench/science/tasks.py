"""What is trained for bench/science: real data that needs no download. Hidden weights are matrices without biases, so that torch's Muon takes
all of them."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import nn

from isobatch.probing.stand_in import optimizer_of
from isobatch.validate import Workload

CONTEXT = 8


@cache
def _digits():
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32) / 16 - 0.3, torch.tensor(found.target)


@cache
def _source():
    """The bytes of the first files of Python's standard library, by name."""
    folder, data = Path(sysconfig.get_paths()["stdlib"]), b""
    for path in sorted(folder.glob("*.py")):
        data += path.read_bytes()
        if len(data) > 2_000_000:
            break
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def _cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def digits(plan):
    """scikit-learn's digits (1,797 images of 8 × 8), a perceptron with two hidden layers of 64."""
    x, y = _digits()
    model = nn.Sequential(
        nn.Linear(64, 64, bias=False),
        nn.ReLU(),
        nn.Linear(64, 64, bias=False),
        nn.ReLU(),
        nn.Linear(64, 10, bias=False),
    )

    def batch(n, generator, device):
        rows = torch.randint(len(x), (n,), generator=generator)
        return x[rows].to(device), y[rows].to(device)

    return Workload(model, optimizer_of(plan), batch, _cross_entropy)


class _Next(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(256, 16, bias=False)
        self.body = nn.Sequential(
            nn.Linear(16 * CONTEXT, 96, bias=False), nn.ReLU(), nn.Linear(96, 256, bias=False)
        )

    def forward(self, tokens):
        return self.body(self.embed.weight.T[tokens].flatten(1))


def source(plan):
    """The next byte of Python's standard library from the 8 before it, a perceptron over embeddings."""
    data = _source()

    def batch(n, generator, device):
        at = torch.randint(len(data) - CONTEXT - 1, (n,), generator=generator)
        rows = data[at[:, None] + torch.arange(CONTEXT + 1)]
        return rows[:, :-1].to(device), rows[:, -1].to(device)

    return Workload(_Next(), optimizer_of(plan), batch, _cross_entropy)


TASKS = {"digits": digits, "source": source}
