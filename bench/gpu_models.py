"""Workloads of a day with one GPU, by name: `gpu_models:gpt2`; small where ISOBATCH_GPU_SMALL is 1."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gpu_tools import SMALL
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isobatch.validate import Workload


def _adamw(params: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return cross_entropy(logits.flatten(0, -2), batch[1].flatten())


def convnet() -> Workload:
    """ResNet-50 on images of 224 × 224."""
    from torchvision.models import ResNet, resnet, resnet50

    model = ResNet(resnet.BasicBlock, [1, 1, 1, 1]) if SMALL else resnet50()
    size = 64 if SMALL else 224

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        images = torch.randn(n, 3, size, size, generator=generator)
        return images.to(device), torch.randint(1000, (n,), generator=generator).to(device)

    return Workload(model, _adamw, batch, _loss)


class Gpt(nn.Module):
    """GPT-2, 124 M parameters at its published size."""

    def __init__(self, layers: int, width: int, heads: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        form = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, **form)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)
        for table in self.tokens, self.places:
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.layers(x, mask=self.mask, is_causal=True) @ self.tokens.weight.T


def gpt2() -> Workload:
    """GPT-2 of 124 M parameters, sequences of 1024 tokens."""
    layers, width, heads, length, vocabulary = (2, 32, 2, 16, 128) if SMALL else (12, 768, 12, 1024, 50257)

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator).to(device)
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(Gpt(layers, width, heads, length, vocabulary), _adamw, batch, _loss)
