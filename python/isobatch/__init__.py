"""isobatch: tune once, train the same at any GPU count."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch import integrations as integrations
    from isobatch import schedules as schedules
    from isobatch import validate as validate
    from isobatch._core import __version__ as __version__
    from isobatch.errors import InputError as InputError
    from isobatch.fleet.explain import explain as explain
    from isobatch.fleet.folder.manifest import Manifest as Manifest
    from isobatch.fleet.plan_fleet import plan_files as plan_files
    from isobatch.fleet.plan_fleet import plan_fleet as plan_fleet
    from isobatch.fleet.plan_fleet import plan_table as plan_table
    from isobatch.fleet.sweep import Sweep as Sweep
    from isobatch.fleet.sweep import sweep as sweep
    from isobatch.forecast.calibrate import calibrate as calibrate
    from isobatch.forecast.critical import fit_critical_batch as fit_critical_batch
    from isobatch.forecast.critical import fit_power as fit_power
    from isobatch.forecast.estimate import estimate as estimate
    from isobatch.forecast.goodput import optimize_goodput as optimize_goodput
    from isobatch.forecast.laws import laws as laws
    from isobatch.forecast.profile import Constant as Constant
    from isobatch.forecast.profile import Profile as Profile
    from isobatch.planning.elastic import Elastic as Elastic
    from isobatch.planning.elastic import ElasticMany as ElasticMany
    from isobatch.planning.elastic import elastic as elastic
    from isobatch.planning.elastic import elastic_many as elastic_many
    from isobatch.planning.plan import FeasiblePlan as FeasiblePlan
    from isobatch.planning.plan import Move as Move
    from isobatch.planning.plan import Plan as Plan
    from isobatch.planning.plan import plan as plan
    from isobatch.planning.replan import replan as replan
    from isobatch.planning.settings import Settings as Settings
    from isobatch.probing.probe import probe as probe
    from isobatch.reason import Reason as Reason
    from isobatch.reason import reasons_of as reasons_of
    from isobatch.recipes.cluster import Cluster as Cluster
    from isobatch.recipes.recipe import Recipe as Recipe
    from isobatch.report.plot import plot as plot
    from isobatch.schedules.matrix import schedule_matrix as schedule_matrix
    from isobatch.validate.memory import memory_of as memory_of

# Every public name and the module that it is imported from, when it is first used: `isobatch --help` need not load NumPy.
# An empty module is a package of ours.
_HOMES = {
    "Cluster": "recipes.cluster",
    "Constant": "forecast.profile",
    "Elastic": "planning.elastic",
    "ElasticMany": "planning.elastic",
    "FeasiblePlan": "planning.plan",
    "InputError": "errors",
    "Manifest": "fleet.folder.manifest",
    "Move": "planning.plan",
    "Plan": "planning.plan",
    "Profile": "forecast.profile",
    "Reason": "reason",
    "Recipe": "recipes.recipe",
    "Settings": "planning.settings",
    "Sweep": "fleet.sweep",
    "__version__": "_core",
    "calibrate": "forecast.calibrate",
    "elastic": "planning.elastic",
    "elastic_many": "planning.elastic",
    "estimate": "forecast.estimate",
    "explain": "fleet.explain",
    "fit_critical_batch": "forecast.critical",
    "fit_power": "forecast.critical",
    "integrations": "",
    "laws": "forecast.laws",
    "memory_of": "validate.memory",
    "optimize_goodput": "forecast.goodput",
    "plan": "planning.plan",
    "plan_files": "fleet.plan_fleet",
    "plan_fleet": "fleet.plan_fleet",
    "plan_table": "fleet.plan_fleet",
    "plot": "report.plot",
    "probe": "probing.probe",
    "reasons_of": "reason",
    "replan": "planning.replan",
    "schedule_matrix": "schedules.matrix",
    "schedules": "",
    "sweep": "fleet.sweep",
    "validate": "",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(import_module(f"isobatch.{home}"), name) if home else import_module(f"isobatch.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Registers how a notebook shows our values, where isobatch was imported before it ran: `%load_ext isobatch`."""
    from isobatch.notebook import register

    register(shell)


if hasattr(sys.modules.get("IPython"), "get_ipython"):
    load_ipython_extension(sys.modules["IPython"].get_ipython())
