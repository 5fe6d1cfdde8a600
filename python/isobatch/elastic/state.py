"""The state of a run in a checkpoint, and the plan made from it.

The state is in JSON types, versioned, with an entry (a leg) for each stretch under one plan. The planned run
is the same at every GPU count: nothing is padded, and an epoch is ⌈dataset / batch⌉ steps.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from isobatch.errors import InputError, raise_all
from isobatch.planning.plan import Plan, plan, plan_of
from isobatch.planning.replan import replan
from isobatch.planning.settings import DEFAULTS, HYPERPARAMETERS, Settings
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe
from isobatch.schedules.schedule import Schedule
from isobatch.words import shown

SCHEMA = "isobatch.elastic/1"

_DEFAULTS = {kind.name: kind.default for kind in msgspec.structs.fields(Recipe)}


class Leg(NamedTuple):
    """A stretch of the run: from `step` on, it ran on `gpus` GPUs, in steps of `batch` samples, with these
    non-default `settings`."""

    step: int
    gpus: int
    batch: int
    settings: dict[str, Any]


class State(NamedTuple):
    """A run's place, after `step` steps, and its conditions; `recipe` has the non-default fields."""

    step: int
    samples: int
    seed: int
    shuffle: bool
    recipe: dict[str, Any]
    stretches: tuple[Leg, ...]


class _Record(msgspec.Struct, forbid_unknown_fields=True, rename={"stretches": "legs"}):
    """A state as written in a checkpoint: equal settings are listed once, and legs name them by index."""

    schema: str
    step: int
    samples: int
    seed: int
    shuffle: bool
    recipe: dict[str, Any]
    stretches: list[Annotated[list[int], msgspec.Meta(min_length=4, max_length=4)]]
    settings: list[dict[str, Any]]


def recipe_fields(recipe: Recipe) -> dict[str, Any]:
    """Returns the fields of a recipe other than the defaults, as JSON types."""
    fields = msgspec.structs.asdict(recipe)
    fields = {name: value for name, value in fields.items() if value != _DEFAULTS[name]}
    plain: dict[str, Any] = msgspec.to_builtins(fields, enc_hook=_plain)
    return plain


def write(state: State) -> dict[str, Any]:
    """Writes the state in JSON types."""
    settings: list[dict[str, Any]] = []
    rows: list[list[int]] = []
    for step, gpus, batch, options in state.stretches:
        if options not in settings:
            settings.append(options)
        rows.append([step, gpus, batch, settings.index(options)])
    written: dict[str, Any] = msgspec.to_builtins(_Record(SCHEMA, *state[:-1], rows, settings))
    return written


def read(written: Any) -> State:
    """Reads a state from the output of `write`."""
    schema = written.get("schema") if isinstance(written, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"state must be what ElasticRun.state_dict() gave ({SCHEMA}), got {shown(written)}", field="state"
        )
    try:
        record = msgspec.convert(written, _Record)
        stretches = tuple(
            Leg(step, gpus, batch, record.settings[index]) for step, gpus, batch, index in record.stretches
        )
    except (msgspec.ValidationError, IndexError) as error:
        raise InputError(f"state is damaged: {error}", field="state") from None
    steps = [leg.step for leg in stretches]
    if not stretches or steps[0] != 0 or steps != sorted(set(steps)) or steps[-1] > record.step:
        raise InputError("state is damaged: its legs do not follow each other", field="state")
    return State(record.step, record.samples, record.seed, record.shuffle, record.recipe, stretches)


def check_same(before: State, recipe: Recipe, seed: int, shuffle: bool, accept: Collection[str]) -> None:
    """Refuses a checkpoint of another run, and names each difference not listed in `accept`."""
    if wrong := [name for name in accept if name not in {*_DEFAULTS, "seed", "shuffle"}]:
        raise InputError(
            f"accept must have names of recipe fields, seed or shuffle, got {wrong[0]!r}", field="accept"
        )
    then = {**_DEFAULTS, **before.recipe, "seed": before.seed, "shuffle": before.shuffle}
    now = {**_DEFAULTS, **recipe_fields(recipe), "seed": seed, "shuffle": shuffle}
    raise_all(
        InputError(
            f"{name} must be {shown(then[name])} as in the checkpoint, got {shown(now.get(name))}: change it "
            f'back, or pass accept=("{name}",)',
            field=name,
        )
        for name in then
        if name not in accept and then[name] != now.get(name)
    )


