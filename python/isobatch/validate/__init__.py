"""A real DDP run that confirms a plan: `isobatch validate plan.json --nproc-per-node 2`, or `launch` from Python.

What needs torch is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.validate.comparing import compare
    from isobatch.validate.launching import launch
    from isobatch.validate.options import Options
    from isobatch.validate.report import Proof, Report, Verdict, json_schema
    from isobatch.validate.worker import run
    from isobatch.validate.workload import Workload

_HOMES = {
    "Options": "options",
    "Proof": "report",
    "Report": "report",
    "Verdict": "report",
    "Workload": "workload",
    "compare": "comparing",
    "json_schema": "report",
    "launch": "launching",
    "run": "worker",
}

__all__ = [
    "Options",
    "Proof",
    "Report",
    "Verdict",
    "Workload",
    "compare",
    "json_schema",
    "launch",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch.validate' has no attribute {name!r}")
    value = getattr(import_module(f"isobatch.validate.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
