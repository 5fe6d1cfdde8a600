"""isobatch: tune once, train the same at any GPU count."""

import sys
from importlib import import_module
from typing import Any

# A name is imported from its module when it is first used: `isobatch --help` need not load NumPy. Type
# checkers read `__init__.pyi`.
_NAMES = {
    "isobatch": "integrations schedules validate",
    "isobatch._core": "__version__",
    "isobatch.allocation.allocate": "Allocation allocate",
    "isobatch.equivalence.models": "same_model",
    "isobatch.equivalence.session": "Same same",  # with every kind of answer that Same.load reads
    "isobatch.errors": "InputError",
    "isobatch.fleet.counts": "Counts counts",
    "isobatch.fleet.explain": "explain",
    "isobatch.fleet.plan_fleet": "plan_files plan_fleet plan_table",
    "isobatch.forecast.calibrate": "calibrate",
    "isobatch.forecast.estimate": "estimate",
    "isobatch.forecast.laws": "laws",
    "isobatch.forecast.profile": "Constant Profile",
    "isobatch.planning.plan": "FeasiblePlan Plan plan",
    "isobatch.planning.replan": "replan",
    "isobatch.planning.settings": "Settings rules",
    "isobatch.probing.probe": "probe",
    "isobatch.reason": "Reason",
    "isobatch.recipes.cluster": "Cluster",
    "isobatch.recipes.recipe": "Recipe",
    "isobatch.report.pages": "plot",
    "isobatch.schedules.matrix": "schedule_matrix",
    "isobatch.validate.memory": "memory_of",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from isobatch.errors import successor_of
        from isobatch.words import nearest

        if successor := successor_of(f"isobatch.{name}"):
            return getattr(sys.modules["isobatch"], successor.removeprefix("isobatch."))
        close = nearest(name, sorted(_HOMES, key=str.swapcase))  # of two that differ in case, the function
        hint = f": did you mean {close!r}?" if close else ""
        raise AttributeError(f"module 'isobatch' has no attribute {name!r}{hint}")
    home = _HOMES[name]
    value = import_module(f"isobatch.{name}") if home == "isobatch" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Registers the cells of our values in a notebook started after the import (`%load_ext isobatch`)."""
    from isobatch.report.notebook import register

    register(shell)


import_module("isobatch.tools")  # hands down its readers and writers
if hasattr(sys.modules.get("IPython"), "get_ipython"):
    load_ipython_extension(sys.modules["IPython"].get_ipython())
