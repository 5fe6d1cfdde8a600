"""The gradient of a parameter, wherever an engine keeps it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def gradients_as_weights(parameters: list[torch.Tensor]) -> Iterator[None]:
    """Puts gradients in the place of weights for a while, where an engine gathers the weights alone."""
    saved = [parameter.data.clone() for parameter in parameters]
    for parameter in parameters:
        put_gradient(parameter)
    try:
        yield
    finally:
        for parameter, entries in zip(parameters, saved):
            parameter.data.copy_(entries)


def put_gradient(parameter: torch.Tensor) -> None:
    """Puts a gradient in the place of its weight: 0 without one."""
    if parameter.grad is None:
        parameter.data.zero_()
    else:
        parameter.data.copy_(parameter.grad)


def gradient_of(parameter: Any) -> Any:
    """Returns the gradient of a parameter; Megatron keeps it in a buffer of its own."""
    gradient = parameter.grad
    return getattr(parameter, "main_grad", None) if gradient is None else gradient
