"""Ways out of an infeasible plan: each is planned, not guessed, and ranked by its cost."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TypeVar

import msgspec

from isobatch.limits import within
from isobatch.planning.record import PlanRecord, gpu_multiple, parallel_of
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.reason import Reason
from isobatch.recipes.cluster import NODE_GPUS, Cluster

MAX_NODES_AWAY = 64
"""How far other node counts are looked for, in each direction."""
MAX_BATCH_CHANGE = 0.25
"""A larger change of the batch is no way out, but another recipe."""

P = TypeVar("P", bound=PlanRecord)
Make = Callable[[Cluster, Settings], P]


def options(refused: PlanRecord, make: Make[P]) -> list[P]:
    """Plans the ways out of an infeasible plan, or of a coupled one with another micro-batch, best first.

    On the same GPUs, or as many of them as hold whole replicas and sets of experts, a batch that divides (the
    smallest change first), the exact batch with weights, then the nearest other GPU counts, then a batch that
    grows with the GPUs, then plans without one of the settings asked for; of a coupled recipe first those
    with the tuned micro-batch.
    """
    options: list[P] = []
    for cluster, settings in _candidates(refused, make):
        plan = make(cluster, settings)
        if plan.status == "infeasible" or (
            settings.batch_tolerance and abs(plan.batch_change or 0.0) > MAX_BATCH_CHANGE
        ):
            continue
        if not any((plan.layout, plan.cluster) == (option.layout, option.cluster) for option in options):
            options.append(plan)
    return sorted(options, key=lambda plan: Reason.COUPLED_MOVED in plan.reasons)


def _candidates(refused: PlanRecord, make: Make[P]) -> Iterator[tuple[Cluster, Settings]]:
    cluster, settings = _whole_replicas(refused), refused.settings
    if refused.status != "infeasible":
        yield from _pinned(refused, cluster, make)
        return
    if cluster != refused.cluster:
        yield cluster, settings
    yield from (
        (cluster, _without_smaller(settings)._replace(batch_tolerance=share))
        for share in _tolerances(refused, cluster, make)
    )
    if settings.accumulation_multiple == 1:
        if settings.min_micro_batch == 1:
            yield cluster, settings._replace(split="ragged", micro_batch_multiple=1)
        yield cluster, settings._replace(split="uneven")
    for neighbour in _clusters(refused, make):
        yield neighbour, settings
    if _outgrows_batch(refused):
        yield cluster, settings._replace(policy="grow")
    replicas = cluster.nodes * cluster.gpus_per_node // parallel_of(refused, "model_parallel")
    if settings.policy == "keep" and refused.recipe.effective_batch < replicas:
        # Fewer samples than replicas: who wants all of these GPUs needs a sample for each, and the rule's
        # learning rate.
        yield cluster, settings._replace(policy=replicas)
    if Reason.BATCH_ABOVE_DATASET in refused.reasons:
        yield cluster, settings._replace(short_epochs=True)
    if Reason.BETA_NOT_POSITIVE in refused.reasons:
        # β^k agrees with 1 − k(1 − β) to first order, and stays above 0.
        yield cluster, settings._replace(rule="sde_smooth")
    # Any setting may be what forbids the plan; policy and rule, which say what is wanted at all, come last.
    for name in reversed(settings.changed()):
        yield cluster, settings._replace(**{name: getattr(DEFAULTS, name)})
    if None not in (settings.deadline_hours, settings.budget):
        yield cluster, settings._replace(deadline_hours=None, budget=None)
    if refused.recipe.batch_norm or refused.recipe.coupled:
        yield from _pinned(refused, cluster, make)


def _outgrows_batch(refused: PlanRecord) -> bool:
    """Tells whether the GPUs grew past an even split of the batch: most people then let the batch grow."""
    tuned = refused.recipe.gpus
    is_larger = tuned is not None and refused.world_size > tuned
    return is_larger and refused.settings.policy == "keep" and Reason.NOT_DIVISIBLE in refused.reasons


def _pinned(refused: PlanRecord, cluster: Cluster, make: Make[P]) -> Iterator[tuple[Cluster, Settings]]:
    """Yields ways to train with the tuned micro-batch: here, on the nearest clusters, at a larger batch."""
    micro, batch = refused.recipe.micro_batch, refused.asked_batch
    is_full = refused.cap_source == "memory" and (refused.micro_batch_cap or 0) < (micro or 0)
    if micro is None or is_full or Reason.ABOVE_MEMORY in refused.reasons:
        return
    settings = refused.settings._replace(
        min_micro_batch=micro, max_micro_batch=micro, micro_batch_multiple=1, split="even"
    )
    yield cluster, settings
    for neighbour in _clusters(make(cluster, settings), make):
        yield neighbour, settings
    share = micro * (cluster.nodes * cluster.gpus_per_node // parallel_of(refused, "model_parallel"))
    if batch is not None and share:  # there are GPUs for a replica
        yield cluster, settings._replace(policy=math.ceil(batch / share) * share)


def _without_smaller(settings: Settings) -> Settings:
    """Frees the settings of split="smaller", as it excludes a tolerance."""
    return settings._replace(split="even") if settings.split == "smaller" else settings


def _whole_replicas(refused: PlanRecord) -> Cluster:
    """Drops the GPUs, or nodes, left over beside whole replicas and sets of experts."""
    cluster, parallel = refused.cluster, gpu_multiple(refused)
    name, unit = ("gpus_per_node", 1) if cluster.nodes == 1 else ("nodes", cluster.gpus_per_node)
    step = math.lcm(unit, parallel) // unit
    whole = getattr(cluster, name) // step * step
    return msgspec.structs.replace(cluster, **{name: whole}) if whole else cluster


def _tolerances(refused: PlanRecord, cluster: Cluster, make: Make[P]) -> list[float]:
    """Finds tolerances with a batch, each just wide enough, the smallest change of the batch first.

    A batch whose micro-batch is half of what another one allows, or less, is left out: many small passes cost
    more than a few samples.
    """
    by_share: dict[float, P] = {}
    for share in (0.01, 0.02, 0.05, 0.1, 0.25):
        if not within(share, refused.settings.batch_tolerance):
            plan = make(cluster, _without_smaller(refused.settings)._replace(batch_tolerance=share))
            if plan.status != "infeasible" and plan.batch_change is not None:
                by_share[_short(_moved(refused, plan))] = plan
    largest = max((plan.layout.micro_batch for plan in by_share.values()), default=0)
    good = {share for share, plan in by_share.items() if 2 * plan.layout.micro_batch > largest}
    return sorted(good)[:2]


def _moved(refused: PlanRecord, plan: PlanRecord) -> float:
    """Measures the batch's distance from the one asked for, as a fraction of it."""
    policy, settings = refused.settings.policy, plan.settings
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


