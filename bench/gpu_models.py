"""Workloads of a day with one GPU, by name: `gpu_models:gpt2`. `ISOBATCH_GPU_SMALL=1` makes small ones of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from isobatch.validate import Workload

SMALL = os.environ.get("ISOBATCH_GPU_SMALL") == "1"
LR = 1e-3
MICRO = {"mlp": 1024, "resnet50": 64, "gpt2": 8} if not SMALL else {"mlp": 16, "resnet50": 2, "gpt2": 2}


def _adamw(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=LR)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def mlp() -> Workload:
    """A perceptron of 67 M parameters: large matrix products and nothing else."""
    width = 64 if SMALL else 4096
    layers = [part for _ in range(3) for part in (nn.Linear(width, width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(width, width))

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, width, generator=generator)
        return x.to(device), torch.randint(width, (n,), generator=generator).to(device)

    return Workload(model, _adamw, batch, _loss)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1×1, 3×3, 1×1."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        first, second = _conv(inputs, width, 1), _conv(width, width, 3, stride)
        last = _conv(width, 4 * width, 1)
        self.main = nn.Sequential(*first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True), *last)
        same = stride == 1 and inputs == 4 * width
        self.short = nn.Identity() if same else nn.Sequential(*_conv(inputs, 4 * width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.short(x))


def resnet50() -> Workload:
    """ResNet-50 v1.5, written here: an image with torch may lack torchvision."""
    depths, base, size = ((1, 1), 8, 32) if SMALL else ((3, 4, 6, 3), 64, 224)
    layers = [*_conv(3, base, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = base
    for stage, depth in enumerate(depths):
        width = base << stage
        for index in range(depth):
            layers.append(Bottleneck(inputs, width, 2 if stage and not index else 1))
            inputs = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, size, size, generator=generator)
        return x.to(device), torch.randint(1000, (n,), generator=generator).to(device)

    return Workload(model, _adamw, batch, _loss)


class Block(nn.Module):
    """A layer of GPT-2, before whose parts it is normalized."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.attend(self.first(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(found.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.second(x))


class Gpt(nn.Module):
    """GPT-2, 124 M parameters at its published size."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        for table in self.tokens, self.places:
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.layers(x) @ self.tokens.weight.T


def gpt2() -> Workload:
    """GPT-2 of 124 M parameters, sequences of 1024 tokens."""
    layers, width, heads, length, vocabulary = (2, 32, 2, 16, 128) if SMALL else (12, 768, 12, 1024, 50257)
    model = Gpt(layers, width, heads, length, vocabulary)

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator).to(device)
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(model, _adamw, batch, _loss)


# ---- faults, each on rank 1 of two ----


def _faulty(happen: object) -> Workload:
    """A small model whose loss does `happen(device, n)` on rank 1 in its tenth forward."""
    calls = 0
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 6, generator=generator)
        return x.to(device), torch.randint(3, (n,), generator=generator).to(device)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 10 and dist.is_initialized() and dist.get_rank() == 1:
            happen(batch[0].device)  # type: ignore[operator]
        return _loss(model, batch)

    return Workload(model, _adamw, batch, loss)


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

    def fail(device: torch.device) -> None:
        found = torch.zeros(4, device=device)[torch.tensor([9], device=device)]
        print(found)

    return _faulty(fail)


def flips() -> Workload:
    """A last bit that is another one every seventh time, on rank 1 only, from its 60th loss on."""
    calls = 0
    healthy = _faulty(lambda device: None)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        found = _loss(model, batch)
        odd = dist.get_rank() == 1 and calls > 60 and calls % 7 == 0
        return found * (1 + 2**-20) if odd else found

    return Workload(healthy.model, healthy.optimizer, healthy.batch, loss)


def known_noise() -> Workload:
    """A linear loss whose noise scale is 9 samples: each sample's gradient is its x, of mean 1 and standard deviation 3."""

    class Dot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(256))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    def batch(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
        return (1 + 3 * torch.randn(n, 256, generator=generator)).to(device)

    return Workload(Dot(), lambda p: torch.optim.SGD(p, lr=LR), batch, lambda model, x: model(x).mean())
