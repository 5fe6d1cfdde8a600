from collections.abc import Sequence
from typing import Any, Self, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import disjoint_base

__all__ = [
    "Evaluator",
    "Planner",
    "Recipe",
    "Workloads",
    "__version__",
    "all_reduce_rows",
    "canonical",
    "check_settings",
    "choose_rows",
    "divide_pool",
    "fields",
    "fill_schedules",
    "fleet_fault",
    "forecast_rows",
    "length",
    "noise_over_run",
    "number",
    "optimizers",
    "plan_fleet",
    "precisions",
    "reasons",
    "results",
    "right_form",
    "rules",
    "schedule_shapes",
    "step_rows",
    "verdict",
]

__version__: str

_Table: TypeAlias = tuple[int, list[tuple[str, Any]]]
_Pairs: TypeAlias = tuple[Any, Any] | None

@final
class Recipe:
    def __new__(cls, fields: dict[str, Any]) -> Recipe: ...
    def stages(
        self, batch: int, consumed: int = 0, rule: str = "none"
    ) -> list[tuple[int, int | None, float]]: ...
    def epoch(
        self,
        dataset: int,
        offset: int,
        effective_batch: int,
        data_parallel: int,
        micro_batch: int,
        accumulation: int,
        ragged: bool,
    ) -> tuple[int, int, int, int]: ...

@final
class Planner:
    def __new__(cls, cluster: Sequence[str], settings: tuple[Any, ...], plan: Sequence[str]) -> Planner: ...
    def plan(
        self,
        recipe: Recipe,
        cluster: tuple[Any, ...],
        settings: tuple[Any, ...],
        workloads: Workloads | None = None,
        consumed: int = 0,
    ) -> tuple[str, int, tuple[Any, ...]]: ...

@disjoint_base
class Evaluator:
    def __new__(cls, form: Any) -> Self: ...
    def at(self, step: float) -> float: ...
    def values(self, steps: ArrayLike) -> NDArray[np.float64]: ...

def fill_schedules(
    schedules: Sequence[Evaluator], steps: tuple[float, float, int] | NDArray[np.float64], out: NDArray[Any]
) -> None: ...
def schedule_shapes() -> list[str]: ...
def length(text: str) -> tuple[int, int, str] | None: ...
def right_form(name: str, text: str) -> str | None: ...
def canonical(name: str, text: str) -> str | None: ...
def number(name: str, text: str) -> int | float | None: ...
def fields() -> list[tuple[str, str, str]]: ...
def reasons() -> list[tuple[str, str, str, str]]: ...
def rules() -> list[tuple[str, str, str, str]]: ...
def optimizers() -> dict[str, float]: ...
def precisions() -> dict[str, int]: ...
def check_settings(settings: dict[str, Any]) -> list[tuple[str, Any, str]]: ...
def results() -> list[tuple[str, str, str, bool, str, str]]: ...
def plan_fleet(
    jobs: _Table,
    clusters: _Table,
    shared: dict[str, Any],
    pairs: _Pairs,
    results: list[str],
    workloads: Workloads | None = None,
) -> list[Any]: ...
def choose_rows(
    jobs: _Table,
    clusters: _Table,
    shared: dict[str, Any],
    pairs: _Pairs,
    workloads: Workloads,
    by: str,
    top: int,
) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], int]: ...

@final
class Workloads:
    def __new__(cls, profiles: list[dict[str, Any]]) -> Workloads: ...

def fleet_fault(
    jobs: _Table, clusters: _Table, shared: dict[str, Any], pairs: _Pairs, row: int
) -> tuple[str, str] | None: ...

_Groups: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]

def divide_pool(
    offsets: NDArray[np.uint64],
    kind: NDArray[np.uint32],
    gpus: NDArray[np.uint64],
    value: NDArray[np.float64],
    wait: NDArray[np.float64],
    capacity: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], float, float, list[float], bool]: ...
def forecast_rows(
    constants: dict[str, tuple[float, float]],
    gradient: tuple[float, float, list[tuple[int, int, float]]],
    scatter: float,
    ranges: list[tuple[int, int]],
    rows: int,
    shapes: dict[str, NDArray[np.uint64]],
) -> tuple[list[NDArray[Any]], list[NDArray[np.bool_]]]: ...
def step_rows(
    constants: dict[str, tuple[float, float]],
    gradient_bytes: float,
    buckets: float,
    shapes: dict[str, NDArray[np.uint64]],
    sync_seconds: NDArray[np.float64],
) -> NDArray[np.float64]: ...
def all_reduce_rows(
    constants: dict[str, tuple[float, float]],
    per_node: NDArray[np.uint64],
    groups: NDArray[np.uint64],
    bytes: NDArray[np.float64],
) -> NDArray[np.float64]: ...
def noise_over_run(noise: list[tuple[float, float]], tuned_batch: float) -> float: ...
def verdict(value: float, error: float, limit: float) -> str | None: ...