def _clusters(refused: PlanRecord, make: Make[P]) -> Iterator[Cluster]:
    """Yields the nearest clusters below and above with a plan by the same settings."""
    nodes, gpus = refused.cluster.nodes, refused.cluster.gpus_per_node

    def feasible(shapes: Iterable[tuple[int, int]]) -> Iterator[Cluster]:
        clusters = (
            msgspec.structs.replace(refused.cluster, nodes=nodes, gpus_per_node=gpus)
            for nodes, gpus in shapes
        )
        return (cluster for cluster in clusters if make(cluster, refused.settings).status != "infeasible")

    def larger(least: int) -> Iterator[tuple[int, int]]:
        """Yields the shapes above one node: where times depend on it, a fuller node, then whole nodes."""
        if refused.origin.workloads is None:
            return iter([(1, least)])
        size = max(gpus, NODE_GPUS)
        whole = ((count, size) for count in range(2, MAX_NODES_AWAY + 2))
        return chain(((1, count) for count in range(least, size + 1)), whole)

    fewer, more = refused.nearest_world_sizes
    if nodes > 1:
        halves = (nodes >> times for times in range(1, nodes.bit_length()))
        below = [*range(nodes - 1, max(0, nodes - MAX_NODES_AWAY - 1), -1), *halves]
        above = range(nodes + 1, nodes + MAX_NODES_AWAY + 1)
        for counts in (below, above):
            yield from islice(feasible((count, gpus) for count in counts), 1)
    elif Reason.MISSES_DEADLINE in refused.reasons:
        # The fewest that meet it.
        yield from islice(feasible(larger(gpus + 1)), 1)
    elif fewer or more:
        yield from feasible([(1, fewer)] if fewer else [])
        yield from islice(feasible(larger(more)), 1) if more else ()
    else:
        halves = (gpus >> times for times in range(1, gpus.bit_length()))
        yield from islice(feasible((1, count) for count in halves), 1)
