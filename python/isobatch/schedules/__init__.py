"""Learning-rate schedules: values that are evaluated anywhere, and the peers' own under their own names.

A `Schedule` is frozen, hashable, picklable and JSON in and out. `s.at(step)` is one value, `s.values(steps)` an
array of them, `isobatch.schedule_matrix` many schedules × many steps.
"""

from isobatch._core import Schedule
from isobatch.schedules.form import Form, join, product, scaled, with_clock
from isobatch.schedules.kinds import (
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
from isobatch.schedules.lint import ScheduleReason
from isobatch.schedules.peers import composer, megatron, optax, timm, torch, transformers
from isobatch.schedules.peers.live import from_torch
from isobatch.schedules.text import Units, check_spec, resolve

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
