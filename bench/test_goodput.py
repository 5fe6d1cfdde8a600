"""optimize_goodput against AdaptDL's GoodputFunction.optimize, one pair at a time and batched, in one run."""

import numpy as np
import pytest

from isobatch.forecast.goodput import optimize_goodput
from pairs import adaptdl_function, ours, random_pairs
from peers import adaptdl_goodput

ROWS = 100_000


def test_isobatch(benchmark):
    arguments = ours(random_pairs(ROWS, seed=3))
    benchmark.group = "goodput"
    benchmark.extra_info["rows"] = ROWS
    benchmark(lambda: optimize_goodput(**arguments))


def test_isobatch_one(benchmark):
    arguments = {name: column[0].item() for name, column in ours(random_pairs(1, seed=3)).items()}
    benchmark.group = "goodput"
    benchmark.extra_info["rows"] = 1
    benchmark(lambda: optimize_goodput(**arguments))


@pytest.fixture
def function():
    return adaptdl_function(adaptdl_goodput(), random_pairs(1, seed=3), 0)


@pytest.mark.peers
def test_adaptdl_one(benchmark, function):
    benchmark.group = "goodput"
    benchmark.extra_info["rows"] = 1
    benchmark(lambda: function.optimize(2, 8, 8192, (1, 64), accumulation=True))


@pytest.mark.peers
def test_adaptdl_batched(benchmark, function):
    nodes = np.repeat(np.arange(1, 9), 2560)
    replicas = np.maximum(nodes, np.tile(np.arange(1, 65), 320))
    benchmark.group = "goodput"
    benchmark.extra_info["rows"] = len(nodes)
    benchmark(lambda: function.optimize(nodes, replicas, 8192, (1, 64), accumulation=True))