def add_leg(stretches: Sequence[Leg], leg: Leg) -> tuple[Leg, ...]:
    """Adds a leg: it replaces a last leg that never ran, and one like the last leg only extends it."""
    before = [*stretches]
    if before and before[-1].step == leg.step:
        before.pop()
    if before and before[-1][1:] == leg[1:]:
        return tuple(before)
    return (*before, leg)


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return msgspec.json.decode(value.to_json())
    raise TypeError(f"{type(value).__name__} has no JSON form")


# ---- the plan of a run ----


class RunPlan(NamedTuple):
    """A run's plans: how a step is laid out here (`plan`), and the run of that step, made on one replica
    (`course`)."""

    plan: Plan
    course: Plan


def plan_run(
    recipe: Recipe, cluster: Cluster, settings: Settings, stretches: Sequence[Leg], step: int
) -> RunPlan:
    """Plans a run after `step` steps, to go on at a cluster."""
    _check(recipe, settings)
    recipe = msgspec.structs.replace(recipe, convention="exact", drop_last=bool(recipe.drop_last))
    before = [leg for leg in stretches if leg.step < step]
    consumed = _course(recipe, before).position(step).samples if before and recipe.ramp is not None else 0
    local = plan_of(recipe, cluster, settings, None, consumed)
    if local.status == "infeasible":
        return RunPlan(local, local)
    now = Leg(step, local.world_size, local.effective_batch or 0, settings.changed())
    course = _course(recipe, [*before, now])
    names = ("total_steps", "warmup_steps", "warmup_lr", "moves")
    counted = {name: getattr(course, name) for name in names}
    if not course.moves:
        # It only says which stages need not be split any more; where it does not come of a move, the run
        # starts behind it.
        counted["consumed"] = 0
    return RunPlan(msgspec.structs.replace(local, **counted), course)


def _check(recipe: Recipe, settings: Settings) -> None:
    if recipe.convention == "megatron":
        raise InputError(
            "convention must be one that counts epochs, got 'megatron': its own samplers resume by the "
            "samples, and isobatch replan --to megatron writes the arguments"
        )
    if recipe.duration is None:
        raise InputError('duration is missing: add it to the recipe, such as "90ep"', field="duration")
    if settings.policy == "goodput":
        raise InputError(
            "policy must be keep, grow or a batch, got 'goodput', which needs a profile, and picks another "
            "batch and another length at each number of GPUs: plan with it once, and give the batch that it "
            "picked, such as policy=512",
            field="policy",
        )


def _course(recipe: Recipe, stretches: Sequence[Leg]) -> Plan:
    """Plans the run on one replica in whole steps, so nothing depends on how they are split."""
    alone = msgspec.structs.replace(recipe, even_batches=True, model_parallel=1, expert_parallel=1)
    course: Plan | None = None
    for leg in stretches:
        # Under keep only the batch changes, and only within its tolerance.
        keeps = leg.settings.get("policy", "keep") == "keep"
        options: dict[str, Any] = {
            "rule": "none" if keeps else leg.settings.get("rule", "auto"),
            "ramp_rule": leg.settings.get("ramp_rule", "none"),
            **{name: leg.settings.get(name, getattr(DEFAULTS, name)) for name in HYPERPARAMETERS},
        }
        if course is None:
            course = plan(alone, 1, policy=leg.batch, max_micro_batch=leg.batch, **options)
        elif course.effective_batch != leg.batch or any(
            getattr(course.settings, name) != value for name, value in options.items()
        ):
            course = replan(
                course, at_step=leg.step, effective_batch=leg.batch, max_micro_batch=leg.batch, **options
            )
        course.require()
    assert course is not None
    return course
