"""Moving a run under way."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.limits import plain_whole
from isobatch.planning.course import handover_at, whole_run
from isobatch.planning.plan import Move, Plan, cluster_of, plan_of, workloads_of_profiles
from isobatch.planning.record import PlanOrigin
from isobatch.planning.settings import Keywords, Settings, settings_of
from isobatch.recipes.cluster import Cluster

if TYPE_CHECKING:
    from isobatch.forecast.profile import Profile


def replan(
    running: Plan,
    /,
    *,
    at_step: int,
    cluster: Cluster | int | None = None,
    effective_batch: int | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    **changes: Unpack[Keywords],
) -> Plan:
    """Moves a run under way to other hardware or another batch, or starts it again where it was.

    Progress is counted in samples: the schedule goes on where it is, at a pace that follows the batch, so
    that it still ends with the run. The learning rate changes by exactly what the rule makes of the new
    batch, and not at all where the batch stays. A warmup or a batch ramp that is under way goes on; stages of
    a ramp that are behind it need not divide any more.

    Args:
        running: the plan that the run has followed so far; it may have been moved before, any number of
            times.
        at_step: optimizer steps done, counted from the start of the run.
        cluster: the target (a number is that many GPUs), which may be the old one; None: where it ran.
        effective_batch: the batch to reach; None: as the policy has it, under "keep" the batch it had.
        profile: as in `plan`; None: that of the running plan, which a plan from a file does not have.
        changes: keywords of `plan` that are others from here on, such as max_micro_batch or split.

    Returns:
        A Plan for the whole run. Steps are counted from the start of the run, in `schedule`, `lr_at`,
        `warmup_steps` and `total_steps` alike; `moves[-1]` has what this move means: where the sampler
        resumes, what is repeated or skipped, and the factor for a velocity that holds the learning rate.
        PlanLR and PlanSampler take it as it is. A move at the step of the last one takes its place. Where
        nothing can be planned there, a Plan with status "infeasible".

    Raises:
        InputError: nothing changes, the plan is infeasible, or `at_step` is not in the run or before its last
            move.

    >>> import isobatch as ib
    >>> epochs = {"dataset_size": 5120, "duration": "10ep", "warmup": "1ep"}
    >>> recipe = ib.Recipe(effective_batch=256, lr=0.1, optimizer="sgd", **epochs)
    >>> run = ib.plan(recipe, 8, max_micro_batch=32)
    >>> moved = replan(run, at_step=50, effective_batch=512)
    >>> moved.lr_at(50) / run.lr_at(50), moved.total_steps
    (2.0, 125)
    >>> moved.moves[-1].epoch, moved.moves[-1].offset
    (2, 2560)
    >>> replan(moved, at_step=50, effective_batch=256).schedule == run.schedule
    True
    """
    if not isinstance(running, Plan):
        raise must_be("a Plan", running, field="plan", todo="Plan.load reads one from a file")
    if running.status == "infeasible":
        raise InputError(running.explain())
    at_step, effective_batch = plain_whole(at_step), plain_whole(effective_batch)
    _check_step(running, at_step)
    if cluster is None and effective_batch is None and profile is None and not changes:
        raise InputError("nothing changes: give cluster or effective_batch", field="cluster")
    if type(plain_whole(changes.get("policy"))) is int:
        raise must_be(
            "a name", changes["policy"], field="policy", todo="a batch to reach is effective_batch="
        )
    if getattr(effective_batch, "ndim", 0):
        raise must_be("a whole number of samples", effective_batch, field="effective_batch")
    if effective_batch is not None and "policy" in changes:
        raise InputError("an effective_batch is a policy: give one of the two", field="policy")

    changed = settings_of(changes)
    settings = running.settings._replace(**{name: getattr(changed, name) for name in changes})
    where = running.cluster if cluster is None else cluster_of(cluster)
    workloads = running.origin.workloads if profile is None else workloads_of_profiles(profile)
    if effective_batch is None:
        return _at(running, at_step, workloads, where, settings)
    # The policy that the run started with, where it gives this batch too: so a run that moves back is the run
    # it was.
    first = running.legs[0][1].settings.policy
    after = _at(running, at_step, workloads, where, settings._replace(policy=first))
    if after.effective_batch == effective_batch:
        return after
    return _at(running, at_step, workloads, where, settings._replace(policy=effective_batch))


def _at(
    running: Plan, step: int, workloads: _core.Workloads | None, cluster: Cluster, settings: Settings
) -> Plan:
    """Moves the run after a step to a cluster, by settings; an infeasible plan's options are such moves."""
    ramped = running.recipe.ramp is not None
    consumed = running.course.position(step).samples if ramped else 0
    after = plan_of(running.recipe, cluster, settings, workloads, consumed)
    if after.status == "infeasible":
        return after.with_origin(PlanOrigin(partial(_at, running, step, workloads), workloads))
    if step > 0:
        # A move at the same step never ran: this one takes its place.
        moves = running.moves[:-1] if running.moves and running.moves[-1].step == step else running.moves
        after = _moved(running, moves, after, step)
    return after.with_origin(PlanOrigin(None, workloads))


def _moved(running: Plan, moves: tuple[Move, ...], after: Plan, step: int) -> Plan:
    """Makes the plan of a run with `moves` behind it, moving to `after` at a step."""
    is_replaced = len(moves) < len(running.moves)
    before = running.moves[-1].before if is_replaced else msgspec.structs.replace(running, moves=()).require()
    earlier = moves[-1].before if moves else None
    if earlier and (before.cluster, before.settings) == (earlier.cluster, earlier.settings):
        # Stopped and started again without a change: one leg, not two.
        moves, before = moves[:-1], earlier
    started = msgspec.structs.replace(before, moves=moves)
    facts = handover_at(started.course, after, step)
    move = Move(**msgspec.structs.asdict(facts), before=before.require())
    moved_plan = msgspec.structs.replace(after, moves=(*moves, move))
    changes: dict[str, Any] = whole_run(moved_plan.legs)
    moved: Plan = msgspec.structs.replace(moved_plan, **changes)
    return moved


def _check_step(running: Plan, step: int) -> None:
    first = running.moves[-1].step if running.moves else 0
    last = None if running.total_steps is None else running.total_steps - 1
    if last is not None and last < first:
        raise InputError(f"the run ends at step {first:,}, the step of its last move: no step is left")
    if type(step) is not int or step < first or (last is not None and step > last):
        legal = f"{first} (the last move) or later" if first else "a whole number from 0"
        legal += "" if last is None else f", up to {last}, with a step left to do"
        raise must_be(legal, step, field="at_step")
