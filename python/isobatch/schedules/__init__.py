"""Learning-rate schedules: values that are evaluated anywhere, and the peers' own under their own names.

A `Schedule` is frozen, hashable, picklable and JSON in and out. `s.at(step)` is one value, `s.values(steps)`
an array of them, `isobatch.schedule_matrix` many schedules × many steps. A peer's names are loaded when they
are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import isobatch.schedules.kinds  # noqa: F401 - registers them
from isobatch.schedules.form import Form
from isobatch.schedules.schedule import Schedule, join, product, warmup
from isobatch.schedules.text import KINDS, Units, check_spec, resolve

if TYPE_CHECKING:
    from isobatch.schedules.kinds import *  # noqa: F403
    from isobatch.schedules.lint import ScheduleReason as ScheduleReason
    from isobatch.schedules.matrix import COLUMNS as COLUMNS
    from isobatch.schedules.peers import megatron, optax, timm, torch, transformers
    from isobatch.schedules.peers.live import from_torch as from_torch

for _kind in KINDS.values():
    globals()[_kind.name] = _kind.constructor

_HOMES = {"COLUMNS": "matrix", "ScheduleReason": "lint", "from_torch": "peers.live"}
_PEERS = ("megatron", "optax", "timm", "torch", "transformers")

__all__ = [
    "COLUMNS",
    "Form",
    "Schedule",
    "ScheduleReason",
    "Units",
    "check_spec",
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


def __getattr__(name: str) -> Any:
    if name in _PEERS:
        return import_module(f"isobatch.schedules.peers.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch.schedules' has no attribute {name!r}")
    return getattr(import_module(f"isobatch.schedules.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
