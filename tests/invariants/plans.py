"""Plans against the oracle in exact fractions, and against the same row of a fleet, bit for bit."""

import random
from typing import Any

import numpy as np

import isobatch as ib
from planning.test_oracle import cluster, compare, job, options, table
from reference.profile import PROFILE


def check_oracle(seed: int, plans: int) -> int:
    """Plans random rows and compares every result column with the oracle's."""
    draw = random.Random(seed)
    rows = [(job(draw), cluster(draw), _uneven(draw, options(draw))) for _ in range(plans)]
    for recipe, _, settings in rows:
        if "ramp" in recipe:
            if settings.get("split") == "ragged":
                del settings["split"]
            # The oracle walks such a run step by step.
            recipe |= {
                "duration": f"{draw.randint(1, 90) * recipe['effective_batch']}sp",
                "warmup": draw.choice(["10%", "2000sp"]),
            }
    compare(rows, f"seed {seed}, ")
    return plans


def check_alone(seed: int, plans: int) -> int:
    """Plans random rows one by one and in a fleet: all fields agree to the last bit."""
    draw = random.Random(seed)
    profile = draw.choice([None, PROFILE])
    rows = [
        (_more(draw, job(draw)), _shape(draw), _wider(draw, options(draw), profile)) for _ in range(plans)
    ]
    order = np.arange(plans)
    jobs = table("job", [recipe | settings for recipe, _, settings in rows], order)
    clusters = table("cluster", [shape for _, shape, _ in rows], order)
    result = ib.plan_fleet(jobs, clusters, pairs={"job": order, "cluster": order}, profile=profile)
    names = sorted(set(result) & set(ib.Plan.__struct_fields__) - {"cluster"})
    values = {name: result[name].tolist() for name in names}
    for number, (recipe, shape, settings) in enumerate(rows):
        case = f"seed {seed}, row {number}: {recipe}, {shape}, {settings}, profile {profile is not None}"
        plan, output = _planned(recipe, shape, settings, profile)
        if plan is None:
            named = ib.Reason.of(values["reasons"][number])
            assert any(reason.value.startswith("invalid") for reason in named), f"{output}: {case}: {named}"
            continue
        bits = sum(1 << reason.bit for reason in plan.reasons)
        assert bits == values["reasons"][number], f"reasons {plan.reasons}: {case}"
        for name in names:
            if name != "reasons":
                actual, want = values[name][number], getattr(plan, name)
                missing = want is None and (actual == -1 or actual != actual)
                assert actual == want or missing, f"{name} is {want} alone and {actual} in a fleet: {case}"
        _check_whole(plan, case)
    return plans


def _planned(
    recipe: dict[str, Any], shape: dict[str, Any], settings: dict[str, Any], profile: ib.Profile | None
) -> tuple[ib.Plan | None, str]:
    """The plan, or the message of an impossible input."""
    try:
        return ib.plan(ib.Recipe(**recipe), ib.Cluster(**shape), profile=profile, **settings), ""
    except ib.InputError as error:
        return None, str(error)


def _more(draw: random.Random, recipe: dict[str, Any]) -> dict[str, Any]:
    """Fields unknown to the oracle."""
    chances = {
        "momentum": [0.0, 0.9], "min_lr": [0.0, 1e-5], "parameters": [10**9], "precision": ["bf16", "fp32"],
        "clip_norm": [1.0],
        "bucket_cap_mb": [25.0], "ema_decay": [0.0, 0.9999], "betas": [(0.0, 0.0), (0.9, 0.95)],
        "eps": [0.0, 1e-6],
        "schedule": ["cosine", "linear", "wsd(decay=10%)"], "weight_decay": [0.0, 0.1],
    }  # fmt: skip
    return recipe | {name: draw.choice(values) for name, values in chances.items() if draw.random() < 0.15}


def _shape(draw: random.Random) -> dict[str, Any]:
    chances = {
        "gpu": ["H100"], "memory_gib": [16.0, 80.0], "intra_gb_s": [300.0], "inter_gb_s": [25.0],
        "latency_us": [0.0, 10.0],
        "price_per_gpu_hour": [0.0, 2.5],
    }  # fmt: skip
    return cluster(draw) | {
        name: draw.choice(values) for name, values in chances.items() if draw.random() < 0.3
    }


def _uneven(draw: random.Random, settings: dict[str, Any]) -> dict[str, Any]:
    used_names = {"split", "accumulation_multiple"} & settings.keys()  # uneven goes without these
    if draw.random() < 0.2 and not used_names:
        settings["split"] = "uneven"
    return settings


def _wider(draw: random.Random, settings: dict[str, Any], profile: ib.Profile | None) -> dict[str, Any]:
    _uneven(draw, settings)
    if profile is not None:
        chances = {"deadline_hours": [0.01, 100.0], "budget": [1.0, 1e5]}
        settings |= {name: draw.choice(values) for name, values in chances.items() if draw.random() < 0.2}
        if draw.random() < 0.3:
            settings |= {"policy": "goodput", "max_batch": draw.choice([512, 4096, 10**5])}
    return settings


def _check_whole(plan: ib.Plan, case: str) -> None:
    """A plan's own claims: its file is the plan, its ranks share the batch, its rates are finite."""
    assert ib.Plan.from_json(plan.to_json()) == plan, f"its file is another plan: {case}"
    if plan.status == "infeasible":
        return
    ranks = range(plan.data_parallel) if plan.data_parallel <= 8 else (0, plan.data_parallel - 1)
    shares = [plan.micro_batches(rank) for rank in ranks]
    assert all(sizes.min() > 0 and sizes.max() <= plan.micro_batch for sizes in shares), case
    if plan.data_parallel <= 8:
        assert sum(int(sizes.sum()) for sizes in shares) == plan.effective_batch, f"the ranks' shares: {case}"
    if plan.total_steps is not None:
        try:
            schedule = plan.schedule
        except ib.InputError as error:  # a decay that is longer than the steps behind the warmup, say
            if error.field != "schedule":
                raise
        else:
            rates = schedule.values([0, plan.warmup_steps or 0, plan.total_steps // 2, plan.total_steps - 1])
            assert all(0 <= rate <= plan.lr * (1 + 1e-12) for rate in rates), f"rates {rates}: {case}"
    values = [plan.position(step).samples for step in range(0, 200, 7)]
    assert values == sorted(values), f"the samples fall: {case}"
