"""An infeasible plan in words: why there is none, and the menu of what would work instead."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch.errors import InputError
from isobatch.planning.record import PlanRecord, gpu_multiple, parallel_of, worked_out
from isobatch.planning.settings import DEFAULTS
from isobatch.reason import Reason
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.words import cited, count, counted, duration, exact, figure, percent, price, ranged

if TYPE_CHECKING:
    from isobatch.forecast.profile import Profile

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


def couplings(recipe: Recipe) -> list[str]:
    """Lists why the loss of a sample depends on the other samples of its micro-batch."""
    names = {*([recipe.coupled] if recipe.coupled else []), *(["batch_norm"] if recipe.batch_norm else [])}
    return [_COUPLINGS[name] for name in sorted(names)]


_COUPLINGS = {
    "batch_norm": (
        "batch norm averages over the micro-batch (Goyal et al. 2017, arXiv 1706.02677, section 2.3)"
    ),
    "experts": "the experts are balanced over the micro-batch",
    "negatives": "the negatives of a sample are the rest of its micro-batch",
}


def refusal(
    plan: PlanRecord, options: Sequence[PlanRecord], currency: str = "$"
) -> Iterator[tuple[Reason, str]]:
    """Yields each reason of an infeasible plan, and why it is met here."""
    for reason in plan.reasons:
        if reason.severity == "infeasible":
            if reason in (Reason.MISSES_DEADLINE, Reason.ABOVE_BUDGET):
                why = _over(plan, reason, options, currency)
            elif reason is Reason.NEEDS_PROFILE:
                why = _mute(plan, options)
            else:
                why = _WHY[reason](plan) if reason in _WHY else None
            yield reason, cited(why or reason.text, reason.source)


def _over(plan: PlanRecord, reason: Reason, options: Sequence[PlanRecord], currency: str) -> str | None:
    """Writes the run's time or cost beside its limit, where the plan without the limit is a way out."""
    limit = "deadline_hours" if reason is Reason.MISSES_DEADLINE else "budget"
    without: dict[str, Any] = {limit: None}
    free = plan.settings._replace(**without), plan.settings._replace(deadline_hours=None, budget=None)
    same_cluster = (option for option in options if option.cluster == plan.cluster)
    unlimited = next((option for option in same_cluster if option.settings in free), None)
    if unlimited is None:
        return None
    if reason is Reason.MISSES_DEADLINE:
        most = duration((plan.settings.deadline_hours or 0.0) * 3600)
        return f"the run takes {time_of(unlimited)}, over the deadline of {most} (deadline_hours)"
    most = price(plan.settings.budget or 0.0, currency)
    return f"the run costs {cost_of(unlimited, currency)}, above the budget of {most}"


def why_no_times(profile: "Profile", recipe: Recipe, cluster: Cluster) -> str | None:
    """Explains a profile without times of the recipe on the cluster, with the way out; None: it has them."""
    if None not in (profile.gpu, cluster.gpu) and profile.gpu != cluster.gpu:
        return f"the profile is of {profile.gpu}, not of {cluster.gpu}: estimate or calibrate one of these"
    for what, own, needed, todo in (
        ("tokens a sample", profile.seq_len, recipe.seq_len, f"--seq-len {recipe.seq_len}"),
        ("parameters", profile.parameters, recipe.parameters, "this model's config"),
    ):
        if own and needed and abs(own - needed) > _SAME_SIZE * max(own, needed):
            many = f"{count(own)} {what}, the recipe has {count(needed)}"
            return f"the profile is for {many}: estimate again with {todo}"
    for used, where, gb_s, calibrated in (
        (cluster.gpus_per_node > 1, "inside a node", "intra_gb_s", "on more GPUs of a node"),
        (cluster.nodes > 1, "between nodes", "inter_gb_s", "on more nodes"),
    ):
        if used and getattr(profile, gb_s) is None and getattr(cluster, gb_s) is None:
            option = f"--{gb_s.replace('_', '-')} GB"
            return f"the profile has no network {where}: add {option}, or calibrate {calibrated}"
    return None


_SAME_SIZE = 0.1
"""The largest relative difference of two models or samples of one size, as in the core."""
LINK_UNKNOWN = "the profile lacks a link that the run uses (or set inter_gb_s, intra_gb_s of the cluster)"


