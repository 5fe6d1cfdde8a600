"""A real DDP run to confirm a plan.

`isobatch validate plan.json --nproc-per-node 2`, or `launch` from Python. Modules that need torch are
imported at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.validate.launching import launch as launch
    from isobatch.validate.options import Options as Options
    from isobatch.validate.report import Proof as Proof
    from isobatch.validate.report import Report as Report
    from isobatch.validate.report import Verdict as Verdict
    from isobatch.validate.report import json_schema as json_schema
    from isobatch.validate.worker import run as run
    from isobatch.validate.workload import Workload as Workload

_HOMES = {
    **dict.fromkeys(("Proof", "Report", "Verdict", "json_schema"), "report"),
    "Options": "options",
    "Workload": "workload",
    "launch": "launching",
    "run": "worker",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch.validate' has no attribute {name!r}")
    value = getattr(import_module(f"isobatch.validate.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
