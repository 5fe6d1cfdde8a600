"""Random (job, cluster) pairs in the ranges that AdaptDL's own fits lie in."""

from typing import Any

import numpy as np


def random_pairs(rows: int, seed: int) -> dict[str, Any]:
    """Columns of AdaptDL's parameters, as its GoodputFunction takes them, and limits."""
    rng = np.random.default_rng(seed)

    def log(low: float, high: float) -> Any:
        return np.exp(rng.uniform(np.log(low), np.log(high), rows))

    replicas = rng.integers(1, 65, rows)
    nodes = np.maximum(1, np.ceil(replicas / rng.integers(1, 9, rows)).astype(int))
    tuned = log(32, 1024).astype(int)
    per_sample = log(1e-4, 1e-2)
    return {
        "nodes": nodes,
        "replicas": replicas,
        "alpha_c": per_sample * log(0.5, 50),
        "beta_c": per_sample,
        "alpha_n": log(1e-3, 1),
        "beta_n": log(1e-6, 1e-2),
        "alpha_r": log(1e-4, 0.3),
        "beta_r": log(1e-7, 1e-3),
        "gamma": rng.uniform(1, 10, rows),
        "sqr": log(1e-4, 1),
        "var": log(1e-3, 10),
        "tuned_batch": tuned,
        "max_batch": (tuned * log(1, 64)).astype(int) + replicas,
        "max_micro_batch": log(8, 512).astype(int),
    }


def ours(pairs: dict[str, Any]) -> dict[str, Any]:
    """The same pairs as arguments of ``optimize_goodput``."""
    replicas, across = pairs["replicas"], pairs["nodes"] > 1
    tiny = 1e-8  # What AdaptDL puts where there is nothing to reduce.
    alpha = np.where(across, pairs["alpha_n"], np.where(replicas > 1, pairs["alpha_r"], tiny))
    beta = np.where(across, pairs["beta_n"], np.where(replicas > 1, pairs["beta_r"], tiny))
    return {
        "replicas": replicas,
        "tuned_batch": pairs["tuned_batch"],
        "max_batch": pairs["max_batch"],
        "max_micro_batch": pairs["max_micro_batch"],
        "noise_scale": pairs["var"] / pairs["sqr"] * pairs["tuned_batch"],
        "compute_constant": pairs["alpha_c"],
        "compute_per_sample": pairs["beta_c"],
        "sync_seconds": alpha + beta * np.maximum(replicas - 2, tiny),
        "overlap": pairs["gamma"],
    }


def adaptdl_function(goodput: Any, pairs: dict[str, Any], row: int) -> Any:
    """AdaptDL's GoodputFunction of one row."""
    names = ("alpha_c", "beta_c", "alpha_n", "beta_n", "alpha_r", "beta_r", "gamma")
    performance = goodput.PerfParams(*(float(pairs[name][row]) for name in names))
    gradient = goodput.GradParams(float(pairs["sqr"][row]), float(pairs["var"][row]))
    return goodput.GoodputFunction(performance, gradient, int(pairs["tuned_batch"][row]))
