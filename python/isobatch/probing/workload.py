"""The workload of a probe, made from a seed, and its samples as one stream, whatever the batch."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isobatch.diagnosis.tensors import part, tensors_in
from isobatch.errors import InputError
from isobatch.planning.plan import Plan
from isobatch.validate.workload import Workload, call_factory, factory_of, load, user_code

EVALUATION_SEED = 7_919
"""Of the samples on which every trial is evaluated."""
TRIED_SAMPLES = 4
BUILT_IN = ("sgd", "adam", "adamw", "rmsprop")
"""Optimizers with which the built-in workload can be trained."""
BUILT_IN_PARAMETERS = 10_000

Make = Callable[[int, Plan], Workload]


@contextmanager
def own_randomness() -> Iterator[None]:
    """Leaves the process's random generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def maker(name: str | None, factory: Callable[[], Any] | None) -> Make:
    """Returns a maker of the workload for a seed and a plan.

    Raises:
        InputError: there is no such factory.
    """
    found = factory if factory is not None else factory_of(name) if name else None

    def make(seed: int, plan: Plan) -> Workload:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        if found is None:
            return _built_in(plan)
        with user_code("the workload's factory"):
            workload = call_factory(found)
        optimizer = workload.optimizer
        return replace(workload, optimizer=lambda p: _with_values(optimizer(p), plan))

    return make


def _built_in(plan: Plan) -> Workload:
    """Makes the validator's perceptron: it tells whether splits train the same, and nothing of learning rates."""
    if plan.recipe.optimizer not in BUILT_IN:
        raise InputError(
            f"the built-in workload has no {plan.recipe.optimizer}: give your own training as package.module:factory",
            field="workload",
        )
    return load("mlp", plan, BUILT_IN_PARAMETERS)


def _with_values(optimizer: Any, plan: Plan) -> Any:
    """Sets the plan's changes against the tuned recipe in the user's optimizer: weight decay by its factor, betas and eps as planned."""
    recipe = plan.recipe
    factor = plan.weight_decay / recipe.weight_decay if recipe.weight_decay and plan.weight_decay else 1.0
    betas = recipe.betas or (0.9, 0.999)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] *= factor
        if "betas" in group and plan.beta1 is not None and plan.beta2 is not None:
            changed = (plan.beta1, plan.beta2) != tuple(betas)
            group["betas"] = (plan.beta1, plan.beta2) if changed else group["betas"]
        if "eps" in group and plan.eps is not None and plan.eps != (recipe.eps or 1e-8):
            group["eps"] = plan.eps
    return optimizer


class Stream:
    """Draws a workload's samples in blocks, each from a generator of its own: sample i is the same whoever asks for it.

    Args:
        workload: draws them.
        seed: of the stream.
        block: samples in a block.
        device: where they go.
    """

    def __init__(self, workload: Workload, seed: int, block: int, device: torch.device) -> None:
        self._workload, self._seed, self._block, self._device = workload, seed, block, device
        self._last: tuple[int, Any] = (-1, None)

    def samples(self, start: int, stop: int) -> Any:
        """Returns the samples from start to stop."""
        first, last = start // self._block, -(-stop // self._block)
        pieces = []
        for index in range(first, last):
            begin = index * self._block
            whole = self._drawn(index)
            low, high = max(start - begin, 0), min(stop - begin, self._block)
            pieces.append(whole if high - low == self._block else part(whole, low, high))
        return joined(pieces)

    def _drawn(self, index: int) -> Any:
        # A rank's micro-batches follow each other: the last block is often asked for again.
        if self._last[0] != index:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
            with user_code("the workload's batch"):
                self._last = (index, self._workload.batch(self._block, generator, self._device))
        return self._last[1]


def joined(pieces: list[Any]) -> Any:
    """Joins pieces of a batch, one behind the other.

    >>> joined([{"x": torch.tensor([1])}, {"x": torch.tensor([2])}])["x"].tolist()
    [1, 2]
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: joined([piece[key] for piece in pieces]) for key in first}
    if isinstance(first, Tensor):
        return torch.cat(pieces)
    if isinstance(first, tuple | list) and first and not isinstance(first[0], int | float | str):
        parts = [joined(list(column)) for column in zip(*pieces, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    raise InputError(
        f"batch must give tensors, or mappings or tuples of them, got {type(first).__name__}",
        field="workload",
    )


def check_reseeding(make: Callable[[int], Workload], device: torch.device) -> None:
    """Checks a workload made twice from one seed, and a batch drawn twice, for equality.

    Raises:
        InputError: they differ, or the samples are the same whatever the generator.
    """
    first, second = make(1), make(1)
    for name, weight in first.model.state_dict().items():
        if not torch.equal(weight, second.model.state_dict()[name]):
            raise InputError(
                f"cannot be reseeded: made twice after torch.manual_seed(1), {name!r} differs. Draw the weights from torch's, "
                "NumPy's or Python's own generator inside the factory",
                field="workload",
            )

    def drawn(workload: Workload, seed: int) -> list[Tensor]:
        with user_code("the workload's batch"):
            return tensors_in(workload.batch(TRIED_SAMPLES, torch.Generator().manual_seed(seed), device))

    once, again, other = drawn(first, 1), drawn(first, 1), drawn(first, 2)
    if not once:
        raise InputError("batch must give tensors, or mappings or tuples of them", field="workload")
    wrong = next((t for t in once if not t.dim() or len(t) != TRIED_SAMPLES), None)
    if wrong is not None:
        raise InputError(
            f"batch was asked for {TRIED_SAMPLES} samples, and gave a tensor of shape {tuple(wrong.shape)}: the first dimension must be the "
            "samples",
            field="workload",
        )
    if not _equal(once, again):
        raise InputError(
            "cannot be reseeded: batch gave other samples for the same state of its generator. Draw indices from the generator",
            field="workload",
        )
    if _equal(once, other):
        raise InputError(
            "cannot be reseeded: batch gives the same samples whatever its generator. Draw indices from the generator",
            field="workload",
        )


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def load_weights(model: nn.Module, checkpoint: dict[str, Any]) -> None:
    """Gives a model a checkpoint's weights.

    Raises:
        InputError: they are another model's.
    """
    weights = checkpoint.get("model", checkpoint)
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        said = " ".join(str(error).split())[:300]
        raise InputError(
            f"the checkpoint is not of this workload's model: {said}", field="checkpoint"
        ) from None


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Gives an optimizer a checkpoint's state, and not its hyperparameters: those are the plan's.

    Raises:
        InputError: it is another optimizer's.
    """
    own = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
    try:
        optimizer.load_state_dict(copy.deepcopy(state))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"the checkpoint is of another optimizer: {error}", field="checkpoint") from None
    for group, values in zip(optimizer.param_groups, own, strict=True):
        group.update(values)


def read_checkpoint(path: str, device: torch.device) -> dict[str, Any]:
    """Reads a file of torch.save: tensors and plain values only.

    Raises:
        InputError: it cannot be read.
    """
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"cannot be read: {said}", file=path, field="checkpoint") from None
    if not isinstance(found, dict):
        raise InputError(
            f"must hold a dict of weights, got {type(found).__name__}", file=path, field="checkpoint"
        )
    return found
