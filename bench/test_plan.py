"""Plans: bulk rows a second, one call's latency, import and --help, each beside its opponent in one run.

pytest bench/test_plan.py --benchmark-enable --benchmark-columns=min,median,rounds
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isobatch as ib
import peers
from isobatch import _core
from reference import bulk

RESULT_TYPES = {name: kind for name, kind, *_ in _core.results()}
JOBS, CLUSTERS = 100_000, 100
RESULTS = [
    "data_parallel", "micro_batch", "accumulation", "effective_batch", "batch_change", "lr", "lr_scale",
    "warmup_steps", "steps_per_epoch", "total_steps", "samples_per_epoch", "padded_samples",
]  # fmt: skip
"""A dozen, all of which both sides compute."""


@pytest.fixture(scope="module")
def fleet():
    rng = np.random.default_rng(0)
    gpus = 2 ** rng.integers(0, 4, JOBS)
    micro = 2 ** rng.integers(0, 6, JOBS)
    jobs = {
        "effective_batch": gpus * micro * rng.integers(1, 40, JOBS),
        "lr": rng.uniform(1e-4, 1, JOBS),
        "gpus": gpus,
        "micro_batch": micro,
        "dataset_size": rng.integers(100_000, 10_000_000, JOBS),
    }
    sgd = rng.random(JOBS) < 0.5
    own_jobs = {
        **jobs,
        "optimizer": np.where(sgd, "sgd", "adamw"),
        "duration": np.full(JOBS, "90ep"),
        "warmup": np.full(JOBS, "5ep"),
    }
    numpy_jobs = {**jobs, "sgd": sgd, "epochs": np.full(JOBS, 90.0), "warmup_epochs": np.full(JOBS, 5.0)}
    return own_jobs, numpy_jobs, np.arange(1, CLUSTERS + 1)


@pytest.mark.benchmark(group="10 M rows, a dozen columns, policy grow")
class TestBulk:
    def test_isobatch(self, benchmark, fleet):
        own_jobs, _, gpus = fleet
        benchmark.pedantic(
            lambda: ib.plan_fleet(own_jobs, gpus.tolist(), policy="grow", columns=RESULTS),
            rounds=5,
            warmup_rounds=1,
        )

    def test_vectorised_numpy(self, benchmark, fleet):
        _, numpy_jobs, gpus = fleet
        rows = bulk.cross(numpy_jobs, gpus)  # not timed: our side crosses by itself
        benchmark.pedantic(lambda: bulk.plan(rows, policy="grow"), rounds=2, warmup_rounds=0)

    def test_merely_writing_the_same_bytes(self, benchmark):
        rows = JOBS * CLUSTERS
        kinds = [np.dtype(RESULT_TYPES[name]) for name in RESULTS]
        halves = slice(0, rows // 2), slice(rows // 2, rows)

        def write():
            fresh = [np.empty(rows, kind) for kind in kinds]
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda half: [column[half].fill(1) for column in fresh], halves))
            return fresh

        benchmark.pedantic(write, rounds=5, warmup_rounds=1)


def test_both_sides_agree(fleet):
    own_jobs, numpy_jobs, gpus = fleet
    own_jobs, numpy_jobs = (
        {name: column[:200] for name, column in side.items()} for side in (own_jobs, numpy_jobs)
    )
    plans = ib.plan_fleet(own_jobs, gpus.tolist(), policy="grow", columns=RESULTS)
    expected = bulk.plan(bulk.cross(numpy_jobs, gpus), policy="grow")
    known = plans["micro_batch"] != -1
    assert known.any()
    for name in RESULTS:
        np.testing.assert_array_max_ulp(
            plans[name][known].astype(float), np.asarray(expected[name])[known].astype(float), 4
        )


@pytest.mark.benchmark(group="one call")
class TestOneCall:
    recipe = ib.Recipe.from_gpus(
        gpus=8,
        batch_per_gpu=32,
        lr=0.1,
        optimizer="sgd",
        dataset_size=1_281_167,
        duration="90ep",
        warmup="5ep",
    )

    def test_isobatch_plan(self, benchmark):
        benchmark(ib.plan, self.recipe, 64, policy="grow")

    def test_isobatch_lr_at(self, benchmark):
        benchmark(ib.plan(self.recipe, 64).lr_at, 12_345)

    def test_torch_scheduler_step(self, benchmark):
        torch = pytest.importorskip("torch", reason="comes with the extra 'validate'")
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10**9)
        optimizer.step()
        benchmark(scheduler.step)

    def test_adaptdl_optimize(self, benchmark):
        goodput = peers.adaptdl_goodput()
        function = goodput.GoodputFunction(
            goodput.PerfParams(0.1, 0.01, 0.02, 0.001, 0.02, 0.001, 1.5), goodput.GradParams(0.01, 0.1), 256
        )
        benchmark(function.optimize, 8, 64, max_batch_size=4096, atomic_bsz_range=(8, 128), accumulation=True)


@pytest.mark.benchmark(group="start")
@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import isobatch, isobatch.planning.plan"],
        ["-c", "import numpy, msgspec"],
        ["-m", "isobatch", "--help"],
        ["-c", "pass"],
    ],
    ids=" ".join,
)
def test_start(benchmark, words):
    benchmark.pedantic(
        subprocess.run,
        args=([sys.executable, *words],),
        kwargs={"check": True, "capture_output": True},
        rounds=20,
    )
