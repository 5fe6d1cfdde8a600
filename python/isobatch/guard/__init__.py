"""Stops a training with a `GuardError` when it departs from its plan: `guard(plan)`.

Each file makes one kind of check; `session.py` makes them in turn, and `run.py` is their common ground.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isobatch.equivalence.laws import Cause
from isobatch.guard.error import GuardError
from isobatch.planning.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from isobatch.guard.session import Guard

__all__ = ["Cause", "GuardError", "guard"]


def guard(
    plan: Plan | None = None,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    weight: Callable[[Any], float] | None = None,
) -> Guard:
    """Makes a guard, to stop a training script in its first minute if it departs from the plan.

    Before the first step: the world size, the ranks' weights, the sampler. At the first two steps:
    micro-batch and accumulation, the samples of all ranks, gradients equal on all ranks and as large as those
    of the mean loss. At every step: the accumulation, the learning rate of all parameter groups, and whether
    the gradient is finite. After each epoch: the samples it covered, and that its order was new. At steps 2,
    4, 8, 16 …: the ranks' weights. A plan that `replan` moved, or a run that goes on from a checkpoint, is
    checked from there.

    Args:
        plan: what the script should do; None: the plan that `isobatch exec` handed to the script.
        loss: (model, batch) → the mean loss over the samples of a loader's batch, a scalar; the reference for
            the gradient's size. None: that is left unchecked; with transformers, a causal language model's
            own loss over the labels that count.
        weight: batch → what the loss is a mean over, where that is not samples.

    Returns:
        A Guard: call `.attach(model, optimizer, loader)` in a loop of your own, or pass `.lightning()` or
            `.transformers()` as a callback. It raises `GuardError`, on all ranks if all of them see the
            fault.

    Raises:
        InputError: the plan is infeasible, or none was given and none was handed.

    >>> import torch, isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
    >>> plan = ib.plan(recipe, 1)
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    >>> loader = torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=4)
    >>> watch = guard(plan, loss=lambda model, x: model(x).mean()).attach(model, optimizer, loader)
    >>> for x in loader:  # doctest: +ELLIPSIS
    ...     model(x).mean().backward()
    ...     optimizer.step()
    Traceback (most recent call last):
    isobatch.guard.GuardError: isobatch guard, before step 0: learning rate 0.2, 0.1 planned → another ...
    """
    from isobatch.guard.session import Guard
    from isobatch.planning.handed import handed_plan
    from isobatch.planning.plan import refuse_no_plan

    plan = handed_plan() if plan is None else plan
    refuse_no_plan(plan)
    return Guard(plan, loss, weight)
