"""Figures as columns, and as a data frame of pandas."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from isobatch.errors import InputError, must_be
from isobatch.fleet.results import STATUS
from isobatch.fleet.sweep import Sweep
from isobatch.forecast.laws import Laws
from isobatch.planning.elastic import Elastic
from isobatch.planning.plan import Plan
from isobatch.reason import Reason
from isobatch.recipes.recipe import Recipe
from isobatch.schedules import Schedule, extent
from isobatch.validate.report import Report

_APART = ("recipe", "cluster", "settings", "moves", "consumed", "nearest_world_sizes", "nearest_batches")


def columns_of(value: Any) -> dict[str, list[Any]]:
    """A value's figures by name, each a list; what is not known is None.

    >>> columns_of(Elastic(effective_batch=8, gpus=(1, 2), micro_batch=(4, 4), accumulation=(2, 1), weight=2.0))["gpus"]
    [1, 2]
    """
    if isinstance(value, Plan):
        return {
            name: [_plain(getattr(value, name))] for name in value.__struct_fields__ if name not in _APART
        }
    if isinstance(value, Recipe):
        return {name: [_plain(getattr(value, name))] for name in value.__struct_fields__}
    if isinstance(value, Sweep):
        return {name: _column(name, values) for name, values in value.columns.items()}
    if isinstance(value, Elastic):
        return {name: list(getattr(value, name)) for name in ("gpus", "micro_batch", "accumulation")}
    if isinstance(value, Laws):
        named = (
            ("lr", value.lr_laws),
            ("batch_tokens", value.batch_laws),
            ("critical_batch", value.critical_laws),
            ("lr_factor", value.duration_laws),
        )
        rows = [{"quantity": name, **msgspec.structs.asdict(law)} for name, laws in named for law in laws]
        return {name: [row[name] for row in rows] for name in rows[0]}
    if isinstance(value, Schedule):
        steps = np.unique(np.rint(np.linspace(0, extent.span(value.form), 1001)))
        return {"step": steps.astype(int).tolist(), "lr": value.values(steps).tolist()}
    if not isinstance(value, Report):
        raise must_be("a Plan, Recipe, Sweep, Elastic, Laws, Schedule or Report", type(value), field="value")
    return {
        "proof": [it.name for it in value.proofs],
        "verdict": [str(it.verdict) for it in value.proofs],
        "text": [it.text for it in value.proofs],
        "cause": [None if it.cause is None else it.cause.value for it in value.proofs],
    }


def curve(schedule: Schedule, stop: float) -> tuple[list[float], list[float]]:
    """Returns steps from 0 to the end, every turn among them, and the learning rate at each."""
    turns = [step for step in extent.knots(schedule.form) if step <= stop]
    # Just before a jump as well, so that it is drawn upright.
    before = [max(0.0, step - stop * 1e-6) for step in turns]
    steps = np.unique(np.concatenate([np.linspace(0, stop, 240), turns, before]))
    return steps.tolist(), schedule.values(steps).tolist()


def _plain(value: Any) -> Any:
    return (
        [str(reason) for reason in value]
        if isinstance(value, tuple) and value and hasattr(value[0], "bit")
        else value
    )


def _column(name: str, values: Any) -> list[Any]:
    if name == "reasons":
        return ["; ".join(Reason.of(bits)) for bits in values.tolist()]
    if name == "status" and values.dtype.kind in "iu":
        return [str(text) for text in STATUS[values]]
    return [None if value != value or value == -1 else value for value in values.tolist()]


def to_pandas(value: Any) -> Any:
    """Returns a value's figures as a `pandas.DataFrame`.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise InputError("to_pandas needs pandas: pip install pandas") from None
    return pd.DataFrame(columns_of(value))
