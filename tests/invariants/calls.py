"""Any argument of any public function: it answers or raises an InputError, and soon."""

import functools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

import isobatch as ib
from invariants.files import check_soon
from reference.profile import PROFILE
from reference.settings import CASES

S = ib.schedules

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 8, 255, 256, 2**31 - 1, 2**31, 2**40, 2**53, 2**53 + 1, 2**63 - 1,
    2**63, 2**64, -(2**63), 10**30,
    0.0, -0.0, 0.5, 1.0, 1.5, 1e-300, 5e-324, 1e308, math.nan, math.inf, -math.inf, Fraction(1, 3), 1j, b"8",
    "", "8", "0.1", "keep", "grow",
    "goodput", "sqrt", "adamw", "cosine", "90ep", "1st", "0ep", "1e15ep", "1e-15ep", "5%", "tok",
    "9007199254740992.4", "\x00", "\ud800", "é" * 50,
    "0:16 2.4B:320", "16 16 9765", "1 1 1000000", "multistep(30ep, 60ep)", "wsd(decay=10%)", "cosine(((",
    "step(0)", [], [1], [1, 2, 3], [[]], (0.9, 0.95),
    (0, 0), (1, 1), {}, {"a": 1}, {1}, range(3), range(0), object(), len, np.int64(8), np.float32(0.1),
    np.float64("nan"),
    np.array(8), np.array([1, 2]), np.array([]), np.array(["a"]), np.array([None, 1], object),
    np.array([[1, 2]]), np.array(True),
    np.datetime64("2026-01-01"), np.array([1 + 1j]), np.zeros(3, [("a", int)]),
]  # fmt: skip

RECIPE = ib.Recipe(effective_batch=256, lr=0.1, dataset_size=5120, duration="4ep", warmup="10%")
PLAN = ib.plan(RECIPE, 8)
COLUMNS = {"effective_batch": np.array([256, 250]), "lr": np.array([0.1, 0.2])}

