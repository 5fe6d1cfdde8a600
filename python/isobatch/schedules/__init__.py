"""Learning-rate schedules: values that are evaluated anywhere, and the peers' own under their own names.

A `Schedule` is frozen, hashable, picklable and JSON in and out. `s.at(step)` is one value, `s.values(steps)` an
array of them, `isobatch.schedule_matrix` many schedules × many steps.
"""

from isobatch._core import Schedule

from . import composer, megatron, optax, timm, torch, transformers
from ._form import Form, join, product, scaled, with_clock
from ._kinds import (
    constant,
    cosine,
    cosine_restarts,
    exponential,
    goyal,
    inverse_sqrt,
    linear,
    linear_to_zero,
    multistep,
    one_cycle,
    one_minus_sqrt,
    polynomial,
    rex,
    step,
    table,
    tanh,
    trapezoid,
    vaswani,
    warmup,
    wsd,
)
from ._lint import ScheduleReason
from ._live import from_torch
from ._resolve import Units, check_spec, resolve

__all__ = [
    "Form",
    "Schedule",
    "ScheduleReason",
    "Units",
    "check_spec",
    "composer",
    "constant",
    "cosine",
    "cosine_restarts",
    "exponential",
    "from_torch",
    "goyal",
    "inverse_sqrt",
    "join",
    "linear",
    "linear_to_zero",
    "megatron",
    "multistep",
    "one_cycle",
    "one_minus_sqrt",
    "optax",
    "polynomial",
    "product",
    "resolve",
    "rex",
    "scaled",
    "step",
    "table",
    "tanh",
    "timm",
    "torch",
    "transformers",
    "trapezoid",
    "vaswani",
    "warmup",
    "with_clock",
    "wsd",
]
