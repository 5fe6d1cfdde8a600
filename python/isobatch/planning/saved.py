"""Plans as JSON text, and the checks of a plan from a file.

A plan in a file may have been edited, cut, or made by another version. It holds its recipe, cluster and
settings, so that it is worked out again, which takes microseconds, and compared. What a profile gave (times,
memory, a cap, goodput's batch) cannot be worked out without it, and another version may count otherwise:
there the values must agree with each other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from isobatch import _core
from isobatch.errors import InputError, must_be, raise_all, unknown
from isobatch.limits import MAX_BATCH
from isobatch.planning.record import VALUES, Handover, PlanRecord, parallel_of, worked_out
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.reason import Reason
from isobatch.words import shown

if TYPE_CHECKING:
    from isobatch.planning.course import Legs

VERSION = 2
SCHEMA = f"isobatch.plan/{VERSION}"

_RULES = tuple(name for name, *_ in _core.rules())
_OF_PROFILE = frozenset(name for name, _, _, of_profile, *_ in _core.results() if of_profile)
_REASONS_OF_PROFILE = frozenset(
    (
        Reason.ABOVE_MEMORY,
        Reason.NEEDS_PROFILE,
        Reason.NEEDS_PRICE,
        Reason.NEEDS_DURATION,
        Reason.MISSES_DEADLINE,
        Reason.ABOVE_BUDGET,
        Reason.MEMORY_ESTIMATED,
        Reason.OUTSIDE_MEASURED,
        Reason.FORECAST_ESTIMATED,
        Reason.OTHER_HARDWARE,
        Reason.LIMIT_LIKELY,
    )
)


def text_of(plan: PlanRecord) -> str:
    """A plan as JSON text, with the schema and the version of isobatch."""
    fields = {"schema": SCHEMA, "isobatch": _core.__version__, **_named(plan)}
    return msgspec.json.format(msgspec.json.encode(fields, enc_hook=_described), indent=2).decode()


def _named(record: msgspec.Struct) -> dict[str, Any]:
    """A record's fields by name, its settings and moves too."""
    fields = msgspec.structs.asdict(record)
    if "settings" in fields:
        fields["settings"] = fields["settings"]._asdict()
    if "moves" in fields:
        fields["moves"] = [_named(move) for move in fields["moves"]]
    if "before" in fields:
        fields["before"] = _named(fields["before"])
    return fields


def _described(value: Any) -> Any:
    # Only where the recipe has one: a plan is written sooner without.
    from isobatch.schedules.schedule import Schedule

    if isinstance(value, Schedule):
        return msgspec.Raw(value.to_json().encode())
    raise TypeError(f"{type(value).__name__} has no JSON form")


class NotAPlan(InputError):
    """A file with something else than a plan, such as another tool's configuration."""


def fields_of(text: str | bytes, file: str | None) -> tuple[dict[str, Any], bool]:
    """Reads a plan's fields from JSON text, and whether this version of isobatch wrote them."""
    if not isinstance(text, (str, bytes)):
        raise must_be("JSON text", text, field="text")
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotAPlan(
            f"is not a plan: {str(error)[:500]}; `isobatch plan RECIPE --gpus N -o plan.json` writes one",
            file=file,
        ) from None
    schema = fields.pop("schema", None) if isinstance(fields, dict) else None
    match = re.fullmatch(r"isobatch\.plan/(\d{1,9})", schema) if isinstance(schema, str) else None
    if match is None:
        raise must_be(repr(SCHEMA), schema, field="schema", todo="this is not a plan", file=file)
    if int(match[1]) > VERSION:
        raise InputError(
            f"schema {schema!r} is newer than this isobatch reads ({SCHEMA!r}): upgrade isobatch", file=file
        )
    if int(match[1]) < VERSION:
        raise InputError(
            f"schema {schema!r} is older than this isobatch reads ({SCHEMA!r}), whose settings have other "
            "names: plan again",
            file=file,
        )
    same_version = fields.pop("isobatch", None) == _core.__version__
    moves = fields.get("moves")
    for move in moves if isinstance(moves, list) else ():
        if isinstance(move, dict) and isinstance(move.get("before"), dict):
            move["before"]["settings"] = _settings(move["before"].get("settings"), file)
    fields["settings"] = _settings(fields.get("settings"), file)
    return fields, same_version


def _settings(content: Any, file: str | None) -> list[Any]:
    if not isinstance(content, dict):
        raise must_be("a table", content, field="settings", file=file)
    strange = (name for name in content if name not in Settings._fields)
    raise_all(unknown("setting", name, Settings._fields, field="settings", file=file) for name in strange)
    faults = _core.check_settings(content)
    raise_all(must_be(legal, value, field=f"settings.{name}", file=file) for name, value, legal in faults)
    return [content.get(name, default) for name, default in zip(Settings._fields, DEFAULTS, strict=True)]


