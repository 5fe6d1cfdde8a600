"""Batch norm in a stand-in: its one sample must not count in the statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextlib.contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Forward and backward of a stand-in leave the statistics of the model's batch norms as they are.

    SyncBatchNorm must take part in the others' collectives: it gets an empty batch, which torch lets count nothing
    (torch/nn/modules/_functions.py, "empty input"). Others normalize by their running statistics, as in evaluation, where they have any:
    one sample has no variance.
    """
    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if not isinstance(module, _BatchNorm) or not module.training:
                continue
            if isinstance(module, nn.SyncBatchNorm):
                for hook in (
                    module.register_forward_pre_hook(_emptied),
                    # Before the user's own, which see what the module gives to the next one.
                    module.register_forward_hook(_filled, prepend=True),
                ):
                    stack.callback(hook.remove)
            elif module.running_mean is not None:
                module.training = False
                stack.callback(setattr, module, "training", True)
        yield


def _emptied(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    _Sample.taken = inputs[0]
    return (inputs[0][:0],)


def _filled(_: nn.Module, __: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
    """The sample itself in the empty output's place, tied to it, so that backward comes through the module too."""
    sample = _Sample.taken
    del _Sample.taken
    return torch.cat([output, sample.to(output.dtype)])


class _Sample:
    """What the module under way was given: between its two hooks no other module runs."""

    taken: torch.Tensor
