"""A run's steps and micro-batches, as a training loop iterates over them, and the weights of their losses."""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from isobatch.elastic.agreement import ALL_THERE, Watch
from isobatch.elastic.equal_bits import EqualBits
from isobatch.errors import InputError
from isobatch.training.chunks import Chunk
from isobatch.training.dealing import Span

_INSIDE: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class Micro(NamedTuple):
    """A micro-batch of a step.

    Attributes:
        batch: the loader's batch, on the loader's device.
        weight: the factor for its mean loss: DDP's average of the gradients is then the gradient of the whole
            step's mean loss.
        last: whether it is this replica's last micro-batch in the step; its backward synchronizes.
        stand_in: whether it only keeps this replica in the others' collectives, with weight 0.
        chunk: in a run with chunk=, its chunk of the step.
    """

    batch: Any
    weight: float
    last: bool
    stand_in: bool
    equal: bool
    watch: Watch = ALL_THERE
    check: Callable[[], None] | None = None
    chunk: Chunk | None = None
    bits: EqualBits | None = None

    def sync(self, *models: nn.Module) -> AbstractContextManager[Any]:
        """Wraps forward and backward: gradients are synchronized in the step's last micro-batch only.

        It uses `no_sync` of DDP and FSDP1, and a flag of FSDP2; other modules need nothing. A stand-in does
        not count in the statistics of batch norms. In a run with chunk=, pass the model from `run.wrap`: the
        sum of all chunks is in `.grad` after the last micro-batch.

        Raises:
            InputError: the model has collectives inside its forward, and the replicas may make different
                numbers of passes; DDP has static_graph; or the last step's gradients were not zeroed.
        """
        if self.check is not None:
            self.check()
        stack = contextlib.ExitStack()
        stack.enter_context(self.watch.pass_guard())
        for model in models:
            if self.chunk is not None and self.bits is not None:
                stack.enter_context(self.bits.apart(model, self.chunk))
                continue
            if not self.last and getattr(model, "static_graph", False):
                raise InputError(
                    "static_graph must be False for DDP where a rank makes more than one pass in a step: "
                    "torch then synchronizes only some of them. Leave it out, or raise max_micro_batch until "
                    "each rank makes one pass",
                    field="static_graph",
                )
            if not self.equal and _has_collectives_inside(model):
                raise InputError(
                    "equal_passes must be True for FSDP and SyncBatchNorm, whose replicas must all make the "
                    "same passes: make the loader by run.loader(dataset, equal_passes=True)",
                    field="equal_passes",
                )
            sharded: Any = getattr(model, "set_requires_gradient_sync", None)
            quiet: Any = getattr(model, "no_sync", None)
            if sharded is not None:
                sharded(self.last)
            elif quiet is not None and not self.last:
                stack.enter_context(quiet())
            if self.stand_in:
                stack.enter_context(without_statistics(model))
        return stack


class Step:
    """An optimizer step: iterate over its micro-batches, then step the optimizer and the scheduler.

    Attributes:
        number: the step's number in the whole run, from 0; its learning rate is `plan.lr_at(number)`.
        epoch: the epoch of its samples.
        last_of_epoch: whether the next step belongs to another epoch.
    """

    def __init__(self, span: Span, micros: Iterator[Micro], passes: int, watch: Watch) -> None:
        self.number, self.epoch, self.last_of_epoch = span.number, span.epoch, span.last_of_epoch
        self._micros, self._left, self._watch = micros, passes, watch

    @property
    def left(self) -> int:
        """The number of this replica's micro-batches left in the step."""
        return self._left

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[Micro]:
        for micro in self._micros:
            self._left -= 1
            with micro.chunk.seeded() if micro.chunk is not None else contextlib.nullcontext():
                yield micro
            if self._watch.void:
                return


def _has_collectives_inside(model: nn.Module) -> bool:
    has_collectives = _INSIDE.get(model)
    if has_collectives is None:
        has_collectives = _INSIDE[model] = any(
            isinstance(module, nn.SyncBatchNorm)
            or hasattr(module, "set_requires_gradient_sync")
            or type(module).__name__ == "FullyShardedDataParallel"  # FSDP1
            for module in model.modules()
        )
    return has_collectives


# ---- weights in tokens ----


Tokens: TypeAlias = Callable[[Any], Any]
"""Counts the tokens, labels or boxes under a batch's mean loss: a number, or a tensor of one."""


def _is_count(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def count(tokens: Tokens, batch: Any, *, whole: bool) -> float:
    """Returns the count of `tokens` in a batch; an invalid count is NaN, as is then the sum over the ranks.
    The sum of fractions would depend on the order: with `whole` they are invalid."""
    tokens_of_batch = tokens(batch)
    value = tokens_of_batch.item() if hasattr(tokens_of_batch, "item") else tokens_of_batch
    if isinstance(value, (int, float)) and _is_count(value) and not (whole and value % 1):
        return float(value)
    return float("nan")


def check_window(total: float, own: float, step: int, *, whole: bool) -> None:
    """Raises on all ranks if a step has no tokens to take a mean over."""
    if not _is_count(total):
        rank = "this rank" if not _is_count(own) else "another rank"
        raise InputError(
            f"tokens must give a {'whole ' * whole}number from 0, as an int or a tensor of one; {rank} got "
            f"something else in step {step}",
            field="tokens",
        )
    if not total:
        raise InputError(
            f"step {step} has no token on any rank: 0 cannot be averaged over; filter samples without labels",
            field="tokens",
        )


# ---- batch norm in a stand-in: its one sample must not count in the statistics ----


@contextlib.contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Leaves the statistics of the model's batch norms as they are in a stand-in's forward and backward.

    SyncBatchNorm must take part in the others' collectives: it gets an empty batch, which torch does not
    count (torch/nn/modules/_functions.py, "empty input"). Other batch norms use their running statistics, if
    any, as in evaluation: one sample has no variance.
    """
    # The input of the module under way: between its two hooks no other module runs.
    samples: list[torch.Tensor] = []

    def empty(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        samples[:] = inputs[:1]
        return (inputs[0][:0],)

    def refill(_: nn.Module, __: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        """Replaces the empty output by the sample, concatenated to keep the module in the backward."""
        return torch.cat([output, samples.pop().to(output.dtype)])

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if not isinstance(module, _BatchNorm) or not module.training:
                continue
            if isinstance(module, nn.SyncBatchNorm):
                stack.callback(module.register_forward_pre_hook(empty).remove)
                # Before the user's hooks, which must see the output that the next module gets.
                stack.callback(module.register_forward_hook(refill, prepend=True).remove)
            elif module.running_mean is not None:
                module.training = False
                stack.callback(setattr, module, "training", True)
        yield
