"""ib.elastic_many against DeepSpeed's compute_elastic_config, in one run.

Each cap has the configurations that DeepSpeed's own default serves: every count from 1 to 10,000, and one to five
micro-batches; `usual` draws these from 1, 2, 3, 4, 6, 8, 12 … 64, `any` from all numbers up to 64.
"""

import random

import numpy as np
import pytest

import isobatch as ib
from peers import deepspeed_elasticity

COUNT = 1000
PEER_COUNT = 60
USUAL = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
CAPS = {
    "256": (250, 262),
    "4096": (4000, 4192),
    "65536": (64_000, 67_000),
    "1e6": (950_000, 1_000_000),
    "64 to 1e6": (64, 1_000_000),
}


def configurations(caps, kind, count):
    rng = random.Random(0)
    low, high = np.log(CAPS[caps])
    sizes = USUAL if kind == "usual" else range(1, 65)
    return [(int(np.exp(rng.uniform(low, high))), rng.sample(sizes, rng.randint(1, 5))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["usual", "any"])
@pytest.mark.parametrize("caps", CAPS)
def test_isobatch(benchmark, caps, kind):
    batches, micros = zip(*configurations(caps, kind, COUNT), strict=True)
    benchmark.group = f"elastic, {kind} micro-batches, cap {caps}"
    benchmark.extra_info["rows"] = COUNT
    benchmark(ib.elastic_many, max_batch=batches, micro_batches=micros, gpus=range(1, 10_001))


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["usual", "any"])
@pytest.mark.parametrize("caps", CAPS)
def test_deepspeed(benchmark, caps, kind):
    elasticity = deepspeed_elasticity()
    rows = [
        {
            "elasticity": {
                "enabled": True,
                "max_train_batch_size": cap,
                "micro_batch_sizes": micros,
                "version": 0.1,
            }
        }
        for cap, micros in configurations(caps, kind, PEER_COUNT)
        if min(micros) <= cap
    ]
    rows = [
        row
        for row in rows
        if max(row["elasticity"]["micro_batch_sizes"]) <= row["elasticity"]["max_train_batch_size"]
    ]
    benchmark.group = f"elastic, {kind} micro-batches, cap {caps}"
    benchmark.extra_info["rows"] = len(rows)
    benchmark.pedantic(lambda: [elasticity.compute_elastic_config(row, "0.19.7") for row in rows], rounds=3)
