"""Learning-rate schedules: values that are evaluated anywhere, and the peers' own under their own names.

A `Schedule` is frozen, hashable, picklable and JSON in and out. `s.at(step)` is one value, `s.values(steps)` an
array of them, `isobatch.schedule_matrix` many schedules × many steps.
"""

from isobatch.schedules.columns import COLUMNS
from isobatch.schedules.compose import join, product, warmup
from isobatch.schedules.form import Form
from isobatch.schedules.kind import KINDS
from isobatch.schedules.kinds import *  # noqa: F403 - each kind is listed there, once
from isobatch.schedules.lengths import Units
from isobatch.schedules.lint import ScheduleReason
from isobatch.schedules.peers import composer, megatron, optax, timm, torch, transformers
from isobatch.schedules.peers.live import from_torch
from isobatch.schedules.resolve import resolve
from isobatch.schedules.schedule import Schedule
from isobatch.schedules.text import check_spec

__all__ = [
    "COLUMNS",
    "Form",
    "Schedule",
    "ScheduleReason",
    "Units",
    "check_spec",
    "composer",
    "from_torch",
    "join",
    "megatron",
    "optax",
    "product",
    "resolve",
    "timm",
    "torch",
    "transformers",
    "warmup",
    *KINDS,
]
