"""Every caution and infeasibility at its edge: one step before it is silent."""

from __future__ import annotations

import pytest

import isobatch as ib

R = ib.Reason


def recipe(**changes):
    return ib.Recipe(
        **{
            "effective_batch": 256,
            "lr": 0.1,
            "optimizer": "adam",
            "duration": "100000st",
            "warmup": "10000st",
        }
        | changes
    )


def says(reason, *, gpus=8, options=None, recipe_gpus=None, **changes):
    plan = ib.plan(recipe(gpus=recipe_gpus, **changes), gpus, **(options or {}))
    assert (plan.status == "infeasible") == any(r.severity == "infeasible" for r in plan.reasons)
    assert (plan.status == "ok") == (not plan.reasons)
    return reason in plan.reasons


CASES = [
    # reason, what brings it, what just does not
    (R.LARGE_GROWTH, {"options": {"policy": 2056}}, {"options": {"policy": 2048}}),
    (R.LARGE_GROWTH, {"options": {"policy": 4096}}, {"options": {"policy": 4096}, "noise_scale": 1e6}),
    (R.ABOVE_CRITICAL_BATCH, {"options": {"policy": 1008}, "noise_scale": 1000.0}, {"options": {"policy": 1000}, "noise_scale": 1000.0}),
    (R.MICRO_BATCH_SHRUNK, {"gpus": 16, "micro_batch": 32}, {"gpus": 8, "micro_batch": 32}),
    (R.MICRO_BATCH_OPEN, {"gpus": 4, "recipe_gpus": 8}, {"gpus": 8, "recipe_gpus": 8}),
    (R.MICRO_BATCH_OPEN, {"gpus": 8, "recipe_gpus": 8, "accumulation": 2}, {"gpus": 16, "recipe_gpus": 8, "accumulation": 2}),
    (R.MICRO_BATCH_OPEN, {"gpus": 4, "recipe_gpus": 8}, {"gpus": 4, "recipe_gpus": 8, "options": {"max_micro_batch": 64}}),
    (R.BATCH_NORM_MOVED, {"gpus": 16, "micro_batch": 32, "batch_norm": True}, {"gpus": 8, "micro_batch": 32, "batch_norm": True}),
    (R.BATCH_NORM_MOVED, {"gpus": 16, "micro_batch": 32, "batch_norm": True}, {"gpus": 16, "micro_batch": 32}),
    (R.RULE_MISMATCH, {"options": {"policy": 512, "rule": "linear"}}, {"options": {"policy": 512, "rule": "sqrt"}}),
    (
        R.RULE_MISMATCH,
        {"options": {"policy": 512, "rule": "sqrt"}, "optimizer": "sgd"},
        {"options": {"policy": 512, "rule": "linear"}, "optimizer": "sgd"},
    ),
    (R.RULE_MISMATCH, {"options": {"policy": 512, "rule": "linear"}}, {"options": {"policy": "keep", "rule": "linear"}}),
    (R.SQRT_SCALE_RANGE, {"options": {"policy": 24}}, {"options": {"policy": 32}}),
    (R.SQRT_SCALE_RANGE, {"options": {"policy": 1032}}, {"options": {"policy": 1024}}),
    (R.SQRT_SCALE_RANGE, {"options": {"policy": 1032}}, {"options": {"policy": 1032, "rule": "none"}}),
    (R.SQRT_SCALE_RANGE, {"options": {"policy": 1032}}, {"options": {"policy": 1032}, "optimizer": "sgd"}),
    (R.SGD_SCALE_UP, {"options": {"policy": 520}, "optimizer": "sgd"}, {"options": {"policy": 512}, "optimizer": "sgd"}),
    (R.SGD_SCALE_UP, {"options": {"policy": 1024}, "optimizer": "sgd", "noise_scale": 1e4}, {"options": {"policy": 1024}, "optimizer": "sgd", "noise_scale": 256.0}),
    (R.SGD_SCALE_UP, {"options": {"policy": 4096}, "optimizer": "sgd"}, {"options": {"policy": 4096, "rule": "sqrt"}, "optimizer": "sgd"}),
    (R.SGD_SCALE_UP, {"options": {"policy": 4096}, "optimizer": "sgd"}, {"options": {"policy": 4096}, "optimizer": "lion", "noise_scale": 1e6}),
    # 0.95^k
    (
        R.BETA2_LOW,
        {"options": {"policy": 528, "beta2_rule": "half_life"}, "betas": (0.9, 0.95)},
        {"options": {"policy": 512, "beta2_rule": "half_life"}, "betas": (0.9, 0.95)},
    ),
    (
        R.BETA2_LOW,
        {"options": {"policy": 4096, "beta2_rule": "half_life"}, "betas": (0.9, 0.95)},
        {"options": {"policy": 4096, "beta2_rule": "half_life:0.9"}, "betas": (0.9, 0.95)},
    ),
    (R.BETA2_LOW, {"options": {"policy": 512, "rule": "sde_smooth"}, "betas": (0.9, 0.9)}, {"options": {"policy": 512}, "betas": (0.9, 0.8)}),
    (R.LORA_GROWTH, {"options": {"policy": 512}, "adapter": "lora"}, {"options": {"policy": 512}}),
    (R.LORA_GROWTH, {"options": {"policy": 512}, "adapter": "lora"}, {"options": {"policy": 128}, "adapter": "lora"}),
    (R.DURATION_MOVED, {"options": {"duration_scale": "2.0"}}, {"options": {"duration_scale": "1^0.5"}}),
    (
        R.MUON_DECAY,
        {"options": {"policy": 512}, "optimizer": "muon", "weight_decay": 0.1, "decay": "sqrt"},
        {"options": {"policy": 512}, "optimizer": "muon", "weight_decay": 0.1, "decay": "lr_multiplied"},
    ),
    (
        R.MUON_DECAY,
        {"options": {"duration_scale": "2.0^0.5"}, "optimizer": "muon", "weight_decay": 0.1, "decay": "sqrt"},
        {"options": {"policy": 512}, "optimizer": "adamw", "weight_decay": 0.1},
    ),
    (R.BETA1_LOW, {"options": {"policy": 1304, "rule": "sde"}}, {"options": {"policy": 1280, "rule": "sde"}}),
    (R.RULE_ASSUMED, {"options": {"policy": 512}, "optimizer": "lion"}, {"options": {"policy": 512}, "optimizer": "lamb"}),
    (R.RULE_ASSUMED, {"options": {"policy": 512}, "optimizer": "lion", "noise_scale": 1e4}, {"options": {"policy": 512}, "optimizer": "sgd", "noise_scale": 1e4}),
    (R.RULE_ASSUMED, {"options": {"policy": 512}, "optimizer": "muon", "noise_scale": 1e4}, {"options": {"policy": 512}, "optimizer": "muon", "noise_scale": 0.0}),
    (R.RULE_MISMATCH, {"options": {"policy": 512, "rule": "saturating"}, "noise_scale": 1e4}, {"options": {"policy": 512, "rule": "saturating"}, "optimizer": "muon", "noise_scale": 1e4}),
    (R.RULE_ASSUMED, {"options": {"policy": 512}, "optimizer": "muon"}, {"options": {"policy": "keep"}, "optimizer": "muon"}),
    (
        R.DECAY_UNKNOWN,
        {"options": {"policy": 512}, "optimizer": "adamw", "weight_decay": 0.1},
        {"options": {"policy": 512}, "optimizer": "adamw", "weight_decay": 0.1, "decay": "lr_multiplied"},
    ),
    (
        R.DECAY_UNKNOWN,
        {"options": {"policy": 512}, "optimizer": "adamw", "weight_decay": 0.1},
        {"options": {"policy": 512}, "optimizer": "adamw"},
    ),
    (R.NO_WARMUP, {"options": {"policy": 512}, "warmup": None}, {"options": {"policy": 128}, "warmup": None}),
    (R.WARMUP_LONG, {"warmup": "20001st"}, {"warmup": "20000st"}),
    (R.WARMUP_SHORT, {"warmup": "999st", "betas": (0.9, 0.999)}, {"warmup": "1001st", "betas": (0.9, 0.999)}),
    (R.WARMUP_SHORT, {"warmup": "19st", "betas": (0.9, 0.95)}, {"warmup": "21st", "betas": (0.9, 0.95)}),
    (R.WARMUP_PAST_END, {"warmup": "100001st"}, {"warmup": "100000st"}),
    (R.PADDED, {"dataset_size": 601, "effective_batch": 8}, {"dataset_size": 701, "effective_batch": 8}),
    (
        R.DROPPED,
        {"dataset_size": 607, "effective_batch": 8, "drop_last": True},
        {"dataset_size": 807, "effective_batch": 8, "drop_last": True},
    ),
    (
        R.UNEVEN_TAIL,
        {"dataset_size": 1000, "options": {"max_micro_batch": 16}},
        {"dataset_size": 1024, "options": {"max_micro_batch": 16}},
    ),
    (R.UNEVEN_TAIL, {"dataset_size": 1000, "options": {"max_micro_batch": 16}}, {"dataset_size": 1000}),
    (R.BATCH_MOVED, {"gpus": 7, "options": {"batch_tolerance": 0.02}}, {"gpus": 8, "options": {"batch_tolerance": 0.02}}),
    (R.RAGGED, {"gpus": 7, "options": {"split": "ragged"}}, {"gpus": 8, "options": {"split": "ragged"}}),
    # what cannot be
    (R.NOT_DIVISIBLE, {"gpus": 7}, {"gpus": 8}),
    (R.NOT_DIVISIBLE, {"gpus": 512}, {"gpus": 256}),
    (R.MODEL_PARALLEL, {"gpus": 9, "model_parallel": 4}, {"gpus": 8, "model_parallel": 4}),
    (R.MULTIPLE_UNMET, {"options": {"micro_batch_multiple": 64}}, {"options": {"micro_batch_multiple": 8}}),
    (R.ABOVE_MAX_BATCH, {"options": {"max_batch": 255}}, {"options": {"max_batch": 256}}),
    (R.BATCH_ABOVE_DATASET, {"dataset_size": 255}, {"dataset_size": 256}),
    (R.SCHEDULE_UNMET, {"duration": "100st", "warmup": "81st", "schedule": "wsd(decay=20%)"}, {"duration": "100st", "warmup": "80st", "schedule": "wsd(decay=20%)"}),
    (R.SCHEDULE_UNMET, {"duration": "100st", "warmup": "10st", "schedule": "cosine(until=10st)"}, {"duration": "100st", "warmup": "10st", "schedule": "cosine(until=11st)"}),
    (R.SCHEDULE_UNMET, {"warmup": None, "schedule": "vaswani"}, {"warmup": "10st", "schedule": "vaswani"}),
    (R.SCHEDULE_UNMET, {"schedule": "exponential"}, {"schedule": "exponential", "min_lr": 1e-6}),
    (R.SCHEDULE_UNMET, {"schedule": "step(every=3ep)", "dataset_size": None}, {"schedule": "step(every=3ep)", "dataset_size": 100000}),
    (R.RUN_BELOW_STEP, {"duration": "255sp", "convention": "megatron"}, {"duration": "256sp", "convention": "megatron"}),
    # k(1 − β) < 1
    (R.BETA_NOT_POSITIVE, {"options": {"policy": 2560, "rule": "sde"}}, {"options": {"policy": 2552, "rule": "sde"}}),
    # A floor under β2 does not make the rule hold there.
    (
        R.BETA_NOT_POSITIVE,
        {"options": {"policy": 25600, "rule": "sde", "beta2_rule": "auto:0.5"}, "optimizer": "rmsprop"},
        {"options": {"policy": 25592, "rule": "sde", "beta2_rule": "auto:0.5"}, "optimizer": "rmsprop"},
    ),
    (R.NEEDS_TUNED_GPUS, {"options": {"policy": "grow"}}, {"options": {"policy": "grow", "max_micro_batch": 8}}),
    (R.NEEDS_NOISE, {"options": {"policy": 512, "rule": "adascale"}, "sigma_sq": 1.0}, {"options": {"policy": 512, "rule": "adascale"}, "sigma_sq": 1.0, "mu_sq": 1.0}),
    (R.NEEDS_NOISE, {"options": {"policy": 512, "rule": "saturating"}}, {"options": {"policy": 512, "rule": "saturating"}, "noise_scale": 1e4}),
    (R.NEEDS_NOISE, {"options": {"policy": 512, "rule": "muon"}}, {"options": {"policy": 512, "rule": "muon"}, "noise_scale": 1e4}),
    (R.NEEDS_NOISE, {"options": {"policy": 512, "rule": "surge"}}, {"options": {"policy": 512, "rule": "surge"}, "noise_scale": 1e4}),
    (R.NEEDS_POWER, {"options": {"policy": 512, "rule": "power"}}, {"options": {"policy": 512, "rule": "power"}, "power": 0.5}),
    (R.RAMP_NOT_DIVISIBLE, {"ramp": "124 12 1000"}, {"ramp": "128 16 1000"}),
    (R.RAMP_NOT_DIVISIBLE, {"ramp": "128 64 1000", "options": {"accumulation_multiple": 32}}, {"ramp": "128 64 1000", "options": {"accumulation_multiple": 8}}),
    (R.RAMP_RULE, {"ramp": "128 16 1000", "options": {"ramp_rule": "sqrt"}}, {"ramp": "128 16 1000"}),
    (R.RAMP_RULE, {"ramp": "128 16 1000", "options": {"ramp_rule": "sqrt"}}, {"options": {"ramp_rule": "sqrt"}}),
    (R.NEEDS_POWER, {"ramp": "128 16 1000", "options": {"ramp_rule": "power"}}, {"options": {"ramp_rule": "power"}}),
    (R.ACCUMULATION_UNMET, {"options": {"accumulation_multiple": 3}}, {"options": {"accumulation_multiple": 4}}),
    (R.NOT_DIVISIBLE, {"options": {"batch_multiple": 12}}, {"options": {"batch_multiple": 64}}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "brings", "not_yet"), CASES, ids=[f"{n}-{case[0].value}" for n, case in enumerate(CASES)]
)
def test_a_reason_begins_where_it_says(reason, brings, not_yet):
    assert says(reason, **brings)
    assert not says(reason, **not_yet)


def test_a_warmup_that_is_rounded_to_nothing_is_none():
    assert says(R.NO_WARMUP, options={"policy": 512}, duration="100st", warmup="1%")


def test_a_plan_without_a_word_is_ok():
    plan = ib.plan(recipe(), 8)
    assert (plan.status, plan.reasons) == ("ok", ())


def test_every_reason_has_its_words():
    for reason in R:
        assert len(reason.text) > 10
        assert reason.severity in ("caution", "infeasible")
        assert reason.source == "" or any(c.isdigit() for c in reason.source)
