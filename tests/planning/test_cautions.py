"""Every caution and infeasibility at its edge: one step before it is silent."""

import msgspec
import pytest

import isobatch as ib
from plan_of import plan_of

R = ib.Reason


def says(reason, *, on=8, **fields):
    run = {"optimizer": "adam", "duration": "100000st", "warmup": "10000st"}
    plan = plan_of(on, **run | fields)
    assert (plan.status == "infeasible") == any(r.severity == "infeasible" for r in plan.reasons)
    assert (plan.status == "ok") == (not plan.reasons)
    return reason in plan.reasons


CASES = [
    # reason, what brings it, what just does not
    (R.LARGE_GROWTH, {"policy": 2056}, {"policy": 2048}),
    (R.LARGE_GROWTH, {"policy": 4096}, {"policy": 4096, "noise_scale": 1e6}),
    (R.ABOVE_CRITICAL_BATCH, {"policy": 1008, "noise_scale": 1000.0}, {"policy": 1000,
        "noise_scale": 1000.0}),
    (R.MICRO_BATCH_SHRUNK, {"on": 16, "micro_batch": 32}, {"on": 8, "micro_batch": 32}),
    (R.MICRO_BATCH_OPEN, {"on": 4, "gpus": 8}, {"on": 8, "gpus": 8}),
    (R.COUPLED_MOVED, {"on": 16, "micro_batch": 32, "batch_norm": True}, {"on": 8, "micro_batch": 32,
        "batch_norm": True}),
    (R.RULE_MISMATCH, {"policy": 512, "rule": "linear"}, {"policy": 512, "rule": "sqrt"}),
    (R.RULE_MISMATCH, {"policy": 512, "rule": "sqrt", "optimizer": "sgd"}, {"policy": 512, "rule": "linear",
        "optimizer": "sgd"}),
    (R.SQRT_SCALE_RANGE, {"policy": 24}, {"policy": 32}),
    (R.SQRT_SCALE_RANGE, {"policy": 1032}, {"policy": 1024}),
    (R.SGD_SCALE_UP, {"policy": 520, "optimizer": "sgd"}, {"policy": 512, "optimizer": "sgd"}),
    # 0.95^k
    (R.BETA2_LOW, {"policy": 528, "beta2_rule": "half_life", "betas": (0.9, 0.95)}, {"policy": 512,
        "beta2_rule": "half_life", "betas": (0.9, 0.95)}),
    (R.BETA2_LOW, {"policy": 4096, "beta2_rule": "half_life", "betas": (0.9, 0.95)}, {"policy": 4096,
        "beta2_rule": "half_life:0.9", "betas": (0.9, 0.95)}),
    (R.BETA2_LOW, {"policy": 512, "rule": "sde_smooth", "betas": (0.9, 0.9)}, {"policy": 512, "betas": (0.9,
        0.8)}),
    (R.LORA_GROWTH, {"policy": 512, "adapter": "lora"}, {"policy": 512}),
    (R.DURATION_MOVED, {"duration_scale": "2.0"}, {"duration_scale": "1^0.5"}),
    (R.MUON_DECAY, {"policy": 512, "optimizer": "muon", "weight_decay": 0.1, "decay": "sqrt"}, {"policy": 512,
        "optimizer": "muon", "weight_decay": 0.1, "decay": "lr_multiplied"}),
    (R.BETA1_LOW, {"policy": 1304, "rule": "sde"}, {"policy": 1280, "rule": "sde"}),
    (R.RULE_ASSUMED, {"policy": 512, "optimizer": "lion"}, {"policy": 512, "optimizer": "lamb"}),
    (R.DECAY_UNKNOWN, {"policy": 512, "optimizer": "adamw", "weight_decay": 0.1}, {"policy": 512,
        "optimizer": "adamw", "weight_decay": 0.1, "decay": "lr_multiplied"}),
    (R.DECAY_UNKNOWN, {"policy": 512, "optimizer": "adamw", "weight_decay": 0.1}, {"policy": 512,
        "optimizer": "adamw"}),
    (R.NO_WARMUP, {"policy": 512, "warmup": None}, {"policy": 128, "warmup": None}),
    (R.WARMUP_LONG, {"warmup": "20001st"}, {"warmup": "20000st"}),
    (R.WARMUP_SHORT, {"warmup": "999st", "betas": (0.9, 0.999)}, {"warmup": "1001st", "betas": (0.9, 0.999)}),
    (R.WARMUP_SHORT, {"warmup": "19st", "betas": (0.9, 0.95)}, {"warmup": "21st", "betas": (0.9, 0.95)}),
    (R.WARMUP_PAST_END, {"warmup": "100001st"}, {"warmup": "100000st"}),
    (R.PADDED, {"dataset_size": 601, "effective_batch": 8}, {"dataset_size": 701, "effective_batch": 8}),
    (R.DROPPED, {"dataset_size": 607, "effective_batch": 8, "drop_last": True}, {"dataset_size": 807,
        "effective_batch": 8, "drop_last": True}),
    (R.UNEVEN_TAIL, {"dataset_size": 1000, "max_micro_batch": 16}, {"dataset_size": 1024,
        "max_micro_batch": 16}),
    (R.UNEVEN_TAIL, {"dataset_size": 1000, "max_micro_batch": 16}, {"dataset_size": 1000}),
    (R.BATCH_MOVED, {"on": 7, "batch_tolerance": 0.02}, {"on": 8, "batch_tolerance": 0.02}),
    (R.RAGGED, {"on": 7, "split": "ragged"}, {"on": 8, "split": "ragged"}),
    # what cannot be
    (R.NOT_DIVISIBLE, {"on": 7}, {"on": 8}),
    (R.NOT_DIVISIBLE, {"on": 512}, {"on": 256}),
    (R.MODEL_PARALLEL, {"on": 9, "model_parallel": 4}, {"on": 8, "model_parallel": 4}),
    (R.EXPERT_PARALLEL, {"on": 12, "expert_parallel": 8}, {"on": 16, "expert_parallel": 8}),
    (R.EXPERT_PARALLEL, {"on": 12, "expert_parallel": 8, "model_parallel": 4}, {"on": 12,
        "expert_parallel": 6, "model_parallel": 4}),
    (R.MODEL_PARALLEL, {"on": 9, "expert_parallel": 8, "model_parallel": 4}, {"on": 12, "expert_parallel": 8,
        "model_parallel": 4}),
    (R.MULTIPLE_UNMET, {"micro_batch_multiple": 64}, {"micro_batch_multiple": 8}),
    (R.ABOVE_MAX_BATCH, {"max_batch": 255}, {"max_batch": 256}),
    (R.BATCH_ABOVE_DATASET, {"dataset_size": 255}, {"dataset_size": 256}),
    (R.SCHEDULE_UNMET, {"duration": "100st", "warmup": "81st", "schedule": "wsd(decay=20%)"},
        {"duration": "100st", "warmup": "80st", "schedule": "wsd(decay=20%)"}),
    (R.SCHEDULE_UNMET, {"duration": "100st", "warmup": "10st", "schedule": "cosine(until=10st)"},
        {"duration": "100st", "warmup": "10st", "schedule": "cosine(until=11st)"}),
    (R.SCHEDULE_UNMET, {"warmup": None, "schedule": "vaswani"}, {"warmup": "10st", "schedule": "vaswani"}),
    (R.SCHEDULE_UNMET, {"schedule": "exponential"}, {"schedule": "exponential", "min_lr": 1e-6}),
    (R.SCHEDULE_UNMET, {"schedule": "step(every=3ep)", "dataset_size": None}, {"schedule": "step(every=3ep)",
        "dataset_size": 100000}),
    (R.RUN_BELOW_STEP, {"duration": "255sp", "convention": "megatron"}, {"duration": "256sp",
        "convention": "megatron"}),
    # k(1 − β) < 1
    (R.BETA_NOT_POSITIVE, {"policy": 2560, "rule": "sde"}, {"policy": 2552, "rule": "sde"}),
    # A floor under β2 does not make the rule hold there.
    (
        R.BETA_NOT_POSITIVE,
        {"policy": 25600, "rule": "sde", "beta2_rule": "auto:0.5", "optimizer": "rmsprop"},
        {"policy": 25592, "rule": "sde", "beta2_rule": "auto:0.5", "optimizer": "rmsprop"},
    ),
    (R.NEEDS_TUNED_GPUS, {"policy": "grow"}, {"policy": "grow", "max_micro_batch": 8}),
    (R.NEEDS_NOISE, {"policy": 512, "rule": "adascale", "sigma_sq": 1.0}, {"policy": 512, "rule": "adascale",
        "sigma_sq": 1.0, "mu_sq": 1.0}),
    (R.NEEDS_NOISE, {"policy": 512, "rule": "saturating"}, {"policy": 512, "rule": "saturating",
        "noise_scale": 1e4}),
    (R.NEEDS_NOISE, {"policy": 512, "rule": "muon"}, {"policy": 512, "rule": "muon", "noise_scale": 1e4}),
    (R.NEEDS_NOISE, {"policy": 512, "rule": "surge"}, {"policy": 512, "rule": "surge", "noise_scale": 1e4}),
    (R.NEEDS_POWER, {"policy": 512, "rule": "power"}, {"policy": 512, "rule": "power", "power": 0.5}),
    (R.RAMP_NOT_DIVISIBLE, {"ramp": "124 12 1000"}, {"ramp": "128 16 1000"}),
    (R.RAMP_NOT_DIVISIBLE, {"ramp": "128 64 1000", "accumulation_multiple": 32}, {"ramp": "128 64 1000",
        "accumulation_multiple": 8}),
    (R.RAMP_RULE, {"ramp": "128 16 1000", "ramp_rule": "sqrt"}, {"ramp": "128 16 1000"}),
    (R.RAMP_RULE, {"ramp": "128 16 1000", "ramp_rule": "sqrt"}, {"ramp_rule": "sqrt"}),
    (R.NEEDS_POWER, {"ramp": "128 16 1000", "ramp_rule": "power"}, {"ramp_rule": "power"}),
    (R.ACCUMULATION_UNMET, {"accumulation_multiple": 3}, {"accumulation_multiple": 4}),
    (R.NOT_DIVISIBLE, {"batch_multiple": 12}, {"batch_multiple": 64}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "brings", "not_yet"), CASES, ids=[f"{n}-{case[0].value}" for n, case in enumerate(CASES)]
)
def test_a_reason_begins_where_it_says(reason, brings, not_yet):
    assert says(reason, **brings)
    assert not says(reason, **not_yet)


