"""Keeps Ray Train to feasible numbers of workers.

`ScalingConfig(num_workers=(1, 8))` alone takes any number from 1 to 8. `GoodCountsTrainer` takes the same
arguments as TorchTrainer, and the counts:

    counts = ib.counts(recipe, range(1, 9)).working
    scaling = ray.train.ScalingConfig(num_workers=(1, 8), use_gpu=True)
    GoodCountsTrainer(train, counts=counts, scaling_config=scaling).fit()

It needs Ray 2.55 or later, and uses two methods that Ray does not document.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import ray
import ray.cloudpickle
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.execution.scaling_policy import ElasticScalingPolicy

import isobatch as ib

# The controller runs on any node, also where this file is not.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class GoodCounts(ElasticScalingPolicy):
    """Rounds the workers of Ray's elastic policy down to a feasible count.

    Raises:
        InputError: no count lies within the range of the scaling configuration.
    """

    def __init__(self, scaling_config: ScalingConfig, counts: Sequence[int]) -> None:
        super().__init__(scaling_config)
        low, high = scaling_config.min_workers, scaling_config.max_workers
        self.counts = sorted(count for count in {*counts} if low <= count <= high)
        if not self.counts:
            why = f"none of the counts {sorted({*counts})} lies in num_workers=({low}, {high})"
            raise ib.InputError(why, field="counts")

    def _get_num_workers_for_resource_request(self) -> int:
        return self.counts[-1]

    def _count_possible_workers(self, *resources: Any) -> int:
        possible = super()._count_possible_workers(*resources)
        return max((count for count in self.counts if count <= possible), default=0)  # with 0 it waits


class GoodCountsTrainer(TorchTrainer):
    """Trains on these numbers of workers alone, otherwise as TorchTrainer."""

    def __init__(
        self, train: Any, *, counts: Sequence[int], scaling_config: ScalingConfig, **more: Any
    ) -> None:
        if not scaling_config.elasticity_enabled:
            why = f"must be a range such as (1, 8), got {scaling_config.num_workers}"
            raise ib.InputError(f"num_workers {why}", field="num_workers")
        super().__init__(train, scaling_config=scaling_config, **more)
        self.policy = GoodCounts(scaling_config, counts)

    def _initialize_and_run_controller(self, **parts: Any) -> Any:
        return super()._initialize_and_run_controller(**parts | {"scaling_policy": self.policy})
