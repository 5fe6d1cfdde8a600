"""No division is better: against HiGHS, on options of any values and on whole questions."""

import os
import signal

import numpy as np
import pytest

import isobatch as ib
from allocation.pools import best_sum, random_jobs, random_options
from isobatch import _core

pytest.importorskip("scipy")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kinds", [1, 3])
def test_the_core_divides_as_highs_does(seed, kinds):
    draw = np.random.default_rng((seed, kinds))
    options = random_options(draw, int(draw.integers(1, 60)), 12, kinds)
    room = draw.integers(0, 65 // kinds, kinds).astype(np.uint64)
    choice, value, bound, _, exact = _core.divide_pool(*options, room)
    best = best_sum(*options, room)
    assert exact
    assert value == pytest.approx(best, rel=1e-8, abs=1e-8)
    assert bound >= best - 1e-8
    running = choice[choice >= 0]
    used = np.bincount(options[1][running], options[2][running].astype(float), minlength=kinds)
    assert (used <= room).all()


@pytest.mark.parametrize("objective", ["fair", "throughput", "finish", "cost"])
@pytest.mark.parametrize("seed", range(3))
def test_a_pool_of_one_node_has_no_gap(objective, seed):
    draw = np.random.default_rng(seed)
    jobs, profiles = random_jobs(draw, 40)
    pool = {"gpus": [48], "price_per_gpu_hour": [2.0]}
    answer = ib.allocate(jobs, pool, objective=objective, profile=profiles)
    assert answer.gap == 0
    assert answer.used == sum(sum(nodes.values()) for nodes in answer.placement.values()) <= 48


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_bounds_the_optimum(seed):
    draw = np.random.default_rng(seed)
    jobs, profiles = random_jobs(draw, 60)
    answer = ib.allocate(
        jobs, ib.Cluster(nodes=16, gpus_per_node=4), objective="throughput", profile=profiles
    )
    assert 0 <= answer.gap < 0.02
    free = dict.fromkeys(map(str, range(16)), 4)
    for nodes in answer.placement.values():
        for node, gpus in nodes.items():
            free[node] -= gpus
    assert min(free.values()) >= 0


def test_a_fault_of_the_core_is_an_error_and_not_the_end_of_the_process():
    beyond, single = np.array([0, 9], np.uint64), np.ones(1, np.uint64)
    with pytest.raises(RuntimeError, match="fault"):
        _core.divide_pool(beyond, np.zeros(1, np.uint32), single, np.ones(1), np.zeros(1), single)


def test_a_forked_child_divides():
    def answer():
        return ib.allocate(*question, profile=profiles).value

    jobs, profiles = random_jobs(np.random.default_rng(1), 600)
    question = jobs, ib.Cluster(nodes=100, gpus_per_node=8)
    value = answer()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout's waits for the interpreter
            signal.alarm(60)  # a child that waits for its parent's threads ends by this
            os._exit(answer() != value)
        finally:  # one that raises does not go on with the tests
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
