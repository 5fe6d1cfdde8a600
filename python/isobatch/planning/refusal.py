"""An infeasible plan: why, in words, and what would work instead, each way planned, not guessed, and ranked by what it costs."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import msgspec

from isobatch.errors import InputError
from isobatch.planning.record import PlanRecord, worked_out
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster
from isobatch.words import cited, count, counted, duration, exact, figure, percent, ranged

MAX_NODES_AWAY = 64
"""How far other node counts are looked for, in each direction."""
MAX_MORE_GPUS = 1024
"""How many more GPUs on one node are looked at for a run that misses its deadline."""
MAX_BATCH_CHANGE = 0.25
"""A larger change of the batch is no way out, but another recipe."""

P = TypeVar("P", bound=PlanRecord)
Make = Callable[[Cluster, Settings], P]


def options(asked: PlanRecord, make: Make[P]) -> list[P]:
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
    found: list[P] = []
    for cluster, settings in _candidates(asked, make):
        plan = make(cluster, settings)
        if plan.status == "infeasible" or (
            settings.batch_tolerance and abs(plan.batch_change or 0.0) > MAX_BATCH_CHANGE
        ):
            continue
        if not any((plan.layout, plan.cluster) == (it.layout, it.cluster) for it in found):
            found.append(plan)
    return found


def _candidates(asked: PlanRecord, make: Make[P]) -> Iterator[tuple[Cluster, Settings]]:
    cluster, settings = _whole_replicas(asked), asked.settings
    if cluster != asked.cluster:
        yield cluster, settings
    if _outgrows_batch(asked):
        yield cluster, settings._replace(policy="grow")
    yield from (
        (cluster, _without_smaller(settings)._replace(batch_tolerance=share))
        for share in _tolerances(asked, cluster, make)
    )
    if settings.accumulation_multiple == 1:
        if settings.min_micro_batch == 1:
            yield cluster, settings._replace(split="ragged", micro_batch_multiple=1)
        yield cluster, settings._replace(split="uneven")
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


def _outgrows_batch(asked: PlanRecord) -> bool:
    """Tells whether the GPUs grew past an even split of the batch: most people then let the batch grow with them."""
    tuned = asked.recipe.gpus
    is_larger = tuned is not None and asked.world_size > tuned
    return is_larger and asked.settings.policy == "keep" and Reason.NOT_DIVISIBLE in asked.reasons


def _without_smaller(settings: Settings) -> Settings:
    """Frees the settings of split="smaller", which goes with no tolerance."""
    return settings._replace(split="even") if settings.split == "smaller" else settings


def _whole_replicas(asked: PlanRecord) -> Cluster:
    """Drops the GPUs, or nodes, left over where model_parallel does not divide them."""
    cluster = asked.cluster
    parallel = cluster.model_parallel or asked.recipe.model_parallel
    name, unit = ("gpus_per_node", 1) if cluster.nodes == 1 else ("nodes", cluster.gpus_per_node)
    step = math.lcm(unit, parallel) // unit
    whole = getattr(cluster, name) // step * step
    return msgspec.structs.replace(cluster, **{name: whole}) if whole else cluster


def _tolerances(asked: PlanRecord, cluster: Cluster, make: Make[P]) -> list[float]:
    """Finds tolerances with a batch, each just wide enough, the smallest change of the batch first.

    A batch whose micro-batch is half of what another one allows, or less, is left out: many small passes cost more than a
    few samples.
    """
    found: dict[float, P] = {}
    for share in (0.01, 0.02, 0.05, 0.1, 0.25):
        if share > asked.settings.batch_tolerance:
            plan = make(cluster, _without_smaller(asked.settings)._replace(batch_tolerance=share))
            if plan.status != "infeasible" and plan.batch_change is not None:
                found[_short(_moved(asked, plan))] = plan
    largest = max((plan.layout.micro_batch for plan in found.values()), default=0)
    good = {share for share, plan in found.items() if 2 * plan.layout.micro_batch > largest}
    return sorted(good)[:2]


def _moved(asked: PlanRecord, plan: PlanRecord) -> float:
    """Measures the batch's distance from the one asked for, as a fraction of it."""
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


