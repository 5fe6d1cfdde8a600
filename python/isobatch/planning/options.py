"""What would work instead of a plan that cannot be: each way is planned, not guessed, and ranked by what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from isobatch.planning.planned import Planned
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster

MOST_NODES = 64
"""How far other node counts are looked for, in each direction."""
MOST_GPUS = 1024
"""How many more GPUs on one node are looked at for a run that misses its deadline."""
MOST_CHANGE = 0.25
"""A larger change of the batch is no way out, but another recipe."""

P = TypeVar("P", bound=Planned)
Make = Callable[[Cluster, Settings], P]


def options(asked: Planned, make: Make[P]) -> list[P]:
    """The ways out of an infeasible plan.

    Args:
        asked: the infeasible plan.
        make: plans the same recipe on a cluster, by settings.

    Returns:
        Feasible plans, best first: on the same GPUs, or as many of them as model_parallel divides, a batch that divides (the
        smallest change first), the exact batch with weights, then the nearest other GPU counts, then plans without one of the
        settings asked for. A plan's own cluster
        and settings are what makes it.
    """
    if asked.status != "infeasible":
        return []
    found: list[P] = []
    for cluster, settings in _candidates(asked, make):
        plan = make(cluster, settings)
        if plan.status == "infeasible" or (
            settings.batch_tolerance and abs(plan.batch_change or 0.0) > MOST_CHANGE
        ):
            continue
        if not any((plan.layout, plan.cluster) == (it.layout, it.cluster) for it in found):
            found.append(plan)
    return found


def _candidates(asked: Planned, make: Make[P]) -> Iterator[tuple[Cluster, Settings]]:
    cluster, settings = _whole_replicas(asked), asked.settings
    if cluster != asked.cluster:
        yield cluster, settings
    yield from (
        (cluster, settings._replace(batch_tolerance=share, decrease_batch=False))
        for share in _tolerances(asked, cluster, make)
    )
    weighted = settings._replace(ragged=False, uneven=False, require_multiple=False)
    if settings.accumulation_multiple == settings.min_accumulation == 1:
        if settings.fixed_micro_batch is None and settings.min_micro_batch == 1:
            yield cluster, weighted._replace(ragged=True)
        yield cluster, weighted._replace(uneven=True)
    for other in _clusters(asked, make):
        yield other, settings
    replicas = (
        cluster.nodes * cluster.gpus_per_node // (cluster.model_parallel or asked.recipe.model_parallel)
    )
    if settings.policy == "keep" and asked.recipe.effective_batch < replicas:
        # Fewer samples than replicas: who wants all of these GPUs needs a sample for each, and the rule's learning rate.
        yield cluster, settings._replace(policy=replicas)
    if Reason.BATCH_ABOVE_DATASET in asked.reasons:
        yield cluster, settings._replace(short_epochs=True)
    if Reason.BETA_NOT_POSITIVE in asked.reasons:
        # β^k agrees with 1 − k(1 − β) to first order, and stays above 0.
        yield cluster, settings._replace(rule="sde_smooth")
    # Any setting may be what forbids the plan; policy and rule, which say what is wanted at all, come last.
    for name in reversed(settings.changed()):
        yield cluster, settings._replace(**{name: getattr(DEFAULTS, name)})


def _whole_replicas(asked: Planned) -> Cluster:
    """The cluster without the GPUs, or nodes, that are left over where model_parallel does not divide them."""
    cluster = asked.cluster
    parallel = cluster.model_parallel or asked.recipe.model_parallel
    name, unit = ("gpus_per_node", 1) if cluster.nodes == 1 else ("nodes", cluster.gpus_per_node)
    step = math.lcm(unit, parallel) // unit
    whole = getattr(cluster, name) // step * step
    return msgspec.structs.replace(cluster, **{name: whole}) if whole else cluster


def _tolerances(asked: Planned, cluster: Cluster, make: Make[P]) -> list[float]:
    """Tolerances that give a batch, each just wide enough, the smallest change of the batch first.

    A batch whose micro-batch is half of what another one allows, or less, is left out: many small passes cost more than a
    few samples.
    """
    found: dict[float, P] = {}
    for share in (0.01, 0.02, 0.05, 0.1, 0.25):
        if share > asked.settings.batch_tolerance:
            plan = make(cluster, asked.settings._replace(batch_tolerance=share, decrease_batch=False))
            if plan.status != "infeasible" and plan.batch_change is not None:
                found[_short(_moved(asked, plan))] = plan
    largest = max((plan.layout.micro_batch for plan in found.values()), default=0)
    good = {share for share, plan in found.items() if 2 * plan.layout.micro_batch > largest}
    return sorted(good)[:2]


def _moved(asked: Planned, plan: Planned) -> float:
    """How far the batch is from the one that was asked for, as a fraction of it."""
    policy, settings = asked.settings.policy, plan.settings
    if type(policy) is int:
        return abs(plan.layout.effective_batch - policy) / policy
    if policy == "keep":
        return abs(plan.batch_change or 0.0)
    return settings.batch_tolerance  # under the other policies the batch follows the GPUs


def _short(share: float) -> float:
    """The share in two significant digits, upwards."""
    if share == 0:
        return 0.0
    scale: float = 10.0 ** (1 - math.floor(math.log10(share)))
    return round(math.ceil(round(share * scale, 6)) / scale, 12)


def _clusters(asked: Planned, make: Make[P]) -> Iterator[Cluster]:
    """The nearest clusters below and above on which the same settings give a plan."""
    cluster = asked.cluster
    if cluster.nodes > 1:
        for direction in (-1, 1):
            for far in range(1, MOST_NODES + 1):
                nodes = cluster.nodes + direction * far
                if nodes < 1:
                    break
                other = msgspec.structs.replace(cluster, nodes=nodes)
                if make(other, asked.settings).status != "infeasible":
                    yield other
                    break
        return
    if Reason.MISSES_DEADLINE in asked.reasons:
        more = range(cluster.gpus_per_node + 1, cluster.gpus_per_node + MOST_GPUS + 1)
        larger = (msgspec.structs.replace(cluster, gpus_per_node=gpus) for gpus in more)
        # The fewest that meet it.
        yield from islice((it for it in larger if make(it, asked.settings).status != "infeasible"), 1)
        return
    counts = [gpus for gpus in asked.nearest_world_sizes if gpus is not None]
    for gpus in counts or _halves(cluster.gpus_per_node):
        other = msgspec.structs.replace(cluster, gpus_per_node=gpus)
        if make(other, asked.settings).status != "infeasible":
            yield other
            if not counts:
                return


def _halves(gpus: int) -> Iterator[int]:
    while gpus > 1:
        gpus //= 2
        yield gpus
