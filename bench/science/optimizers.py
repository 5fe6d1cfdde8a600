"""The optimizers of bench/science, for weights of shape (networks, rows, columns) with a learning rate for each network.

They are torch.optim's SGD (momentum), AdamW and Muon, and Lion; a test holds each step to torch's. Muon orthogonalizes in the weights' own
precision, where torch does so in bfloat16.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOMENTUM = {"sgd": 0.9, "muon": 0.95}
BETAS = {"adamw": (0.9, 0.999), "lion": (0.9, 0.99)}
EPS = 1e-8
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Stepper:
    """One optimizer over a list of weights.

    Args:
        name: sgd, adamw, lion or muon.
        weights: of shape (networks, rows, columns).
        betas: of AdamW and Lion, shape (networks,) each; None: BETAS.
        eps: of AdamW, shape (networks,); None: EPS.
    """

    def __init__(
        self,
        name: str,
        weights: list[Tensor],
        betas: tuple[Tensor, Tensor] | None = None,
        eps: Tensor | None = None,
    ) -> None:
        self.name, self.weights, self.count = name, weights, 0
        self.first = [torch.zeros_like(w) for w in weights]
        self.second = [torch.zeros_like(w) for w in weights] if name == "adamw" else []
        if name in BETAS:
            networks, one = weights[0].shape[0], weights[0].new_ones
            given = betas if betas is not None else tuple(one(networks) * b for b in BETAS[name])
            self.betas = [b.double()[:, None, None] for b in given]
            self.eps = (one(networks) * EPS if eps is None else eps)[:, None, None]

    @torch.no_grad()
    def step(self, gradients: list[Tensor], lr: Tensor) -> None:
        """One step; lr of shape (networks, 1, 1)."""
        self.count += 1
        update = getattr(self, "_" + self.name)
        for at, (weight, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
            update(at, weight, gradient, lr)

    def state(self) -> dict[str, object]:
        """What a part that goes on needs."""
        return {"count": self.count, "first": self.first, "second": self.second}

    def load(self, state: dict[str, object]) -> None:
        """Goes on from a state."""
        self.count = state["count"]
        for kind in ("first", "second"):
            for ours, theirs in zip(getattr(self, kind), state[kind], strict=True):
                ours.copy_(theirs)

    def _sgd(self, at: int, weight: Tensor, gradient: Tensor, lr: Tensor) -> None:
        # torch's first buffer is the first gradient, which is what zeros become here too.
        self.first[at].mul_(MOMENTUM["sgd"]).add_(gradient)
        weight.sub_(lr * self.first[at])

    def _adamw(self, at: int, weight: Tensor, gradient: Tensor, lr: Tensor) -> None:
        beta1, beta2 = self.betas
        rate = (lr.double() / (1 - beta1**self.count)).to(weight.dtype)
        root = (1 - beta2**self.count).sqrt().to(weight.dtype)
        mean, square = self.first[at], self.second[at]
        mean.lerp_(gradient, (1 - beta1).to(weight.dtype))
        square.lerp_(gradient.square(), (1 - beta2).to(weight.dtype))
        weight.sub_(rate * mean / (square.sqrt().div_(root).add_(self.eps)))

    def _lion(self, at: int, weight: Tensor, gradient: Tensor, lr: Tensor) -> None:
        beta1, beta2 = ((1 - b).to(weight.dtype) for b in self.betas)
        weight.sub_(lr * self.first[at].lerp(gradient, beta1).sign_())
        self.first[at].lerp_(gradient, beta2)

    def _muon(self, at: int, weight: Tensor, gradient: Tensor, lr: Tensor) -> None:
        self.first[at].lerp_(gradient, 1 - MOMENTUM["muon"])
        update = orthogonal(gradient.lerp(self.first[at], MOMENTUM["muon"]))
        rows, columns = weight.shape[1:]
        weight.sub_(lr * math.sqrt(max(1.0, rows / columns)) * update)


def orthogonal(update: Tensor) -> Tensor:
    """Five Newton-Schulz iterations, as torch.optim.Muon makes them."""
    a, b, c = NEWTON_SCHULZ
    tall = update.shape[1] > update.shape[2]
    x = update.mT if tall else update
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