def _clusters(asked: PlanRecord, make: Make[P]) -> Iterator[Cluster]:
    """Yields the nearest clusters below and above with a plan by the same settings."""
    nodes, gpus = asked.cluster.nodes, asked.cluster.gpus_per_node

    def feasible(field: str, counts: Iterable[int]) -> Iterator[Cluster]:
        others = (msgspec.structs.replace(asked.cluster, **{field: count}) for count in counts)
        return (it for it in others if make(it, asked.settings).status != "infeasible")

    if nodes > 1:
        below = range(nodes - 1, max(0, nodes - MAX_NODES_AWAY - 1), -1)
        above = range(nodes + 1, nodes + MAX_NODES_AWAY + 1)
        for counts in (below, above):
            yield from islice(feasible("nodes", counts), 1)
    elif Reason.MISSES_DEADLINE in asked.reasons:
        # The fewest that meet it.
        yield from islice(feasible("gpus_per_node", range(gpus + 1, gpus + MAX_MORE_GPUS + 1)), 1)
    elif near := [count for count in asked.nearest_world_sizes if count is not None]:
        yield from feasible("gpus_per_node", near)
    else:
        halves = (gpus >> times for times in range(1, gpus.bit_length()))
        yield from islice(feasible("gpus_per_node", halves), 1)


# ---- in words ----

CAPS = {
    "fixed": "min_micro_batch and max_micro_batch",
    "max_micro_batch": "max_micro_batch",
    "memory": "what fits in memory by the profile",
    "tuned": "the tuned micro-batch",
}


def split_of(plan: PlanRecord) -> str:
    """Writes how a step is split: micro-batch × accumulation × replicas."""
    micro, accumulation, replicas, _, irregular = plan.layout
    return f"{micro} × {accumulation} × {replicas}{', weighted' if irregular else ''}"


def refusal(plan: PlanRecord, options: Sequence[PlanRecord]) -> Iterator[str]:
    yield f"Cannot train on {counted(plan.world_size, 'GPU')} as asked:"
    for reason in plan.reasons:
        if reason.severity == "infeasible":
            text = _WHY.get(reason)
            why = (
                (text and text(plan))
                or _over(plan, reason, options)
                or _mute(plan, reason, options)
                or reason.text
            )
            yield f"  - {cited(why, reason.source)}"


def _over(plan: PlanRecord, reason: Reason, options: Sequence[PlanRecord]) -> str | None:
    """By how much the run is above its limit: what it takes here without the limit, where that is among what would work."""
    limit = {Reason.MISSES_DEADLINE: "deadline_hours", Reason.ABOVE_BUDGET: "budget"}.get(reason)
    if limit is None:
        return None
    without: dict[str, Any] = {limit: None}
    free = plan.settings._replace(**without)
    here = next((it for it in options if (it.cluster, it.settings) == (plan.cluster, free)), None)
    if here is None:
        return None
    if reason is Reason.MISSES_DEADLINE:
        most = (plan.settings.deadline_hours or 0.0) * 3600
        return f"the run takes {time_of(here)}, over the deadline of {duration(most)} (deadline_hours)"
    return f"the run costs {spent_of(here, here.cost)}, above the budget of {figure(plan.settings.budget)}"


LINK_UNKNOWN = "the profile lacks a link that the run uses (else inter_gb_s, intra_gb_s of the cluster)"


def _mute(plan: PlanRecord, reason: Reason, options: Sequence[PlanRecord]) -> str | None:
    """Names the link that a profile lacks: where something else would work, and it has hours there, there is one."""
    timed = any(option.hours is not None for option in options)
    if reason is not Reason.NEEDS_PROFILE or Reason.OTHER_HARDWARE in plan.reasons or not timed:
        return None
    return f"{LINK_UNKNOWN}, so that nobody can check deadline_hours and budget"


def _not_divisible(plan: PlanRecord) -> str | None:
    batch, groups = plan.asked_batch, plan.settings.batch_multiple
    if batch is None:
        return None
    if batch % groups:
        return f"{exact(batch)} samples are not a multiple of batch_multiple {exact(groups)}"
    return f"{counted(batch, 'sample')} cannot be split evenly over {exact(plan.data_parallel)} replicas"


def _accumulation_unmet(plan: PlanRecord) -> str | None:
    batch, replicas, settings = plan.asked_batch, plan.data_parallel, plan.settings
    if batch is None or replicas is None:
        return None
    share = f"{counted(batch // replicas, 'sample')} for each of {counted(replicas, 'replica')}"
    return f"{share} cannot be split into micro-batches whose number is a multiple of {exact(settings.accumulation_multiple)}"