SETTINGS: dict[str, Any] = {name: False if case.value is True else case.value for name, case in CASES.items()}
FIELDS: dict[str, Any] = {
    "effective_batch": 256, "lr": 0.1, "optimizer": "adamw", "momentum": 0.9, "betas": (0.9, 0.95),
    "eps": 1e-8, "weight_decay": 0.1,
    "decay": "independent", "ema_decay": 0.99, "dataset_size": 5120, "duration": "4ep", "warmup": "10%",
    "schedule": "cosine", "min_lr": 0.0,
    "seq_len": 128, "drop_last": False, "convention": "torch", "gpus": 8, "micro_batch": 32,
    "accumulation": 1, "model_parallel": 1, "expert_parallel": 1,
    "power": 0.5, "noise_scale": 1e3, "sigma_sq": 1.0, "mu_sq": 1.0, "ramp": None, "parameters": 10**9,
    "precision": "bf16", "clip_norm": 1.0,
    "bucket_cap_mb": 25.0, "batch_norm": False, "coupled": "experts", "adapter": "lora",
    "device_batches": None, "eval_every": "500st", "save_every": "1ep", "log_every": "1e4sp",
}  # fmt: skip
Call = tuple[Callable[..., Any], dict[str, Any]]
CALLS: dict[str, Call] = {
    "Recipe": (lambda **fields: ib.plan(ib.Recipe(**fields), 8), FIELDS),
    "Recipe.from_gpus": (ib.Recipe.from_gpus, {"gpus": 8, "batch_per_gpu": 32, "accumulation": 2,
        "model_parallel": 1, "lr": 0.1}),
    "Cluster": (lambda **fields: ib.plan(RECIPE, ib.Cluster(**fields)),
        {"nodes": 2, "gpus_per_node": 8, "model_parallel": 1, "expert_parallel": 1, "gpu": "H100",
            "memory_gib": 80.0, "intra_gb_s": 100.0, "inter_gb_s": 10.0, "latency_us": 5.0,
            "price_per_gpu_hour": 2.0}),
    "plan": (ib.plan, {"recipe": RECIPE, "cluster": 8, "profile": PROFILE, **SETTINGS}),
    "plan.lr_at": (lambda step: PLAN.lr_at(step), {"step": 5}),
    "plan.position": (lambda step: PLAN.position(step), {"step": 5}),
    "plan.micro_batches": (lambda rank: PLAN.loss_weights(rank), {"rank": 5}),
    "plan_fleet": (ib.plan_fleet, {"jobs": COLUMNS, "clusters": [8, 7], "columns": ["status"],
        "profile": PROFILE, **SETTINGS}),
    "plan_fleet of columns": (lambda **jobs: ib.plan_fleet({name: np.array([value, value],
        object) if not isinstance(value, np.ndarray) else value for name, value in jobs.items()}, [8]),
        FIELDS),
    "plan_fleet.select": (ib.plan_fleet, {"jobs": COLUMNS | {"duration": np.array(["9st", "90st"])},
        "clusters": [8, 16], "select": "fastest", "top": 2, "profile": PROFILE, "pairs": None}),
    "plan_table": (ib.plan_table, {"table": COLUMNS, "clusters": [8]}),
    "allocate": (ib.allocate, {"jobs": COLUMNS, "pool": 8, "objective": "fair", "held": None, "p": -1.0,
        "profile": PROFILE, "policy": "keep"}),
    "allocate of columns": (lambda **own: ib.allocate({**COLUMNS,
        **{name: [value, 1] for name, value in own.items()}}, 8, profile=PROFILE),
        {"weight": 2, "min_gpus": 1, "max_gpus": 8, "gpu": "A100", "pinned": True, "profile": None,
            "done_samples": 9, "age_seconds": 60, "restarts": 1, "restart_seconds": 30, "deadline_hours": 9.0,
            "job": "a"}),
    "allocate of nodes": (lambda **own: ib.allocate(COLUMNS,
        {name: [value, value] for name, value in own.items()} | {"node": ["a", own["node"]]},
        profile=PROFILE), {"node": "b", "gpus": 8, "gpu": "H100", "price_per_gpu_hour": 2.0,
        "memory_gib": 80.0, "model_parallel": 1}),
    "allocate of held": (lambda **own: ib.allocate(COLUMNS | {"pinned": [True, False]}, 8, profile=PROFILE,
        held={name: [value, value] for name, value in own.items()}), {"job": 0, "node": "0", "gpus": 2}),
    "replan": (lambda **values: ib.replan(PLAN, **values),
        {"at_step": 5, "cluster": 16, "effective_batch": 512, "rule": "sqrt", "max_micro_batch": 8,
            "uneven": False}),
    "schedule_matrix": (ib.schedule_matrix, {"schedules": [S.cosine(1.0, 100)], "steps": range(10),
        "dtype": np.float32, "out": None}),
    "schedule_matrix of columns": (lambda **table: ib.schedule_matrix(table, range(5)),
        {"lr": [0.1, 0.2], "total_steps": [100, 50], "schedule": ["cosine", "linear"], "min_lr": 0.0,
            "warmup_lr": 0.0, "warmup_steps": 3, "steps_per_epoch": 10, "seq_len": 4, "effective_batch": 8,
            "tuned_batch": 8}),
    "counts": (ib.counts, {"recipe": RECIPE, "gpus": [1, 2, 8], "profile": PROFILE, "cluster": ib.Cluster(),
        "critical_batch": 1e3, "policy": "keep"}),
    "counts of a best batch": (ib.counts, {"recipe": RECIPE, "gpus": [1, 2, 8], "best_batch_up_to": 1000,
        "micro_batches": [4, 6], "batch_multiple": 8}),
    "laws": (ib.laws, {"parameters": 1e9, "tokens": 1e11, "effective_batch": 1024, "tuned_tokens": 1e10}),
    "calibrate": (ib.calibrate, {"measured": [], "older": None}),
    "explain": (ib.explain, {"table": {"status": ["ok"], "reasons": [0], "world_size": [8]}, "row": 0}),
    "Reason.of": (ib.Reason.of, {"bits": 3}),
    "estimate": (ib.estimate, {"model": None, "parameters": 10**9, "seq_len": 128, "gpu": "H100-80",
        "precision": "bf16", "optimizer": "adamw", "tensor_parallel": 2, "pipeline_parallel": 2,
        "micro_batch": 1, "utilization": (0.3, 0.5), "recompute": "full", "shards": 2, "inter_gb_s": 50.0}),
    "Profile.estimate": (ib.Profile.estimate, {"parameters": 10**9, "flops_per_sample": 1e12,
        "gpu_tflops": 900.0, "utilization": 0.4, "precision": "bf16", "optimizer": "adamw",
        "model_parallel": 1, "memory_per_sample_gib": 0.1, "intra_gb_s": 100.0, "inter_gb_s": 10.0,
        "latency_us": 5.0}),
    "schedules.cosine": (lambda **values: S.cosine(**values).at(3), {"lr": 0.1, "steps": 100, "end": 0.0}),
    "schedules.wsd": (lambda **values: S.wsd(**values).at(3),
        {"lr": 0.1, "steps": 100, "decay_steps": 10, "end": 0.0}),
    "schedules.multistep": (lambda **values: S.multistep(**values).at(3),
        {"lr": 0.1, "milestones": [10, 20], "gamma": 0.1}),
    "schedules.cosine_restarts": (lambda **values: S.cosine_restarts(**values).at(3),
        {"lr": 0.1, "period": 10, "multiplier": 2.0, "decay": 0.9, "end": 0.0}),
    "schedules.exponential": (lambda **values: S.exponential(**values).at(3),
        {"lr": 0.1, "gamma": 0.9, "every": 10.0}),
    "schedules.polynomial": (lambda **values: S.polynomial(**values).at(3),
        {"lr": 0.1, "steps": 100, "power": 2.0, "end": 0.0}),
    "schedules.one_cycle": (lambda **values: S.one_cycle(**values).at(3),
        {"lr": 0.1, "steps": 100, "rise_steps": 10, "start": 0.0, "end": 0.0}),
    "schedules.warmup": (lambda **values: S.warmup(**values).at(3),
        {"schedule": S.constant(0.1), "steps": 10, "start": 0.0}),
    "schedules.at": (lambda step: S.cosine(0.1, 100).at(step), {"step": 3}),
    "schedules.values": (lambda steps: S.cosine(0.1, 100).values(steps), {"steps": [3, 4]}),
    "Plan.from_json": (ib.Plan.from_json, {"text": "{}"}),
    "Recipe files": (lambda **fields: ib.plan(ib.Recipe(**fields), 7, policy="grow", rule="sde"), FIELDS),
}  # fmt: skip


def check_calls(seed: int, calls: int, names: tuple[str, ...] = tuple(CALLS)) -> int:
    """Calls every function with some of its arguments replaced by anything."""
    draw = random.Random(seed)
    for number in range(calls):
        name = names[number % len(names)]
        function, usual = CALLS[name]
        values = dict(usual)
        for field in draw.sample([*values], min(len(values), draw.choice([1, 1, 1, 2, 3]))):
            values[field] = draw.choice(VALUES)
        changed = {field: value for field, value in values.items() if value is not usual[field]}
        case = f"{name}({', '.join(f'{field}={value!r}'[:200] for field, value in changed.items())})"
        check_soon(functools.partial(function, **values), case)
    return calls