def check(moves: Sequence[Handover], plan_legs: Legs, file: str | None, *, same_version: bool) -> None:
    """Checks all parts of a run from a file; one of the same version must come to the same values."""
    from isobatch.planning.course import Course, handover_at, whole_run

    starts = [step for step, _ in plan_legs]
    if any(not 0 <= low < high < 2**53 for low, high in pairwise(starts)):
        raise must_be("at ascending steps from 1", starts[1:], field="moves", file=file)
    for count, (_, leg) in enumerate(plan_legs, 1):
        if leg.recipe != plan_legs[0][1].recipe:
            raise InputError("recipe must be the same before and after a move", file=file, field="recipe")
        _consistent(leg, file)
        if not same_version:
            continue
        expected = _recomputed(leg)
        if count > 1:
            expected |= whole_run(plan_legs[:count])
            handover = handover_at(Course(plan_legs[: count - 1]), leg, starts[count - 1])
            _compare(moves[count - 2], msgspec.structs.asdict(handover), file)
            expected["consumed"] = handover.samples if leg.recipe.ramp else 0
        _compare(leg, expected, file)


def _compare(record: msgspec.Struct, expected: dict[str, Any], file: str | None) -> None:
    wrong = {name: value for name, value in expected.items() if getattr(record, name) != value}
    if wrong:
        differences = "; ".join(
            f"{name} is {shown(getattr(record, name))}, expected {shown(v)}" for name, v in wrong.items()
        )
        raise InputError(
            f"not the plan of its recipe, cluster and settings: {differences}. Plan it again instead of "
            "editing it",
            file=file,
            field=next(iter(wrong)),
        )


def _recomputed(leg: PlanRecord) -> dict[str, Any]:
    """Computes the values again, by name."""
    settings = leg.settings
    of_profile = (
        leg.cap_source == "memory"
        or settings.policy == "goodput"
        or settings.deadline_hours is not None
        or settings.budget is not None
        or not _REASONS_OF_PROFILE.isdisjoint(leg.reasons)
        or any(getattr(leg, name) is not None for name in _OF_PROFILE)
    )
    if not of_profile:
        return worked_out(leg.recipe, leg.cluster, settings, leg.consumed)
    if leg.status == "infeasible":
        return {}
    stretched = settings.policy == "goodput"
    settings = settings._replace(
        policy=leg.layout.effective_batch if stretched else settings.policy,
        max_micro_batch=leg.micro_batch_cap,
        deadline_hours=None,
        budget=None,
    )
    recipe = leg.recipe
    if stretched:  # Its own samples may be too few for one step of this batch.
        recipe = msgspec.structs.replace(recipe, duration=None, warmup=None)
        # The batch that goodput was after may have been another, which a ramp or a tolerance then moved.
        differs = {"ragged": Reason.RAGGED, "uneven": Reason.UNEVEN}.get(settings.split)
        if differs is not None and differs not in leg.reasons:
            settings = settings._replace(split="even")
    values = worked_out(recipe, leg.cluster, settings, leg.consumed)
    left_out = _OF_PROFILE | {"status", "reasons", "cap_source"}
    if stretched:  # The steps, and the decay that follows them, hold the loss by the noise scale.
        left_out |= {"total_steps", "warmup_steps", "weight_decay"}
    return {name: value for name, value in values.items() if name not in left_out}


def _consistent(leg: PlanRecord, file: str | None) -> None:
    """Refuses values no plan has, whoever made it."""

    def must(field: str, legal: bool, legal_text: str) -> None:
        if not legal:
            raise must_be(legal_text, getattr(leg, field), field=field, file=file)

    infeasible = any(reason.severity == "infeasible" for reason in leg.reasons)
    says = "infeasible" if infeasible else "caution" if leg.reasons else "ok"
    must("status", leg.status == says, f"{says!r}, as its reasons say")
    must("world_size", leg.world_size == leg.cluster.world_size, "the GPUs of its cluster")
    for name in VALUES:
        value = getattr(leg, name)
        if type(value) is int:
            must(name, 0 <= value <= 2**53, "from 0 to 2^53")
        elif type(value) is float:
            must(name, math.isfinite(value), "finite")
    must("rule", leg.rule in _RULES, f"one of {', '.join(_RULES)}")
    if infeasible:
        must("micro_batch", leg.micro_batch is None, "unknown in an infeasible plan")
        return
    for name in ("micro_batch", "accumulation", "data_parallel", "effective_batch", "lr", "lr_scale"):
        value = getattr(leg, name)
        must(name, value is not None and value > 0, "above 0")
    micro, accumulation, replicas, batch, irregular = leg.layout
    rounds = micro * replicas
    gpus = replicas * parallel_of(leg, "model_parallel")
    must("data_parallel", gpus == leg.world_size, "the GPUs / model_parallel")
    must("effective_batch", batch <= MAX_BATCH, "at most 2^40")
    whole = rounds * accumulation
    fits = irregular and replicas <= batch <= whole < batch + 2 * rounds + replicas * accumulation
    must("effective_batch", batch == whole or fits, "micro_batch × accumulation × data_parallel")
    cap = leg.micro_batch_cap
    must("micro_batch", cap is None or micro <= cap, f"at most the cap, {cap}")
    must("steps_per_epoch", leg.steps_per_epoch != 0, "above 0")
    must("total_steps", leg.total_steps != 0, "above 0")