def _mute(plan: PlanRecord, options: Sequence[PlanRecord]) -> str | None:
    """Names the missing link of a profile: some way out has hours, so there is a profile."""
    if Reason.OTHER_HARDWARE in plan.reasons or not any(option.hours is not None for option in options):
        return None
    return f"{LINK_UNKNOWN}, so deadline_hours and budget cannot be checked"


def _not_divisible(plan: PlanRecord) -> str | None:
    batch, groups = plan.asked_batch, plan.settings.batch_multiple
    if batch is None:
        return None
    if batch % groups:
        return f"{exact(batch)} samples are not a multiple of batch_multiple {exact(groups)}"
    return f"{counted(batch, 'sample')} cannot be split evenly over {exact(plan.data_parallel)} replicas"


def _no_split(plan: PlanRecord, micro_batches: str) -> str | None:
    batch, replicas = plan.asked_batch, plan.data_parallel
    if batch is None or replicas is None or batch % replicas:
        return None
    share = f"{counted(batch // replicas, 'sample')} for each of {counted(replicas, 'replica')}"
    return f"{share} cannot be split into micro-batches {micro_batches}"


def _accumulation_unmet(plan: PlanRecord) -> str | None:
    return _no_split(plan, f"whose number is a multiple of {exact(plan.settings.accumulation_multiple)}")


def _micro_batch_unmet(plan: PlanRecord) -> str | None:
    least, cap, fixed = plan.settings.min_micro_batch, plan.micro_batch_cap, plan.settings.fixed_micro_batch
    if cap is not None and cap < least:
        return f"{CAPS[plan.cap_source]} {exact(cap)} is below min_micro_batch {exact(least)}"
    if fixed:
        return _no_split(plan, f"of {exact(fixed)}")
    return _no_split(plan, f"from {exact(least)}" + ("" if cap is None else f" to {exact(cap)}"))


def _refused_stage(plan: PlanRecord) -> str | None:
    """Names the first stage of a ramp without a split, and a ramp with a split for each."""
    recipe, replicas, target = plan.recipe, plan.data_parallel, plan.asked_batch
    if recipe.ramp is None or replicas is None or target is None:
        return None
    every, ahead = (recipe.core.stages(recipe.effective_batch, consumed) for consumed in (0, plan.consumed))
    unit = _unit(plan, replicas)
    for number, (tuned, *_) in enumerate(ahead, 1 + len(every) - len(ahead)):
        name = f"stage {count(number)} of {count(len(every))} of the ramp"
        batch, rest = divmod(tuned * target, recipe.effective_batch)
        if rest:
            return (
                f"{name} would be {figure(tuned * target / recipe.effective_batch)} samples: a batch is a "
                "whole number of them"
            )
        if batch % unit or batch < replicas * plan.settings.min_micro_batch:
            return f"{name}, {count(batch)} samples, {_why(plan, batch, replicas)}{_instead(plan, unit)}"
    return None


def _unit(plan: PlanRecord, replicas: int) -> int:
    """Computes the common divisor of all possible batches."""
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
    return (
        f"is {count(per_replica)} for each of {count(replicas)} replicas, which has no split with "
        f"{' and '.join(demands)}"
    )


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
    return f"{_not_a_multiple(plan)} model_parallel {exact(parallel_of(plan, 'model_parallel'))}"


def _expert_parallel(plan: PlanRecord) -> str:
    below = plan.world_size // gpu_multiple(plan) * gpu_multiple(plan)
    near = [count for count in plan.nearest_world_sizes if count] or [below, below + gpu_multiple(plan)]
    counts = " and ".join(exact(count) for count in near if count)
    parallel = f"{exact(parallel_of(plan, 'expert_parallel'))} (expert parallel)"
    return f"{_not_a_multiple(plan)} {parallel}; {counts} {'is' if len(near) == 1 else 'are'}"


def _not_a_multiple(plan: PlanRecord) -> str:
    return f"{counted(plan.world_size, 'GPU')} {'is' if plan.world_size == 1 else 'are'} not a multiple of"


def _above_max_batch(plan: PlanRecord) -> str | None:
    batch = plan.asked_batch
    if batch is None:
        return None
    return f"batch size {exact(batch)} is above max_batch {exact(plan.settings.max_batch)}"


def _above_dataset(plan: PlanRecord) -> str:
    return f"an epoch of {exact(plan.recipe.dataset_size)} samples is less than one step"