def _micro_batch_unmet(plan: PlanRecord) -> str | None:
    batch, replicas, settings = plan.asked_batch, plan.data_parallel, plan.settings
    if plan.micro_batch_cap is not None and plan.micro_batch_cap < settings.min_micro_batch:
        return f"{CAPS[plan.cap_source]} {exact(plan.micro_batch_cap)} is below min_micro_batch {exact(settings.min_micro_batch)}"
    if batch is None or replicas is None or batch % replicas:
        return None
    fixed = settings.fixed_micro_batch
    size = f"of {exact(fixed)}" if fixed else f"from {exact(settings.min_micro_batch)}"
    cap = "" if fixed or plan.micro_batch_cap is None else f" to {exact(plan.micro_batch_cap)}"
    share = f"{counted(batch // replicas, 'sample')} for each of {counted(replicas, 'replica')}"
    return f"{share} cannot be split into micro-batches {size}{cap}"


def _refused_stage(plan: PlanRecord) -> str | None:
    """Names the first stage of a ramp without a split, and a ramp with a split for each."""
    recipe, replicas, wanted = plan.recipe, plan.data_parallel, plan.asked_batch
    if recipe.ramp is None or replicas is None or wanted is None:
        return None
    every, left = (recipe.core.stages(recipe.effective_batch, done) for done in (0, plan.consumed))
    unit = _unit(plan, replicas)
    for number, (tuned, *_) in enumerate(left, 1 + len(every) - len(left)):
        name = f"stage {count(number)} of {count(len(every))} of the ramp"
        batch, rest = divmod(tuned * wanted, recipe.effective_batch)
        if rest:
            return f"{name} would be {figure(tuned * wanted / recipe.effective_batch)} samples: a batch is a whole number of them"
        if batch % unit or batch < replicas * plan.settings.min_micro_batch:
            return f"{name}, {count(batch)} samples, {_why(plan, batch, replicas)}{_instead(plan, unit)}"
    return None


def _unit(plan: PlanRecord, replicas: int) -> int:
    """Computes the number that must divide every batch."""
    settings = plan.settings
    demand = settings.fixed_micro_batch or settings.micro_batch_multiple
    return math.lcm(replicas * demand * settings.accumulation_multiple, settings.batch_multiple)


def _why(plan: PlanRecord, batch: int, replicas: int) -> str:
    settings = plan.settings
    if batch % replicas:
        return f"cannot be split evenly over {count(replicas)} replicas"
    if batch % settings.batch_multiple:
        return f"is not a multiple of batch_multiple {count(settings.batch_multiple)}"
    per_replica = batch // replicas
    demands = [
        f"{name} {count(value)}"
        for name, value in (
            ("min_micro_batch", settings.min_micro_batch),
            ("max_micro_batch", settings.fixed_micro_batch or 1),
            ("micro_batch_multiple", settings.micro_batch_multiple),
            ("accumulation_multiple", settings.accumulation_multiple),
        )
        if value > 1
    ]
    return f"is {count(per_replica)} for each of {count(replicas)} replicas, which has no split with {' and '.join(demands)}"


def _instead(plan: PlanRecord, unit: int) -> str:
    """Writes a ramp with all stages multiples of `unit`, for the recipe."""
    full, ramp = plan.recipe.effective_batch, plan.recipe.ramp or ""
    if full % unit or plan.settings.policy != "keep":
        return ""
    if ":" in ramp:
        pairs = [word.split(":") for word in ramp.replace(",", " ").split()]
        moved = " ".join(f"{at}:{min(full, _up(int(batch), unit))}" for at, batch in pairs)
    else:
        start, increment, samples = ramp.split()
        first = min(full, _up(int(start), unit))
        rise = (full - first) // unit
        steps = next((n for n in range(math.ceil(int(increment) / unit), rise + 1) if rise % n == 0), 1)
        moved = f"{first} {steps * unit} {samples}"
    return f'; ramp="{moved}" can'


def _up(number: int, unit: int) -> int:
    return math.ceil(number / unit) * unit


def _model_parallel(plan: PlanRecord) -> str:
    parallel = plan.cluster.model_parallel or plan.recipe.model_parallel
    are = "is" if plan.world_size == 1 else "are"
    return f"{counted(plan.world_size, 'GPU')} {are} not a multiple of model_parallel {exact(parallel)}"


def _above_max_batch(plan: PlanRecord) -> str | None:
    batch = plan.asked_batch
    if batch is None:
        return None
    return f"batch size {exact(batch)} is above max_batch {exact(plan.settings.max_batch)}"


