"""Moving a run that is under way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import msgspec

from isobatch.errors import InputError
from isobatch.forecast.profile import Profile
from isobatch.planning.course import rest_of_epoch
from isobatch.planning.plan import Move, Plan, plan
from isobatch.recipes.recipe import Cluster


class Changes(TypedDict, total=False):
    """Keywords of `plan` that a move may change."""

    policy: str | int
    rule: str
    max_micro_batch: int | None
    max_batch: int | None
    batch_tolerance: float
    micro_batch_multiple: int
    require_multiple: bool
    ragged: bool
    uneven: bool
    beta_half_life: bool
    deadline_hours: float | None
    budget: float | None
    profile: Profile | Sequence[Profile] | None


def replan(
    running: Plan,
    /,
    *,
    at_step: int,
    cluster: Cluster | int | None = None,
    effective_batch: int | None = None,
    **changes: Unpack[Changes],
) -> Plan:
    """Moves a run that is under way to other hardware or another batch.

    Progress is held in samples: the schedule goes on where it stands, at a pace that follows the batch, so that it still ends
    with the run. The learning rate changes by exactly what the rule makes of the new batch, and not at all where the batch
    stays. A warmup or a batch ramp that is under way goes on.

    Args:
        running: the plan that the run has followed so far; it may have been moved before, any number of times.
        at_step: optimizer steps done, counted from the start of the run.
        cluster: where it shall run now (a number is that many GPUs); None: where it ran.
        effective_batch: the batch to reach; None: as the policy has it, under "keep" the batch it had.
        changes: keywords of `plan` that shall be others from here on, such as max_micro_batch or uneven.

    Returns:
        A Plan for the whole run. Steps are counted from the start of the run, in `schedule`, `lr_at`, `warmup_steps` and
        `total_steps` alike; `moves[-1]` has what this move means: where the sampler resumes, what is repeated or skipped, and
        the factor for a velocity that holds the learning rate. PlanLR and PlanSampler take it as it is. A move back at the
        same step gives the plan as it was. Where nothing can be planned there, a Plan with status "infeasible".

    Raises:
        InputError: nothing changes, the plan is infeasible, or `at_step` is not in the run or before its last move.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=256, lr=0.1, optimizer="sgd", dataset_size=5120, duration="10ep", warmup="1ep")
    >>> run = ib.plan(recipe, 8, max_micro_batch=32)
    >>> moved = replan(run, at_step=50, effective_batch=512)
    >>> moved.lr_at(50) / run.lr_at(50), moved.total_steps
    (2.0, 125)
    >>> moved.moves[-1].epoch, moved.moves[-1].offset
    (2, 2560)
    >>> replan(moved, at_step=50, effective_batch=256) == run
    True
    """
    running._layout()
    _check_step(running, at_step)
    if cluster is None and effective_batch is None and not changes:
        raise InputError("nothing changes: give cluster or effective_batch", field="cluster")
    if effective_batch is not None and "policy" in changes:
        raise InputError("an effective_batch is a policy: give one of the two", field="policy")

    before, moves = msgspec.structs.replace(running, moves=()), running.moves
    if moves and moves[-1].step == at_step:  # It never ran: this move takes its place.
        before, moves = moves[-1].before, moves[:-1]
    where = running.cluster if cluster is None else cluster
    asked: dict[str, Any] = {**msgspec.structs.asdict(running.settings), **changes}
    if effective_batch is not None:
        # The policy that the run started with, where it gives this batch too: so a run that moves back is the run it was.
        asked["policy"] = (moves[0].before if moves else before).policy
    after = plan(running.recipe, where, **asked)
    if effective_batch not in (None, after.effective_batch):
        after = plan(running.recipe, where, **{**asked, "policy": effective_batch})
    if after.status == "infeasible" or at_step == 0:
        return after
    if (after.cluster, after.settings) == (before.cluster, before.settings):
        return msgspec.structs.replace(before, moves=moves)

    moves = (*moves, _move(msgspec.structs.replace(before, moves=moves), after, at_step))
    course = msgspec.structs.replace(after, moves=moves)._course
    return msgspec.structs.replace(
        after,
        moves=moves,
        total_steps=course.total_steps,
        warmup_steps=course.warmup_steps,
        # The warmup started under the first plan; here, as everywhere, it moves with the peak.
        warmup_lr=(before.warmup_lr or 0.0) * moves[-1].velocity_factor,
        **_costs(after, moves, course.total_steps),
    )


def _costs(last: Plan, moves: tuple[Move, ...], total_steps: int | None) -> dict[str, float | None]:
    """Hours, GPU-hours and cost of the whole run, each leg at its own pace; None where a leg's is not known."""
    legs = [(move.before, move.step) for move in moves] + [(last, total_steps)]
    hours = gpu_hours = cost = 0.0
    done = 0
    for leg, end in legs:
        if end is None or leg.step_seconds is None:
            return dict.fromkeys(("hours", "gpu_hours", "cost"))
        took = (end - done) * leg.step_seconds / 3600
        hours += took
        gpu_hours += took * leg.world_size
        price = leg.cluster.price_per_gpu_hour
        cost += took * leg.world_size * (math.nan if price is None else price)
        done = end
    return {"hours": hours, "gpu_hours": gpu_hours, "cost": None if math.isnan(cost) else cost}


def _move(running: Plan, after: Plan, step: int) -> Move:
    """What the move from one plan to the other means for the data and the optimizer."""
    here = running.position(step)
    repeated = skipped = 0
    epoch, offset = here.epoch, here.offset
    if running.recipe.dataset_size is not None and epoch is not None and offset:
        stayed, moved = (rest_of_epoch(p, running.recipe.dataset_size, offset) for p in (running, after))
        repeated, skipped = max(0, moved.padded - stayed.padded), max(0, moved.dropped - stayed.dropped)
        if not moved.steps:
            epoch, offset = epoch + 1, 0
    return Move(
        step=step,
        samples=here.samples,
        epoch=epoch,
        offset=offset,
        repeated_samples=repeated,
        skipped_samples=skipped,
        velocity_factor=(after.lr or 0.0) / (running.lr or 1.0),
        before=msgspec.structs.replace(running, moves=()),
    )


def _check_step(running: Plan, step: int) -> None:
    first = running.moves[-1].step if running.moves else 0
    last = None if running.total_steps is None else running.total_steps - 1
    if type(step) is not int or step < first or (last is not None and step > last):
        legal = f"{first} (the last move) or later" if first else "a whole number from 0"
        legal += "" if last is None else f", up to {last}, with a step left to do"
        raise InputError(f"{step!r} is not legal; legal: {legal}", field="at_step")
