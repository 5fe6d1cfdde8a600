"""Bulk rows: identities that need no oracle, over whole columns in NumPy, hostile values among them."""

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

import isobatch as ib
from isobatch import _core
from planning.test_oracle import beside_the_rule

Columns = dict[str, NDArray[Any]]

CLUSTERS = 128
INFEASIBLE = np.uint64(sum(1 << reason.bit for reason in ib.Reason if reason.severity == "infeasible"))
LAID_OUT = np.uint64(1 << ib.Reason.RAGGED.bit | 1 << ib.Reason.UNEVEN.bit)
KEPT_WHERE_INFEASIBLE = {
    "job",
    "cluster",
    "status",
    "reasons",
    "world_size",
    "data_parallel",
    "nearest_world_size",
    "nearest_batch",
}


def planned(seed: int, rows: int) -> tuple[Columns, Columns, Columns, dict[str, Any]]:
    """The plans of random jobs on random clusters, the jobs, the clusters and the settings."""
    draw = np.random.default_rng(seed)
    jobs = _jobs(draw, max(1, rows // CLUSTERS))
    clusters = _clusters(draw, CLUSTERS)
    settings = _settings(draw)
    return ib.plan_fleet(jobs, clusters, **settings), jobs, clusters, settings


def check_rows(seed: int, rows: int) -> int:
    """Checks identities of the rows of random jobs on random clusters, some also in another order."""
    result, jobs, clusters, settings = planned(seed, rows)
    case = f"seed {seed}, {rows} rows, {settings}"
    count = len(result["status"])
    assert count == len(jobs["lr"]) * CLUSTERS
    job, cluster = np.divmod(np.arange(count), CLUSTERS)
    _hold(result, _taken(jobs, job), _taken(clusters, cluster), settings, case)
    again = np.random.default_rng(seed).integers(0, count, min(count, 2048))
    pairs = {"job": job[again], "cluster": cluster[again]}
    for name, column in ib.plan_fleet(jobs, clusters, pairs=pairs, **settings).items():
        same = _bits(column) == _bits(result[name][again])
        assert same.all(), f"{name} in another order: {case}, rows {again[~same][:5]}"
    return count


def _taken(table: Columns, rows: NDArray[np.int64]) -> Columns:
    return {name: column[rows] for name, column in table.items()}


def _bits(column: NDArray[Any]) -> NDArray[Any]:
    return column.view(np.int64) if column.dtype == np.float64 else column


def _spiced(draw: np.random.Generator, column: NDArray[Any], spices: list[Any]) -> NDArray[Any]:
    """The column, here and there with a hostile value."""
    hot = draw.random(len(column)) < 0.004
    column[hot] = draw.choice(np.array(spices, column.dtype), int(hot.sum()))
    return column


def _jobs(draw: np.random.Generator, count: int) -> Columns:
    replicas = draw.choice([1, 2, 3, 4, 7, 8, 16, 60, 64, 512], count)
    micro = draw.choice([1, 2, 5, 8, 32, 100, 128], count)
    accumulation = draw.choice([1, 1, 1, 2, 3, 4, 25], count)
    whole = {
        "effective_batch": replicas * micro * accumulation,
        "gpus": replicas,
        "micro_batch": micro,
        "dataset_size": np.exp(draw.uniform(np.log(100), np.log(1e9), count)).astype(np.int64),
        "seq_len": draw.choice([1, 128, 2048], count),
    }
    real = {
        "lr": 10 ** draw.uniform(-6, 1, count),
        "weight_decay": draw.choice([0.0, 0.1, 0.01], count),
        "noise_scale": 10 ** draw.uniform(0, 6, count),
        "power": draw.uniform(-0.5, 1.5, count),
        "sigma_sq": 10 ** draw.uniform(-3, 3, count),
        "mu_sq": 10 ** draw.uniform(-3, 3, count),
        "ema_decay": draw.choice([np.nan, 0.999, 0.0], count),
        "min_lr": draw.choice([0.0, 1e-7], count),
    }
    hostile = [0, -1, 1, 2**31, 2**40, 2**53, 2**53 + 1, -(2**62)]
    odd = [0.0, -1.0, np.nan, np.inf, -np.inf, 5e-324, 1e308, 1e-308]
    columns: Columns = {
        name: _spiced(draw, column.astype(np.int64), hostile) for name, column in whole.items()
    }
    columns |= {name: _spiced(draw, column, odd) for name, column in real.items()}
    # Groups of rows are alike in what is text, so that some are planned together and some alone.
    lengths = ["90ep", "0.3ep", "1000st", "123457sp", "1e15sp", "3e9tok", "1ep"]
    columns["duration"] = _few(draw, lengths, count)
    columns["warmup"] = _few(draw, ["5ep", "100st", "10%", "28.43%", "2000sp", "0st"], count)
    columns["optimizer"] = _few(
        draw, ["sgd", "adamw", "adam", "lamb", "lars", "lion", "muon", "rmsprop", "adafactor"], count
    )
    columns["convention"] = _few(draw, ["torch", "lightning", "transformers", "megatron"], count)
    columns["decay"] = _few(draw, ["lr_multiplied", "independent"], count)
    columns["drop_last"] = draw.random(count) < 0.3
    gone = draw.choice(
        [
            "micro_batch",
            "gpus",
            "noise_scale",
            "dataset_size",
            "warmup",
            "duration",
            "decay",
            "seq_len",
            "none",
        ],
        3,
    )
    if "gpus" in gone:
        gone = [*gone, "micro_batch"]
    return {name: column for name, column in columns.items() if name not in gone}


def _few(draw: np.random.Generator, values: list[str], count: int) -> NDArray[Any]:
    """Values in runs, three of them at most."""
    return np.sort(draw.choice(draw.choice(values, 3), count))


def _clusters(draw: np.random.Generator, count: int) -> Columns:
    hostile = [0, -1, 2**31, 2**32, 2**53]
    return {
        "nodes": _spiced(draw, draw.choice([1, 1, 2, 3, 16, 128], count), hostile),
        "gpus_per_node": _spiced(draw, draw.choice([1, 2, 4, 6, 7, 8], count), hostile),
        "model_parallel": _spiced(draw, draw.choice([1, 1, 1, 2, 8], count), hostile),
        "expert_parallel": _spiced(draw, draw.choice([1, 1, 1, 1, 4, 6], count), hostile),
    }


def _settings(draw: np.random.Generator) -> dict[str, Any]:
    """Keywords of the call without contradictions."""
    chosen = {
        "policy": draw.choice(np.array(["keep", "grow", 256, 768, 4096], object)),
        "rule": str(draw.choice([name for name, *_ in _core.rules()])),
        "max_micro_batch": draw.choice(np.array([None, 1, 7, 32, 2**31 - 1], object)),
        "max_batch": draw.choice(np.array([None, None, 512, 2**20], object)),
        "batch_tolerance": float(draw.choice([0.0, 0.0, 0.02, 0.3, 0.999])),
        "micro_batch_multiple": int(draw.choice([1, 1, 1, 8, 3])),
    }
    # By a generator of their own: more of them leave the others as they are.
    chosen |= beside_the_rule(random.Random(repr(chosen)))
    if draw.random() < 0.3:
        chosen["batch_multiple"] = int(draw.choice([2, 12, 64]))
    if draw.random() < 0.2:
        chosen["short_epochs"] = True
    if draw.random() < 0.2:
        chosen |= {"split": "smaller", "batch_tolerance": 0.0}
    most = chosen["max_micro_batch"] or 2**31 - 1
    if draw.random() < 0.2:
        chosen["min_micro_batch"] = min(int(draw.choice([2, 5, 32, 1000])), most)
    if draw.random() < 0.15:
        least, multiple = chosen.get("min_micro_batch", 1), chosen["micro_batch_multiple"]
        sizes = [size for size in (1, 3, 8, 48) if least <= size <= most and size % multiple == 0]
        chosen |= {"min_micro_batch": sizes[-1], "max_micro_batch": sizes[-1]} if sizes else {}
    if draw.random() < 0.3:  # a pipeline, which wants equal passes
        return chosen | {"accumulation_multiple": int(draw.choice([1, 2, 3]))}
    if "split" in chosen:
        return chosen
    splits = ["even", "even", "uneven"]
    if "min_micro_batch" not in chosen and chosen["micro_batch_multiple"] == 1:
        splits.append("ragged")
    return chosen | {"split": str(draw.choice(splits))}


def _hold(result: Columns, job: Columns, cluster: Columns, settings: dict[str, Any], case: str) -> None:
    def every(holds: NDArray[np.bool_], law: str) -> None:
        if not holds.all():
            row = int(np.argmin(holds))
            sides = {name: column[row] for side in (job, cluster, result) for name, column in side.items()}
            raise AssertionError(f"{law}: {case}, row {row}: {sides}")

    feasible = result["status"] != "infeasible"
    reasons = result["reasons"]
    every(feasible == (reasons & INFEASIBLE == 0), "infeasible where a reason says so, and only there")
    every((result["status"] == "ok") == (reasons == 0), "ok where there is no reason")
    for name, column in result.items():
        if name not in KEPT_WHERE_INFEASIBLE:
            unknown = np.isnan(column) if column.dtype.kind == "f" else column == -1
            every(feasible | unknown, f"{name} is unknown where there is no plan")
        if column.dtype.kind == "f":
            every(~np.isinf(column), f"{name} is finite")
    _hold_batches(result, job, cluster, settings, feasible, every)
    _hold_lengths(result, job, feasible, every)


def _hold_batches(
    result: Columns,
    job: Columns,
    cluster: Columns,
    settings: dict[str, Any],
    feasible: NDArray[np.bool_],
    every: Any,
) -> None:
    def law(holds: NDArray[np.bool_], text: str) -> None:
        every(~feasible | holds, text)

    micro, accumulation, replicas, batch = (
        result[name].astype(np.int64)
        for name in ("micro_batch", "accumulation", "data_parallel", "effective_batch")
    )
    product = micro * accumulation * replicas
    laid_out = result["reasons"] & LAID_OUT != 0
    law(
        np.where(laid_out, (product >= batch) & (batch >= replicas), product == batch),
        "the product is the batch",
    )
    law(result["world_size"] == cluster["nodes"] * cluster["gpus_per_node"], "the world size")
    law(
        replicas * cluster["model_parallel"] == result["world_size"], "replicas × model_parallel = world size"
    )
    law(result["world_size"] % np.maximum(cluster["expert_parallel"], 1) == 0, "whole sets of experts")
    law(micro >= settings.get("min_micro_batch", 1), "the least micro-batch")
    cap = settings["max_micro_batch"] or job.get("micro_batch", np.int64(2**31 - 1))
    law((micro >= 1) & (micro <= cap), "the cap on the micro-batch")
    law(batch <= (settings["max_batch"] or 2**40), "the cap on the batch")
    law(micro % settings["micro_batch_multiple"] == 0, "the multiple of the micro-batch")
    law(batch % settings.get("batch_multiple", 1) == 0, "the multiple of the batch")
    law(accumulation % settings.get("accumulation_multiple", 1) == 0, "the multiple of the accumulation")
    tuned = job["effective_batch"]
    if settings["policy"] == "keep":
        expected = tuned
    elif settings["policy"] == "grow":
        share = tuned // np.maximum(job["gpus"], 1) if "gpus" in job else settings["max_micro_batch"]
        expected = replicas * (0 if share is None else share)
    else:
        expected = np.full_like(tuned, settings["policy"])
    if settings.get("split") == "smaller":
        law(batch <= expected, "a batch that is lowered")
    else:
        law(
            np.abs(batch - expected) <= settings["batch_tolerance"] * expected,
            "the batch is in the tolerance",
        )
    law(
        np.isclose(result["batch_change"], batch / np.maximum(tuned, 1) - 1, rtol=1e-15, atol=1e-15),
        "the batch's change",
    )
    law(
        (result["lr"] > 0) & np.isclose(result["lr"], job["lr"] * result["lr_scale"], rtol=1e-15),
        "lr = tuned lr × scale",
    )
    for name in ("beta1", "beta2", "momentum", "ema_decay"):
        value = result[name]
        law(np.isnan(value) | ((value >= 0) & (value < 1)), f"{name} lies in [0, 1)")
    tuned_beta2 = np.where(np.isin(job["optimizer"], ["lion", "rmsprop"]), 0.99, 0.999)
    floor = np.minimum(float(settings.get("beta2_rule", "auto").partition(":")[2] or 0), tuned_beta2)
    law(np.isnan(result["beta2"]) | (result["beta2"] >= floor), "the floor under beta2")
    near = (result["nearest_world_size"] != -1) | (result["nearest_batch"] != -1)
    every(~(feasible & near), "what would work is named only where nothing does")


def _hold_lengths(result: Columns, job: Columns, feasible: NDArray[np.bool_], every: Any) -> None:
    batch = result["effective_batch"]
    steps, served = result["steps_per_epoch"], result["samples_per_epoch"]
    padded, dropped = result["padded_samples"], result["dropped_samples"]
    known = feasible & (steps != -1)
    if "dataset_size" in job:
        every(
            ~known | (served - padded + dropped == job["dataset_size"]),
            "served − padded + dropped = the dataset",
        )
        every(~known | (padded * dropped == 0), "nothing is padded and dropped at once")
    every(
        ~known | ((steps >= 1) & (served <= steps * batch) & (served > (steps - 1) * batch)),
        "steps × batch covers an epoch",
    )
    total = result["total_steps"]
    timed = feasible & (total != -1)
    every(~timed | ((total >= 1) & (total <= 2**53)), "a run has a step")