def _above_dataset(plan: PlanRecord) -> str:
    return f"an epoch of {exact(plan.recipe.dataset_size)} samples is less than one step"


def _schedule_unmet(plan: PlanRecord) -> str | None:
    """What the schedule itself says of the run that this would be."""
    from isobatch.planning.course import Course

    steady = msgspec.structs.replace(plan.recipe, schedule="constant")
    values = worked_out(steady, plan.cluster, plan.settings, plan.consumed)
    try:
        Course([(0, msgspec.structs.replace(plan, **values))]).schedule  # noqa: B018
    except InputError as error:
        return error.message if error.field in (None, "schedule") else f"{error.field} {error.message}"
    return None


_WHY: dict[Reason, Callable[[PlanRecord], str | None]] = {
    Reason.NOT_DIVISIBLE: _not_divisible,
    Reason.MODEL_PARALLEL: _model_parallel,
    Reason.ACCUMULATION_UNMET: _accumulation_unmet,
    Reason.MICRO_BATCH_UNMET: _micro_batch_unmet,
    Reason.RAMP_NOT_DIVISIBLE: _refused_stage,
    Reason.ABOVE_MAX_BATCH: _above_max_batch,
    Reason.BATCH_ABOVE_DATASET: _above_dataset,
    Reason.SCHEDULE_UNMET: _schedule_unmet,
}


def ways(plan: PlanRecord, options: Sequence[PlanRecord]) -> list[tuple[str, str, str, str]]:
    """Writes each way out: its batch, its split, its price and the flags to copy."""
    return [(_what(plan, it), split_of(it), _price(it), _flags(plan, it)) for it in options]


def menu(plan: PlanRecord, options: Sequence[PlanRecord]) -> Iterator[str]:
    """Lists the ways out in columns."""
    rows = ways(plan, options)
    if not rows:
        yield "Nothing close to it would work."
        return
    yield "What would work:"
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        yield f"  {'   '.join(cells).rstrip()}"


def _what(asked: PlanRecord, plan: PlanRecord) -> str:
    batch = plan.layout.effective_batch
    tuned = asked.recipe.effective_batch
    idle = asked.world_size - plan.world_size
    left = f" ({exact(idle)} idle)" if idle > 0 else ""
    gpus = f"{counted(plan.world_size, 'GPU')}{left}, " if idle else ""
    change = "exact" if batch == tuned else percent(batch / tuned - 1, signed=True)
    return f"{gpus}{counted(batch, 'sample')} ({change})"


def _price(plan: PlanRecord) -> str:
    if plan.hours is None:
        return ""
    share = error_share(plan)
    sure = "" if share is None else f" ± {percent(share)}"
    return f"{duration(plan.hours * 3600)}{sure}" + (
        "" if plan.cost is None else f", cost {figure(plan.cost)}"
    )


def error_share(plan: PlanRecord) -> float | None:
    """Returns half the width of the range of hours, GPU-hours and cost, as a share of them; None where it is not known."""
    return plan.hours_error / plan.hours if plan.hours_error and plan.hours else None


def time_of(plan: PlanRecord) -> str:
    """Writes how long the run takes, with its range."""
    return ranged(plan.hours or 0.0, plan.hours_error, lambda hours: duration(hours * 3600))


def spent_of(plan: PlanRecord, value: float | None) -> str:
    """Writes GPU-hours or cost with their range, in percent that of the hours."""
    share = error_share(plan)
    return "unknown" if value is None else ranged(value, share and value * share)


def _flags(asked: PlanRecord, plan: PlanRecord) -> str:
    """Writes the command line's options for a way out."""
    flags = []
    if plan.cluster != asked.cluster:
        nodes = f"--nodes {plan.cluster.nodes} --gpus-per-node {plan.cluster.gpus_per_node}"
        flags.append(f"--gpus {plan.world_size}" if plan.cluster.nodes == 1 else nodes)
    for name, old, new, default in zip(
        asked.settings._fields, asked.settings, plan.settings, DEFAULTS, strict=True
    ):
        option = f"--{name.replace('_', '-')}"
        if new == old:
            continue
        if name == "policy" and type(old) is int and getattr(plan, "moves", None):
            flags.append("without --effective-batch")  # as `isobatch replan` calls it
        elif new is True:
            flags.append(option)
        elif new in (None, False) or (new == default and name not in ("rule", "policy")):
            flags.append(f"without {option}")
        else:
            flags.append(f"{option} {new}")
    return " ".join(flags)
