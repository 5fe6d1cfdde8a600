"""Divisions of random pools: no node exceeds its GPUs, limits hold, the value is at most the bound,
each row is its count's plan,
and what is asked again with the answer held stays."""

import numpy as np

import isobatch as ib
from allocation.pools import random_jobs


def check_allocations(seed: int, pools: int) -> int:
    """Plays pools of one to three kinds of nodes."""
    for number in range(pools):
        draw = np.random.default_rng((seed, number))
        jobs, profiles = random_jobs(draw, int(draw.integers(1, 25)))
        nodes = {
            "node": [f"n{at}" for at in range(6)],
            "gpus": draw.choice([0, 4, 7, 8], 6),
            "price_per_gpu_hour": draw.choice([1.0, 2.0], 6),
        }
        nodes["gpus"][0] = 8
        objective = str(draw.choice(["fair", "throughput", "finish", "cost"]))
        result = ib.allocate(jobs, nodes, objective=objective, profile=profiles)
        case = f"seed {seed}, pool {number}: {objective}: {result!r}"
        _check(result, jobs, nodes, case)
        holdings = [
            {"job": job, "node": node, "gpus": gpus}
            for job, on in result.placement.items()
            for node, gpus in on.items()
        ]
        again = ib.allocate(jobs, nodes, objective=objective, profile=profiles, held=holdings)
        _check(again, jobs, nodes, f"{case}, again: {again!r}")
        if result.gap == 0:
            moved = again.table["status"] == "moves"
            assert not moved.any(), f"a best division is left: {case}, again: {again!r}, {again.changes}"
    return pools


def _check(result: ib.Allocation, jobs: dict, nodes: dict, case: str) -> None:
    free = dict(zip(nodes["node"], nodes["gpus"].tolist(), strict=True))
    for row in result.rows():
        own = result.placement.get(row["job"], {})
        at = jobs["job"].index(row["job"])
        assert sum(own.values()) == row["gpus"], case
        assert not own or jobs["min_gpus"][at] <= row["gpus"] <= jobs["max_gpus"][at], case
        assert bool(row["why"]) == (row["status"] == "waits"), f"{row}: {case}"
        assert not own or row["micro_batch"] * row["accumulation"] * row["gpus"] == row["effective_batch"], (
            f"{row}: {case}"
        )
        for node, gpus in own.items():
            free[node] -= gpus
    assert min(free.values()) >= 0, case
    assert sum(free.values()) == result.idle, case
    best = result.bound - result.value
    assert (best if result.objective in ("fair", "throughput") else -best) >= -1e-9 * abs(result.bound), case
