"""The record under all parts of planning: what was asked, and what the core made of it."""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Self, cast

import msgspec

from isobatch import _core
from isobatch.errors import InputError
from isobatch.planning.settings import DEFAULTS, Settings
from isobatch.reason import Reason, reasons_in
from isobatch.recipes.cluster import Cluster
from isobatch.recipes.recipe import Recipe


class Layout(NamedTuple):
    """A step's samples over replicas and micro-batches; of a feasible plan, so all is known.

    `effective_batch` is micro_batch × accumulation × data_parallel, unless micro-batches differ in size or
    number (`irregular`).
    """

    micro_batch: int
    accumulation: int
    data_parallel: int
    effective_batch: int
    irregular: bool


class Handover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run at a move, and the meaning for the data and the optimizer."""

    step: int
    samples: int
    epoch: int | None
    offset: int | None
    repeated_samples: int
    skipped_samples: int
    velocity_factor: float


class PlanOrigin(NamedTuple):
    """The arguments of a plan beside its fields; they are not saved.

    `make` plans the same run with other clusters and settings (None: as a new run), for the ways out; `mute`
    says why the profile has no times of it.
    """

    make: Callable[[Cluster, Settings], Any] | None = None
    workloads: _core.Workloads | None = None
    mute: str | None = None


class PlanRecord(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """The question (recipe, cluster, settings) and the core's values by name.

    `consumed` counts the samples before this plan took over a run with a batch ramp, whose past stages do not
    count. A field that is added here has a default: plans that were saved before it are still read.
    """

    recipe: Recipe
    cluster: Cluster
    settings: Settings
    status: str
    reasons: tuple[Reason, ...]
    world_size: int
    data_parallel: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    effective_batch: int | None = None
    batch_change: float | None = None
    lr: float | None = None
    lr_scale: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    ema_decay: float | None = None
    warmup_steps: int | None = None
    steps_per_epoch: int | None = None
    total_steps: int | None = None
    eval_steps: int | None = None
    save_steps: int | None = None
    log_steps: int | None = None
    samples_per_epoch: int | None = None
    padded_samples: int | None = None
    dropped_samples: int | None = None
    step_seconds: float | None = None
    step_error: float | None = None
    samples_per_second: float | None = None
    efficiency: float | None = None
    hours: float | None = None
    hours_error: float | None = None
    gpu_hours: float | None = None
    cost: float | None = None
    memory_gib: float | None = None
    nearest_world_size: int | None = None
    nearest_batch: int | None = None
    warmup_lr: float | None = None
    min_lr: float | None = None
    rule: str = "none"
    nearest_world_sizes: tuple[int | None, int | None] = (None, None)
    nearest_batches: tuple[int | None, int | None] = (None, None)
    micro_batch_cap: int | None = None
    cap_source: str = "open"
    consumed: int = 0

    @cached_property
    def origin(self) -> PlanOrigin:
        """The arguments of the plan beside its fields; empty where it was read from a file."""
        return PlanOrigin()

    def with_origin(self, origin: PlanOrigin) -> Self:
        """Remembers the arguments of the plan, and returns the plan."""
        vars(self)["origin"] = origin
        return self

    @cached_property
    def layout(self) -> Layout:
        """The layout of a step; an InputError where the plan is infeasible."""
        if self.status == "infeasible":
            raise InputError(f"the plan is infeasible: {'; '.join(reason.text for reason in self.reasons)}")
        counts = self.micro_batch, self.accumulation, self.data_parallel, self.effective_batch
        irregular = Reason.RAGGED in self.reasons or Reason.UNEVEN in self.reasons
        return Layout(*cast(tuple[int, int, int, int], counts), irregular)

    @property
    def asked_batch(self) -> int | None:
        """The batch asked for, where it is known without a plan."""
        policy = self.settings.policy
        if isinstance(policy, int):
            return policy
        return self.recipe.effective_batch if policy == "keep" else None


def parallel_of(plan: PlanRecord, name: str) -> int:
    """Returns model_parallel or expert_parallel as the cluster has it, else as the recipe has it."""
    parallel: int = getattr(plan.cluster, name) or getattr(plan.recipe, name)
    return parallel


def gpu_multiple(plan: PlanRecord) -> int:
    """Computes the common divisor of all possible GPU counts."""
    return math.lcm(parallel_of(plan, "model_parallel"), parallel_of(plan, "expert_parallel"))


VALUES = PlanRecord.__struct_fields__[3:]
"""The names of what the core works out of a recipe, a cluster and settings."""
PLANNER = _core.Planner(cluster=Cluster.__struct_fields__, settings=DEFAULTS, plan=VALUES[2:])
"""Plans. It binds the names of the records here to those of the core, and fails where they differ."""


def worked_out(recipe: Recipe, cluster: Cluster, settings: Settings, consumed: int = 0) -> dict[str, Any]:
    """Returns the values of a plan by name."""
    where = msgspec.structs.astuple(cluster)
    status, bits, values = PLANNER.plan(recipe.core, where, settings, None, consumed)
    return dict(zip(VALUES, (status, reasons_in(bits), *values), strict=True))
