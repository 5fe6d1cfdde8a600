from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__version__: str
MAX_GPUS: int

_Groups: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]

def elastic_rows(
    max_batch: NDArray[np.uint64],
    model_parallel: NDArray[np.uint64],
    gpus_per_node: NDArray[np.uint64],
    micros: _Groups,
    counts: _Groups,
    weights: NDArray[np.float64] | None,
    ranges: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    prefer_larger: bool,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
def goodput_rows(
    rows: int,
    times: list[NDArray[np.float64]],
    counts: list[NDArray[np.uint64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any], NDArray[Any], NDArray[Any]]: ...
def forecast_rows(
    constants: list[tuple[float, float]],
    gradient_bytes: float,
    scatter: float,
    ranges: list[tuple[int, int]],
    rows: int,
    shapes: list[NDArray[np.uint64]],
) -> tuple[list[NDArray[Any]], NDArray[np.bool_]]: ...
def micro_batch_rows(
    fixed: float, per_sample: float, bytes: NDArray[np.float64], most: int
) -> NDArray[np.int64]: ...
