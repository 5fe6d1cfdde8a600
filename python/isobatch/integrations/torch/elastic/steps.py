"""A run's steps, as a training loop goes through them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn

from isobatch.errors import InputError
from isobatch.integrations.torch.elastic.dealing import Pass, Span
from isobatch.integrations.torch.elastic.norms import without_statistics

_FSDP1 = "FullyShardedDataParallel"
_INSIDE: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class Micro(NamedTuple):
    """A micro-batch of a step.

    Attributes:
        batch: what the loader gave, on the device that it gave it on.
        weight: what its mean loss is multiplied by, so that the gradients that DDP averages are those of the whole step's mean.
        last: whether it is this replica's last in the step, whose backward synchronizes.
        stand_in: it keeps this replica in the others' collectives, and has weight 0.
    """

    batch: Any
    weight: float
    last: bool
    stand_in: bool
    equal: bool

    def sync(self, *models: nn.Module) -> AbstractContextManager[Any]:
        """Around forward and backward: gradients are synchronized in the step's last micro-batch only.

        DDP and FSDP1 have `no_sync` for it, FSDP2 a flag; another module needs nothing. A stand-in is left out of the statistics of
        batch norms.

        Raises:
            InputError: the model has collectives inside its forward, and the replicas may make different numbers of passes.
        """
        stack = contextlib.ExitStack()
        for model in models:
            if not self.equal and _has_collectives_inside(model):
                raise InputError(
                    "equal_passes must be True for FSDP and SyncBatchNorm, whose replicas must all make the same passes: make the "
                    "loader by run.loader(dataset, equal_passes=True)",
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
        number: from 0 over the whole run; it uses `plan.lr_at(number)`.
        epoch: the epoch its samples are of.
        last_of_epoch: whether the next step is of another epoch.
    """

    def __init__(self, span: Span, micros: Iterator[Micro], passes: int) -> None:
        self.number, self.epoch, self.last_of_epoch = span.number, span.epoch, span.last_of_epoch
        self._micros, self._left = micros, passes

    @property
    def left(self) -> int:
        """Micro-batches that are left of it for this replica."""
        return self._left

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[Micro]:
        for micro in self._micros:
            self._left -= 1
            yield micro


def next_batch(loader: Iterator[Any], step: int) -> Any:
    """The loader's next batch.

    Raises:
        InputError: it has none, though the run has.
    """
    try:
        return next(loader)
    except StopIteration:
        raise InputError(
            f"the loader ended in step {step}, before the run: make it by run.loader", field="loader"
        ) from None


def micros(
    batches: Iterator[Any], passes: Sequence[Pass], factors: Sequence[float], *, equal: bool
) -> Iterator[Micro]:
    """A step's micro-batches, each with its factor."""
    for batch, one, factor in zip(batches, passes, factors, strict=True):
        yield Micro(batch, factor, one.last, one.stand_in, equal)


def _has_collectives_inside(model: nn.Module) -> bool:
    found = _INSIDE.get(model)
    if found is None:
        kinds = (nn.SyncBatchNorm,)
        found = _INSIDE[model] = any(
            isinstance(module, kinds)
            or hasattr(module, "set_requires_gradient_sync")
            or type(module).__name__ == _FSDP1
            for module in model.modules()
        )
    return found
