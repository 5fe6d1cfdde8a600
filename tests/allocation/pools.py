"""Pools and jobs for the tests of a division, and the best one by HiGHS."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from reference.profile import profile_of


def profile(*, per_sample=0.001, sync_gb_s=10.0, noise=None, gpu=None):
    """A workload with a slower all-reduce over the network than in a node."""
    links = {"intra_gb_s": float(sync_gb_s), "inter_gb_s": sync_gb_s / 4}
    memory = {"memory_fixed_gib": None, "memory_per_sample_gib": None}
    return profile_of(
        compute_per_sample=per_sample, overlap=1.0, noise_scale=noise, gpu=gpu, **links, **memory
    )


def random_jobs(draw, count):
    """A table of random jobs, their profiles by id, and their GPU types."""
    names = [f"job-{number}" for number in range(count)]
    jobs = {
        "job": names,
        "effective_batch": draw.choice([32, 64, 128, 256, 480], count),
        "lr": np.full(count, 0.1),
        "duration": [f"{draw.integers(1, 90)}00st" for _ in names],
        "min_gpus": draw.choice([1, 1, 1, 2, 4], count),
        "max_gpus": draw.choice([8, 16, 64], count),
        "weight": draw.choice([1.0, 1.0, 0.5, 3.0], count),
    }
    several = [
        profile(per_sample=10 ** draw.uniform(-4, -2), sync_gb_s=10 ** draw.uniform(-0.5, 1.5))
        for _ in range(5)
    ]
    return jobs, {name: several[draw.integers(5)] for name in names}


def random_options(draw, jobs, most, kinds=1):
    """Options as the core takes them: any values, mostly less for each GPU more."""
    offsets, kind, gpus, value = [0], [], [], []
    for _ in range(jobs):
        for number in range(kinds):
            counts = np.sort(
                draw.choice(np.arange(1, most + 1), draw.integers(0, min(most, 12) + 1), replace=False)
            )
            speed, bend = draw.uniform(0.5, 3), draw.uniform(0.2, 1)
            kind += [number] * len(counts)
            gpus += counts.tolist()
            value += (speed * counts**bend * draw.uniform(0.9, 1.1, len(counts))).tolist()
        offsets.append(len(kind))
    return (
        np.array(offsets, np.uint64),
        np.array(kind, np.uint32),
        np.array(gpus, np.uint64),
        np.array(value, np.float64),
        draw.uniform(-0.5, 0.5, jobs),
    )


def best_sum(offsets, kind, gpus, value, wait, capacity):
    """The largest sum, by HiGHS, to a relative gap of 1e-9."""
    jobs, options = len(wait), len(value)
    job = np.repeat(np.arange(jobs), np.diff(offsets.astype(np.int64)))
    gain = value - wait[job]
    if not options:
        return float(wait.sum())
    each_once = csr_array((np.ones(options), (job, np.arange(options))), shape=(jobs, options))
    used = csr_array((gpus.astype(float), (kind, np.arange(options))), shape=(len(capacity), options))
    solution = milp(
        -gain,
        constraints=[
            LinearConstraint(each_once, ub=np.ones(jobs)),
            LinearConstraint(used, ub=np.asarray(capacity, float)),
        ],
        integrality=np.ones(options),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-9},
    )
    assert solution.status == 0, solution.message
    return float(wait.sum() - solution.fun)
