"""Workloads for probes: a convex problem with a known best learning rate, and the mistakes in one."""

import dataclasses
import itertools
import os
import signal

import torch
from torch import nn

from isobatch.validate import Workload

CURVATURES = torch.tensor([1.0, 3.0])


class Bowl(nn.Module):
    """½ Σ hᵢ wᵢ², h = 1 and 3.

    The learning rate that contracts both fastest is 2/(1 + 3) = 0.5, and above 2/3 it diverges.
    """

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(1 + 0.1 * torch.rand(2))

    def forward(self, x):
        return x * self.w


def _sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def _signs(n, generator, device):
    return torch.randint(2, (n, 2), generator=generator, device=device) * 2.0 - 1


def _bowl_loss(model, x):
    return 0.5 * (CURVATURES * model(x) ** 2).sum(dim=1).mean()


def bowl():
    return Workload(Bowl(), _sgd, _signs, _bowl_loss)


class Clock:
    """Stands still but for `ticking` losses."""

    now = 0.0

    def __call__(self):
        return self.now


def ticking(factory, clock):
    """Returns the factory with losses of a second."""

    def tick():
        workload = factory()

        def loss(model, batch):
            clock.now += 1
            return workload.loss(model, batch)

        return dataclasses.replace(workload, loss=loss)

    return tick


remaining = 0


def ended():
    """The bowl, and a SIGTERM to this process after `remaining` losses."""

    def loss(model, x):
        global remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return _bowl_loss(model, x)

    return dataclasses.replace(bowl(), loss=loss)


def _noisy(n, generator, device):
    x = torch.randn(n, 6, generator=generator)
    y = x @ torch.arange(6.0) / 6 + torch.randn(n, generator=generator)
    return x.to(device), y.to(device)


def _squares(model, batch):
    return nn.functional.mse_loss(model(batch[0]).flatten(), batch[1])


def regression():
    return Workload(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), _sgd, _noisy, _squares)


def summed():
    def total(model, batch):
        return nn.functional.mse_loss(model(batch[0]).flatten(), batch[1], reduction="sum")

    return dataclasses.replace(regression(), loss=total, reduction="sum")


def weighted():
    """A sample counts as often as its first input is large."""

    def mean(model, batch):
        weights = batch[0][:, 0].abs()
        return (weights * (model(batch[0]).flatten() - batch[1]) ** 2).sum() / weights.sum()

    return dataclasses.replace(regression(), loss=mean, weight=lambda batch: batch[0][:, 0].abs().sum())


def bowl_with(**parts):
    """Returns a factory of the bowl with other parts."""
    return lambda: dataclasses.replace(bowl(), **parts)


def other_weights():
    fresh = torch.Generator()
    fresh.seed()
    workload = bowl()
    workload.model.w.data = torch.rand(2, generator=fresh)
    return workload


def nothing_to_train():
    workload = bowl()
    workload.model.w.requires_grad_(False)
    return workload


def _nan_in_training(model, x):
    return _bowl_loss(model, x) * (float("nan") if model.training else 1)


_count = itertools.count()
# Falls for ever: the higher the learning rate, the lower the loss.
slope = bowl_with(loss=lambda model, x: 1 - 1e-3 * model.w.sum() + 0 * model(x).sum())
other_samples = bowl_with(batch=lambda n, *_: torch.full((n, 2), float(next(_count))))
constant_samples = bowl_with(batch=lambda n, *_: torch.ones(n, 2))
too_few_samples = bowl_with(batch=lambda n, g, d: _signs(n // 2, g, d))
not_finite = bowl_with(loss=lambda model, x: (model(x).sum() - 1e9).log())
nan_in_training = bowl_with(loss=_nan_in_training)
no_gradient = bowl_with(loss=lambda model, x: _bowl_loss(model, x).detach())
no_tensor = bowl_with(loss=lambda model, x: _bowl_loss(model, x).item())
no_weight = bowl_with(weight=lambda x: 0.0)
never_moves = bowl_with(loss=lambda model, x: 0 * model(x).sum() + 1.5)
