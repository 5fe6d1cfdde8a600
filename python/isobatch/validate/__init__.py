"""A real DDP run that confirms a plan: `isobatch validate plan.json --nproc-per-node 2`, or `launch` from Python.

What needs torch is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.validate.options import Options
    from isobatch.validate.ranks.launching import launch
    from isobatch.validate.ranks.worker import run
    from isobatch.validate.report.comparing import compare
    from isobatch.validate.report.report import Proof, Report, Verdict, json_schema
    from isobatch.validate.step.workload import Workload

_HOMES = {
    "Options": "options",
    "Proof": "report.report",
    "Report": "report.report",
    "Verdict": "report.report",
    "Workload": "step.workload",
    "compare": "report.comparing",
    "json_schema": "report.report",
    "launch": "ranks.launching",
    "run": "ranks.worker",
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
