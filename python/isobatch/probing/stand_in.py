"""The built-in workload: a network that learns another one's noisy answers, from samples that never repeat.

It is no model of anybody's training. It says how a rule does on one problem that is cheap, that can be learned, and whose batches
range from all noise to hardly any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.validate.workload import Workload

INPUTS, WIDTH, CLASSES = 32, 64, 10


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2): the sign of an interpolated momentum."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002 - torch's own signature
        """One step."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.sign(beta1 * momentum + (1 - beta1) * p.grad))
                momentum.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def stand_in(plan: Plan) -> Workload:
    """The built-in workload with the plan's optimizer.

    Raises:
        InputError: torch has no such optimizer.
    """
    model = nn.Sequential(
        nn.Linear(INPUTS, WIDTH, bias=False),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH, bias=False),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES, bias=False),
    )
    return Workload(model, optimizer_of(plan), _batch, _loss, stand_in=True)


def optimizer_of(plan: Plan) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """The plan's optimizer with its values, at a learning rate that the probe sets.

    Raises:
        InputError: torch has none of that name.
    """
    name, decay = plan.recipe.optimizer, plan.weight_decay or 0.0
    betas = (plan.beta1 if plan.beta1 is not None else 0.9, plan.beta2 if plan.beta2 is not None else 0.999)
    eps = plan.eps if plan.eps is not None else 1e-8
    momentum = plan.momentum or 0.0
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum, weight_decay=decay),
        "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=betas, eps=eps, weight_decay=decay),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=betas, eps=eps, weight_decay=decay),
        "rmsprop": lambda p: torch.optim.RMSprop(
            p, lr=0.1, alpha=betas[1], eps=eps, momentum=momentum, weight_decay=decay
        ),
        "lion": lambda p: Lion(p, 0.1, betas, decay),
    }
    for ours, theirs in (("muon", "Muon"), ("adafactor", "Adafactor")):
        if (found := getattr(torch.optim, theirs, None)) is not None:
            makers[ours] = partial(found, lr=0.1, weight_decay=decay)
    if name not in makers:
        raise InputError(
            f"the built-in workload has no {name}: give your own training as package.module:factory",
            field="workload",
        )
    return makers[name]


def _teacher() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(INPUTS, WIDTH, generator=generator) / INPUTS**0.5
    return first, torch.randn(WIDTH, CLASSES, generator=generator) * 3 / WIDTH**0.5


TEACHER = _teacher()


def _batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, INPUTS, generator=generator) / torch.arange(1, INPUTS + 1) ** 0.5 * 2
    logits = torch.relu(x @ TEACHER[0]) @ TEACHER[1]
    noise = -torch.log(-torch.log(torch.rand(n, CLASSES, generator=generator).clamp(1e-6, 1 - 1e-6)))
    return x.to(device), (logits + noise).argmax(dim=1).to(device)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
