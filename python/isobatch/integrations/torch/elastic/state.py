"""What a checkpoint holds of a run: JSON types, versioned, a line for each stretch of the run under one plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from isobatch.errors import InputError, together
from isobatch.recipes.recipe import Recipe
from isobatch.schedules import Schedule
from isobatch.words import shown

SCHEMA = "isobatch.elastic/1"

_DEFAULTS = {kind.name: kind.default for kind in msgspec.structs.fields(Recipe)}


class Leg(NamedTuple):
    """A stretch of the run: from `step` on it ran on `gpus`, in steps of `batch` samples, under `settings` (those not default)."""

    step: int
    gpus: int
    batch: int
    settings: dict[str, Any]


class State(NamedTuple):
    """Where a run is, and what it ran under: `step` steps are done. The recipe is the fields that are not default."""

    step: int
    samples: int
    seed: int
    shuffle: bool
    recipe: dict[str, Any]
    legs: tuple[Leg, ...]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    """A state as a checkpoint has it: equal settings are there once, and legs name them by number."""

    schema: str
    step: int
    samples: int
    seed: int
    shuffle: bool
    recipe: dict[str, Any]
    settings: list[dict[str, Any]]
    legs: list[tuple[int, int, int, int]]


def recipe_given(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that are not as they are by default, as JSON types."""
    fields = {
        name: value for name, value in msgspec.structs.asdict(recipe).items() if value != _DEFAULTS[name]
    }
    plain: dict[str, Any] = msgspec.to_builtins(fields, enc_hook=_plain)
    return plain


def write(state: State) -> dict[str, Any]:
    """The state in JSON types."""
    settings: list[dict[str, Any]] = []
    legs: list[tuple[int, int, int, int]] = []
    for step, gpus, batch, asked in state.legs:
        if asked not in settings:
            settings.append(asked)
        legs.append((step, gpus, batch, settings.index(asked)))
    fields = {**state._asdict(), "legs": [list(leg) for leg in legs]}
    return {"schema": SCHEMA, **fields, "settings": settings}


def read(written: Any) -> State:
    """The state that `write` wrote.

    Raises:
        InputError: it is none, or of another version.
    """
    schema = written.get("schema") if isinstance(written, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"state must be what ElasticRun.state_dict() gave ({SCHEMA}), got {shown(written)}", field="state"
        )
    try:
        found = msgspec.convert(written, _Written)
        legs = tuple(Leg(step, gpus, batch, found.settings[which]) for step, gpus, batch, which in found.legs)
    except (msgspec.ValidationError, IndexError) as error:
        raise InputError(f"state is damaged: {error}", field="state") from None
    steps = [leg.step for leg in legs]
    if not legs or steps[0] != 0 or steps != sorted(set(steps)) or steps[-1] > found.step:
        raise InputError("state is damaged: its legs do not follow each other", field="state")
    return State(found.step, found.samples, found.seed, found.shuffle, found.recipe, legs)


def check_same(before: State, now: State, accept: Collection[str]) -> None:
    """Refuses a checkpoint of another run, by the names of what differs; `accept` has names that may.

    Raises:
        InputError: a recipe field, the seed or shuffle is another; or `accept` has a name that nothing has.
    """
    if wrong := [name for name in accept if name not in {*_DEFAULTS, "seed", "shuffle"}]:
        raise InputError(
            f"accept must have names of recipe fields, seed or shuffle, got {wrong[0]!r}", field="accept"
        )
    then, here = (
        {**_DEFAULTS, **state.recipe, "seed": state.seed, "shuffle": state.shuffle} for state in (before, now)
    )
    errors = [
        InputError(
            f"{name} must be {shown(then[name])} as in the checkpoint, got {shown(here.get(name))}: change it back, or pass "
            f'accept=("{name}",)',
            field=name,
        )
        for name in then
        if name not in accept and then[name] != here.get(name)
    ]
    if errors:
        raise together(errors)


def extended(legs: Sequence[Leg], leg: Leg) -> tuple[Leg, ...]:
    """The legs with one more: one that never ran is replaced, one that is like the last goes on with it."""
    kept = [*legs]
    if kept and kept[-1].step == leg.step:
        kept.pop()
    if kept and kept[-1][1:] == leg[1:]:
        return tuple(kept)
    return (*kept, leg)


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return msgspec.json.decode(value.to_json())
    raise TypeError(f"{type(value).__name__} has no JSON form")
