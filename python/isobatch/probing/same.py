"""The promise of the name: the same training at every split."""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
import torch

from isobatch.diagnosis.tensors import difference
from isobatch.planning.plan import Plan
from isobatch.planning.plan import plan as plan_recipe
from isobatch.probing.lab import Lab, own_randomness
from isobatch.probing.options import Publish
from isobatch.probing.training import lr_course, shares, unusable
from isobatch.words import counted

STEPS = 12
SAME = 1e-9
"""Relative, in double precision. Rounding alone leaves about 1e-15 a step, which an optimizer may amplify."""
MAX_SAMPLES = 1 << 20

Sizes: TypeAlias = list[list[int]]
Legs: TypeAlias = list[tuple[int, Sizes]]


class SplitFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Compares a split of the batch: how far its weights are from those of the batch on one replica, relative L2, in double precision."""

    split: str
    difference: float
    same: bool


class SameFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Tells whether the plan trains the same as the tuned recipe. `missing` are splits that nobody trained before the budget ended."""

    steps: int
    splits: tuple[SplitFinding, ...]
    missing: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether every split trains the same: all of them were trained, and none differs."""
        return not self.missing and all(split.same for split in self.splits)

    def lines(self) -> list[str]:
        """Says whether every split trains the same."""
        width = max(len(name) for name in (*(split.split for split in self.splits), *self.missing))
        if self.same:
            end = "The same training at every split: the weights agree within floating point."
        elif all(split.same for split in self.splits):
            end = "The same training at every split that was trained; the others are not known."
        else:
            end = (
                "Not the same training at every split. What depends on the micro-batch does that: batch norm, noise drawn in the "
                "model, or a loss that is no mean over samples."
            )
        steps = counted(self.steps, "step")
        lines = [f"{steps} from one seed in double precision, against the whole batch on one replica:"]
        for one in self.splits:
            differs = "" if one.same else "  NOT THE SAME"
            lines.append(f"  {one.split:<{width}}  weights differ by {one.difference:.1e}{differs}")
        return [*lines, *(f"  {name:<{width}}  not trained" for name in self.missing), end]


def measure_same(lab: Lab, say: Callable[[str], None], publish: Publish) -> None:
    """Trains the tuned recipe on one replica and the plan in many splits, from one seed.

    Raises:
        InputError: the loss is not finite.
        Expired: the budget is spent.
    """
    steps = max(2, min(STEPS, MAX_SAMPLES // lab.planned_batch))
    tuned = _tuned(lab)
    wanted = _wanted(lab, tuned, steps)
    found: list[SplitFinding] = []
    with own_randomness():
        reference = _trained(lab, tuned, [(steps, [[lab.planned_batch]])], steps)
        for name, plan, legs in wanted:
            error = difference(_trained(lab, plan, legs, steps), reference).error
            found.append(SplitFinding(split=name, difference=error, same=error <= SAME))
            say(f"{name}: weights differ by {error:.1e}")
            missing = tuple(left for left, _, _ in wanted[len(found) :])
            publish(partial(SameFinding, steps=steps, splits=tuple(found), missing=missing))


def splits_of(batch: int, own: Sizes) -> list[tuple[str, Sizes]]:
    """Lists splits of a batch to try beside the plan's own: over replicas, with accumulation, ragged and uneven.

    >>> [name for name, _ in splits_of(64, [[8] * 4] * 2)]
    ["the plan's own", '2 × 32', '4 × 16', '8 × 8', '2 × 8 × 4', 'ragged over 3', 'uneven over 3']
    """
    found: list[tuple[str, Sizes]] = [("the plan's own", own)]
    found += [
        (f"{replicas} × {batch // replicas}", [[batch // replicas]] * replicas)
        for replicas in (2, 4, 8)
        if batch % replicas == 0 and batch > replicas
    ]
    if batch % 8 == 0:
        found.append((f"2 × {batch // 8} × 4", [[batch // 8] * 4] * 2))
    if batch >= 6:
        counts = [batch // 3 + (rank < batch % 3) for rank in range(3)]
        ragged = [[n - n // 2, n // 2] for n in counts]
        found.append(("ragged over 3", ragged))
    if (passes := next((n for n in (8, 4, 5, 7) if batch % n == 0), None)) is not None:
        each = batch // passes
        found.append(("uneven over 3", [[each] * (passes // 3 + (rank < passes % 3)) for rank in range(3)]))
    return found


def _tuned(lab: Lab) -> Plan:
    """Plans the tuned recipe on its own hardware, at the planned batch; the plan itself where the batch changed within a
    tolerance."""
    recipe = lab.plan.recipe
    if recipe.effective_batch != lab.planned_batch:
        return lab.plan
    found = plan_recipe(recipe, recipe.gpus or 1)
    return lab.plan if found.status == "infeasible" else found


def _wanted(lab: Lab, tuned: Plan, steps: int) -> list[tuple[str, Plan, Legs]]:
    """Lists the comparisons: a name, the plan of learning rates and optimizer, and the splits one after the other."""
    own = _sizes(lab.plan)
    splits = splits_of(lab.planned_batch, own)
    found = [(name, lab.plan, [(steps, sizes)]) for name, sizes in splits]
    if tuned is not lab.plan:
        found.insert(0, ("the tuned recipe's own", tuned, [(steps, _sizes(tuned))]))
    half = steps // 2
    elastic = [(half, own), (steps - half, splits[-1][1])]
    return [*found, ("elastic, moved half-way", lab.plan, elastic)]


def _sizes(plan: Plan) -> Sizes:
    return [[int(n) for n in plan.micro_batches(rank)] for rank in range(plan.layout.data_parallel)]


def _trained(lab: Lab, plan: Plan, legs: Legs, steps: int) -> list[torch.Tensor]:
    """Returns the weights after some steps in one split after the other, with the plan's whole schedule made so short; between two
    splits the run is stopped, and goes on from its checkpoint in a new training."""
    lr_at = lr_course(plan, plan.require().lr, steps)
    training = lab.training(lab.planned_batch, 0, plan=plan, double=True)
    step = 0
    for leg, (count, sizes) in enumerate(legs):
        if leg:
            state, consumed = training.state(), training.consumed
            training = lab.training(lab.planned_batch, 0, plan=plan, checkpoint=state, double=True)
            training.consumed = consumed
        for _ in range(count):
            loss = training.step(shares(sizes), lr_at(step))
            if not np.isfinite(loss):
                raise unusable(f"the loss is {loss} at step {step}, learning rate {lr_at(step):g}")
            step += 1
    return [p.detach().clone() for p in training.trained]
