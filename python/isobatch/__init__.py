"""isobatch: tune once, train the same at any GPU count."""

from isobatch import schedules
from isobatch._core import __version__
from isobatch._fleet import plan_fleet
from isobatch._plan import Plan, plan
from isobatch.errors import InputError
from isobatch.reason import Reason, reasons_of
from isobatch.recipe import Cluster, Recipe

__all__ = [
    "Cluster",
    "InputError",
    "Plan",
    "Reason",
    "Recipe",
    "__version__",
    "plan",
    "plan_fleet",
    "reasons_of",
    "schedules",
]
