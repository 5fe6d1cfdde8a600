"""isobatch: tune once, train the same at any GPU count."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch import schedules, validate
    from isobatch._core import __version__
    from isobatch._elastic import Elastic, ElasticMany, elastic, elastic_many
    from isobatch._fleet import plan_fleet, plan_table
    from isobatch._goodput import optimize_goodput
    from isobatch._plan import Move, Plan, Settings, plan
    from isobatch._replan import replan
    from isobatch._sweep import Sweep, sweep
    from isobatch.critical import CriticalBatch, Laws, PowerFit, fit_critical_batch, fit_power, laws
    from isobatch.engines import Manifest
    from isobatch.errors import InputError
    from isobatch.profile import Profile
    from isobatch.reason import Reason, reasons_of
    from isobatch.recipe import Cluster, Recipe
    from isobatch.schedules._matrix import schedule_matrix

# Where each public name lives. They are imported when first used, so that `isobatch --help` need not load NumPy.
_HOMES = {
    "Cluster": "recipe",
    "CriticalBatch": "critical",
    "Elastic": "_elastic",
    "ElasticMany": "_elastic",
    "InputError": "errors",
    "Manifest": "engines",
    "Move": "_plan",
    "Laws": "critical",
    "Plan": "_plan",
    "PowerFit": "critical",
    "Profile": "profile",
    "Reason": "reason",
    "Recipe": "recipe",
    "Settings": "_plan",
    "Sweep": "_sweep",
    "__version__": "_core",
    "elastic": "_elastic",
    "elastic_many": "_elastic",
    "fit_critical_batch": "critical",
    "fit_power": "critical",
    "laws": "critical",
    "optimize_goodput": "_goodput",
    "plan": "_plan",
    "plan_fleet": "_fleet",
    "plan_table": "_fleet",
    "reasons_of": "reason",
    "sweep": "_sweep",
    "replan": "_replan",
    "schedule_matrix": "schedules._matrix",
}
_MODULES = ("integrations", "schedules", "validate")

__all__ = [
    "Cluster",
    "CriticalBatch",
    "Elastic",
    "ElasticMany",
    "InputError",
    "Laws",
    "Manifest",
    "Move",
    "Plan",
    "PowerFit",
    "Profile",
    "Reason",
    "Recipe",
    "Settings",
    "Sweep",
    "__version__",
    "elastic",
    "elastic_many",
    "fit_critical_batch",
    "fit_power",
    "laws",
    "optimize_goodput",
    "plan",
    "plan_fleet",
    "plan_table",
    "reasons_of",
    "sweep",
    "replan",
    "schedule_matrix",
    "schedules",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"isobatch.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch' has no attribute {name!r}")
    value = getattr(import_module(f"isobatch.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