def test_a_warmup_that_is_rounded_to_nothing_is_none():
    assert says(R.NO_WARMUP, policy=512, duration="100st", warmup="1%")


def test_a_plan_without_a_word_is_ok():
    plan = plan_of(8, optimizer="adam", duration="100000st", warmup="10000st")
    assert (plan.status, plan.reasons) == ("ok", ())


def test_every_reason_has_its_words():
    for reason in R:
        assert len(reason.text) > 10
        assert reason.severity in ("caution", "infeasible")
        assert reason.source == "" or any(c.isdigit() for c in reason.source)


def test_a_little_larger_batch_does_not_end_a_recipes_own_warmup():
    tuned = ib.Recipe(effective_batch=24, lr=0.02, optimizer="sgd", duration="200st", warmup="20st", gpus=2)
    starts = [ib.plan(tuned, 1, policy=batch, rule="linear") for batch in (24, 25, 36, 48, 96)]
    assert [plan.lr_at(0) for plan in starts] == pytest.approx([0, 0.02 / 24, 0.01, 0.02, 0.02])
    assert "the warmup starts at 0.01, (k − 1) × the tuned learning rate" in starts[2].explain()
    assert "the warmup starts at 0.02, the tuned learning rate (Goyal" in starts[4].explain()
    bare = msgspec.structs.replace(tuned, warmup=None)
    assert "the warmup starts" not in ib.plan(bare, 1, policy=96, rule="linear").explain()
