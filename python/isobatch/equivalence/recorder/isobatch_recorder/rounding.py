"""Noise of the size of rounding, added to a gradient: what another order of summation does to it."""

from __future__ import annotations

from typing import Any

import torch

SHAKE = 1e-6
"""Noise of a shaken gradient, by its root mean square: what float32 leaves of sums in another order."""
SHAKE_HALF = 1e-2
"""The same of float16 and bfloat16."""


def shake(gradients: list[Any], step: int) -> None:
    """Adds noise of the size of rounding to gradients, alike on all ranks.

    A part of it follows the gradient of all tensors: some, such as a key's bias, have nothing but rounding.
    Exact zeros stay: rows of an embedding without a token are 0 in every order, and Adam would make whole
    updates of their noise.
    """
    tensors = [getattr(gradient, "_local_tensor", gradient) for gradient in gradients]
    tensors = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]
    squares = [float(tensor.detach().double().square().sum()) for tensor in tensors]
    count = sum(tensor.numel() for tensor in tensors)
    overall = (sum(squares) / count) ** 0.5 if count else 0.0
    for number, (tensor, square) in enumerate(zip(tensors, squares)):
        own = (square / max(tensor.numel(), 1)) ** 0.5
        generator = torch.Generator().manual_seed(100_003 * step + number)
        noise = torch.empty(tensor.shape, dtype=torch.float32).normal_(generator=generator)
        size = SHAKE if tensor.dtype in (torch.float32, torch.float64) else SHAKE_HALF
        with torch.no_grad():
            noise = (noise * size * (own + overall / 10)).to(tensor.device, tensor.dtype)
            tensor.add_(noise.mul_(tensor != 0))
