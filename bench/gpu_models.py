"""Workloads of a day with one GPU, by name: `gpu_models:gpt2`.

`ISOBATCH_GPU_SMALL=1` makes small ones of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from gpu_tools import SMALL
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isobatch.validate import Workload

LR = 1e-3


def _adamw(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=LR)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def _batches(classes: int, *shape: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Random samples of a shape, and their classes."""

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, *shape, generator=generator)
        return x.to(device), torch.randint(classes, (n,), generator=generator).to(device)

    return batch


def convnet() -> Workload:
    """Sixteen convolutions with BatchNorm, as wide as ResNet-50's, on images of 224 × 224.

    An image with torch may lack torchvision.
    """
    base, size = (8, 64) if SMALL else (64, 224)
    layers: list[nn.Module] = [
        nn.Conv2d(3, base, 7, 2, 3, bias=False),
        nn.BatchNorm2d(base),
        nn.ReLU(inplace=True),
    ]
    inputs = base
    for index in range(15):
        outputs, stride = base << (index // 4), 2 if index % 4 == 0 else 1
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

    return Workload(model, _adamw, _batches(1000, 3, size, size), _loss)


class Gpt(nn.Module):
    """GPT-2, 124 M parameters at its published size."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        form = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, **form) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        for table in self.tokens, self.places:
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, src_mask=self.mask, is_causal=True)
        return self.norm(x) @ self.tokens.weight.T


def gpt2() -> Workload:
    """GPT-2 of 124 M parameters, sequences of 1024 tokens."""
    layers, width, heads, length, vocabulary = (2, 32, 2, 16, 128) if SMALL else (12, 768, 12, 1024, 50257)
    model = Gpt(layers, width, heads, length, vocabulary)

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator).to(device)
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(model, _adamw, batch, _loss)


# ---- faults, each on rank 1 of two ----


def _faulty(happen: Callable[[torch.device], object]) -> Workload:
    """A small model whose loss does `happen(device)` on rank 1 in its tenth forward."""
    calls = 0
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 10 and dist.is_initialized() and dist.get_rank() == 1:
            happen(batch[0].device)
        return _loss(model, batch)

    return Workload(model, _adamw, _batches(3, 6), loss)


def killed() -> Workload:
    """As by the system when memory runs out."""
    return _faulty(lambda device: os.kill(os.getpid(), 9))


def out_of_memory() -> Workload:
    """An allocation that no device can give."""
    return _faulty(lambda device: torch.empty(1 << 46, dtype=torch.uint8, device=device))


def hangs() -> Workload:
    """A kernel that does not end for minutes; on a CPU a sleep."""

    def hang(device: torch.device) -> None:
        if device.type == "cuda":
            for _ in range(200):
                torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize(device)
        else:
            time.sleep(600)

    return _faulty(hang)


def asserts() -> Workload:
    """An index out of range, which on CUDA is a device-side assertion that spoils the whole process."""
    return _faulty(lambda device: print(torch.zeros(4, device=device)[torch.tensor([9], device=device)]))