def _schedule_unmet(plan: PlanRecord) -> str | None:
    """Asks the schedule itself why it does not fit this run."""
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
    Reason.EXPERT_PARALLEL: _expert_parallel,
    Reason.ACCUMULATION_UNMET: _accumulation_unmet,
    Reason.MICRO_BATCH_UNMET: _micro_batch_unmet,
    Reason.RAMP_NOT_DIVISIBLE: _refused_stage,
    Reason.ABOVE_MAX_BATCH: _above_max_batch,
    Reason.BATCH_ABOVE_DATASET: _above_dataset,
    Reason.SCHEDULE_UNMET: _schedule_unmet,
}


def ways(
    plan: PlanRecord, options: Sequence[PlanRecord], currency: str = "$"
) -> list[tuple[str, str, str, str]]:
    """Writes each way out: its batch, its split, its price and the flags to copy."""
    return [
        (_what(plan, option), split_of(option), _price(option, currency), _flags(plan, option))
        for option in options
    ]


def menu(plan: PlanRecord, options: Sequence[PlanRecord], currency: str = "$") -> Iterator[str]:
    """Lists the ways out in columns."""
    rows = ways(plan, options, currency)
    if not rows:
        if plan.status == "infeasible":
            yield "Nothing nearby would work."
        return
    tuned = f"With the tuned micro-batch of {exact(plan.recipe.micro_batch)}:"
    yield "What would work:" if plan.status == "infeasible" else tuned
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width]
        yield f"  {'   '.join(cells).rstrip()}"


def _what(refused: PlanRecord, plan: PlanRecord) -> str:
    batch = plan.layout.effective_batch
    tuned = refused.recipe.effective_batch
    idle = refused.world_size - plan.world_size
    idle_text = f" ({exact(idle)} idle)" if idle > 0 else ""
    gpus = f"{counted(plan.world_size, 'GPU')}{idle_text}, " if idle else ""
    change = "exact" if batch == tuned else percent(batch / tuned - 1, signed=True)
    return f"{gpus}{counted(batch, 'sample')} ({change})"


def _price(plan: PlanRecord, currency: str) -> str:
    if plan.hours is None:
        return ""
    share = error_share(plan)
    sure = "" if share is None else f" ± {percent(share)}"
    cost = "" if plan.cost is None else f", cost {price(plan.cost, currency)}"
    return f"{duration(plan.hours * 3600)}{sure}{cost}"


def error_share(plan: PlanRecord) -> float | None:
    """Returns half the width of the range of hours, GPU-hours and cost, as a share of them."""
    return plan.hours_error / plan.hours if plan.hours_error and plan.hours else None


def time_of(plan: PlanRecord) -> str:
    """Writes how long the run takes, with its range."""
    return ranged(plan.hours or 0.0, plan.hours_error, lambda hours: duration(hours * 3600))


def spent_of(plan: PlanRecord, value: float | None) -> str:
    """Writes GPU-hours or cost with their range, in percent as wide as the range of the hours."""
    share = error_share(plan)
    return "unknown" if value is None else ranged(value, share and value * share)


def cost_of(plan: PlanRecord, currency: str) -> str:
    """Writes the cost with its range and the sign of its currency."""
    share, cost = error_share(plan), plan.cost or 0.0
    return ranged(cost, share and cost * share, lambda value: price(value, currency))


def _flags(refused: PlanRecord, plan: PlanRecord) -> str:
    """Writes the command line's options for a way out."""
    flags = []
    if plan.cluster != refused.cluster:
        nodes = f"--nodes {plan.cluster.nodes} --gpus-per-node {plan.cluster.gpus_per_node}"
        flags.append(f"--gpus {plan.world_size}" if plan.cluster.nodes == 1 else nodes)
    for name, old, new, default in zip(
        refused.settings._fields, refused.settings, plan.settings, DEFAULTS, strict=True
    ):
        option = f"--{name.replace('_', '-')}"
        if new == old:
            continue
        if name == "policy" and int in (type(old), type(new)) and getattr(plan, "moves", None):
            # As `isobatch replan` calls it.
            flags.append(f"--effective-batch {new}" if type(new) is int else "without --effective-batch")
        elif new is True:
            flags.append(option)
        elif new in (None, False) or (new == default and name not in ("rule", "policy")):
            flags.append(f"without {option}")
        else:
            flags.append(f"{option} {new}")
    return " ".join(flags)
