"""Every public name and its module, as `__init__.py` has them: read by type checkers."""

from typing import Any

from isobatch import integrations as integrations
from isobatch import schedules as schedules
from isobatch import validate as validate
from isobatch._core import __version__ as __version__
from isobatch.allocation.allocate import Allocation as Allocation
from isobatch.allocation.allocate import allocate as allocate
from isobatch.equivalence.models import same_model as same_model
from isobatch.equivalence.session import Same as Same
from isobatch.equivalence.session import same as same
from isobatch.errors import InputError as InputError
from isobatch.fleet.counts import Counts as Counts
from isobatch.fleet.counts import counts as counts
from isobatch.fleet.explain import explain as explain
from isobatch.fleet.plan_fleet import plan_files as plan_files
from isobatch.fleet.plan_fleet import plan_fleet as plan_fleet
from isobatch.fleet.plan_fleet import plan_table as plan_table
from isobatch.forecast.calibrate import calibrate as calibrate
from isobatch.forecast.estimate import estimate as estimate
from isobatch.forecast.laws import laws as laws
from isobatch.forecast.profile import Constant as Constant
from isobatch.forecast.profile import Profile as Profile
from isobatch.planning.plan import FeasiblePlan as FeasiblePlan
from isobatch.planning.plan import Plan as Plan
from isobatch.planning.plan import plan as plan
from isobatch.planning.replan import replan as replan
from isobatch.planning.settings import Settings as Settings
from isobatch.planning.settings import rules as rules
from isobatch.probing.probe import probe as probe
from isobatch.reason import Reason as Reason
from isobatch.recipes.cluster import Cluster as Cluster
from isobatch.recipes.recipe import Recipe as Recipe
from isobatch.report.pages import plot as plot
from isobatch.schedules.matrix import schedule_matrix as schedule_matrix
from isobatch.validate.memory import memory_of as memory_of

def load_ipython_extension(shell: Any) -> None: ...
