"""ib.allocate, and its core against HiGHS (scipy.optimize.milp) on the same values, in one run.

`python bench/test_allocate.py` prints the times, both sides in turns, and plays 1,000 random pools against
HiGHS.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

import isobatch as ib
from isobatch import _core

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from allocation.pools import best_sum, random_jobs, random_options

SIZES = {"160 jobs, 64 GPUs": (160, 16, 4), "10,000 jobs, 100,000 GPUs": (10_000, 12_500, 8)}


def question(size):
    """The jobs, their profiles, and the pool."""
    jobs, nodes, per_node = SIZES[size]
    table, profiles = random_jobs(np.random.default_rng(0), jobs)
    return table, profiles, ib.Cluster(nodes=nodes, gpus_per_node=per_node)


def options(size):
    """Values of every count of every job, as the core and HiGHS get them."""
    jobs, nodes, per_node = SIZES[size]
    return (*random_options(np.random.default_rng(0), jobs, 64), np.array([nodes * per_node], np.uint64))


@pytest.mark.parametrize("size", SIZES)
def test_whole(benchmark, size):
    table, profiles, pool = question(size)
    benchmark.group = f"allocate, {size}"
    benchmark(ib.allocate, table, pool, profile=profiles)


@pytest.mark.parametrize("size", SIZES)
def test_core(benchmark, size):
    arguments = options(size)
    benchmark.group = f"the division alone, {size}"
    benchmark(_core.divide_pool, *arguments)


@pytest.mark.parametrize("size", SIZES)
def test_highs(benchmark, size):
    arguments = options(size)
    benchmark.group = f"the division alone, {size}"
    benchmark.pedantic(best_sum, args=arguments, rounds=1)


def best_of(function, times):
    results = []
    for _ in range(times):
        start = time.perf_counter()
        answer = function()
        results.append(time.perf_counter() - start)
    return min(results), answer


def against_highs(pools):
    """Random pools: how many are exact, and the largest distance to HiGHS."""
    worst = exact = 0
    for seed in range(pools):
        draw = np.random.default_rng((7, seed))
        kinds = int(draw.integers(1, 4))
        arguments = random_options(draw, int(draw.integers(1, 101)), 16, kinds)
        room = draw.integers(0, 64 // kinds + 1, kinds).astype(np.uint64)
        _, value, bound, _, is_exact = _core.divide_pool(*arguments, room)
        best = best_sum(*arguments, room)
        exact += is_exact
        worst = max(worst, abs(value - best) / max(abs(best), 1))
        assert bound >= best - 1e-7 * max(abs(best), 1), seed
    return exact, worst


def event(jobs=1000, nodes=500):
    """A scheduler's question when a node has died: who holds what is known, and one node less is there."""
    table, profiles = random_jobs(np.random.default_rng(0), jobs)
    table["age_seconds"] = np.full(jobs, 3600.0)
    pool = {"node": [f"n{number}" for number in range(nodes)], "gpus": [8] * nodes}
    first, allocation = best_of(lambda: ib.allocate(table, pool, profile=profiles), 5)
    placements = [
        {"job": job, "node": n, "gpus": g} for job, on in allocation.placement.items() for n, g in on.items()
    ]
    held_columns = {name: [row[name] for row in placements] for name in ("job", "node", "gpus")}
    less = {name: cells[1:] for name, cells in pool.items()}
    again, after = best_of(lambda: ib.allocate(table, less, held=held_columns, profile=profiles), 15)
    return first, again, len(after.changes)


if __name__ == "__main__":
    for size in SIZES:
        table, profiles, pool = question(size)
        whole, allocation = best_of(lambda: ib.allocate(table, pool, profile=profiles), 5)  # noqa: B023
        print(f"{size}: allocate {whole * 1e3:.1f} ms, gap {allocation.gap:.2g}")
        arguments = options(size)
        core_seconds, answer = best_of(lambda: _core.divide_pool(*arguments), 5)  # noqa: B023
        highs_seconds, best = best_of(lambda: best_sum(*arguments), 1)  # noqa: B023
        print(
            f"  the division alone: {core_seconds * 1e3:.1f} ms, HiGHS {highs_seconds * 1e3:.0f} ms, "
            f"{highs_seconds / core_seconds:.0f} times; exact {answer[4]}"
        )
        print(f"  value {answer[1]:.6f}, HiGHS {best:.6f}, bound {answer[2]:.6f}")
    first, again, changes = event()
    print(
        f"1,000 jobs on 4,000 GPUs: {first * 1e3:.1f} ms; a node dies: {again * 1e3:.1f} ms, {changes} "
        "changes"
    )
    pools = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    exact, worst = against_highs(pools)
    print(
        f"{pools} random pools of up to 100 jobs, 64 GPUs, 3 kinds: {exact} exact, at most {worst:.1g} from "
        "HiGHS"
    )
