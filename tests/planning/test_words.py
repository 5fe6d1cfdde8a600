"""The words of a plan: a case for each line of that part of the design, so that no two parts disagree."""

import csv
import io
import itertools

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch import _core

RULES = [name for name, *_ in _core.rules()]
NOISE = {"sigma_sq": 3.0, "mu_sq": 0.5, "noise_scale": 5000.0, "power": 0.6}
COUNTS = ("micro_batch", "accumulation", "effective_batch")


def resnet(**changes):
    fields = {
        "gpus": 8, "batch_per_gpu": 32, "lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4,
        "dataset_size": 1_281_167, "duration": "90ep", "warmup": "5ep",
    }  # fmt: skip
    return ib.Recipe.from_gpus(**fields | changes)


def adamw(**changes):
    return ib.Recipe(
        **{"effective_batch": 256, "lr": 1e-3, "duration": "1000st", "warmup": "100st"} | changes
    )


def counts(plan):
    return tuple(getattr(plan, name) for name in COUNTS)


# the schedule


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "100 of them warmup, then cosine to 0;"),
        ({"min_lr": 1e-5}, "100 of them warmup, then cosine to 1e-5;"),
        ({"schedule": "constant"}, "100 of them warmup, then constant;"),
        ({"schedule": "wsd(decay=20%)"}, "100 of them warmup, then wsd(decay=20%);"),
        ({"schedule": ib.schedules.constant(1e-3)}, "100 of them warmup, then its own schedule;"),
    ],
)
def test_the_text_names_the_schedule(fields, words):
    assert words in ib.plan(adamw(**fields), 8).explain()


# keep


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb", "lion"])
def test_keep_never_changes_a_hyperparameter_even_where_the_batch_moves(rule, optimizer):
    recipe = adamw(
        effective_batch=250, optimizer=optimizer, momentum=0.9, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1,
        decay="lr_multiplied", ema_decay=0.999, **NOISE,
    )  # fmt: skip
    plan = ib.plan(recipe, 8, policy="keep", rule=rule, batch_tolerance=0.05, beta2_rule="half_life")
    assert plan.effective_batch == 248
    assert plan.status == "caution"
    assert ib.Reason.BATCH_MOVED in plan.reasons
    assert (plan.lr, plan.lr_scale, plan.betas, plan.eps) == (1e-3, 1.0, (0.9, 0.98), 1e-6)
    assert (plan.weight_decay, plan.momentum, plan.ema_decay) == (0.1, 0.9, 0.999)
    assert plan.rule == "none"
    assert plan.batch_change == pytest.approx(-2 / 250)


@pytest.mark.parametrize(
    ("batch", "gpus", "tolerance", "moved"),
    [
        (256, 7, 0.02, 259),  # 252 and 259: 3 is less than 4
        (250, 20, 0.05, 240),  # 240 and 260 are as near: the smaller
        (100, 7, 0.02, 98),
        (
            10,
            4,
            0.2,
            12,
        ),  # 8 and 12 are as near, and 12 takes micro-batches of 3, not 2; two tenths are allowed exactly
        (256, 3, 0.05, 255),  # not capped
        (10, 13, 0.3, 13),  # three tenths too, however binary writes them
        (8, 7, 0.125, 7),
    ],
)
def test_keep_takes_the_smallest_change_then_the_smaller_batch(batch, gpus, tolerance, moved):
    plan = ib.plan(adamw(effective_batch=batch), gpus, batch_tolerance=tolerance)
    assert plan.effective_batch == moved


@pytest.mark.parametrize(
    ("batch", "gpus", "cap", "tolerance", "split"),
    [
        (256, 3, 4, 0.05, (4, 21, 252)),  # not 255 = 1 × 85 × 3
        (256, 3, 32, 0.05, (28, 3, 252)),
        (256, 3, 85, 0.05, (85, 1, 255)),
        (256, 3, 4, 0.004, (1, 85, 255)),  # nothing else is within the tolerance
        (256, 7, 8, 0.05, (6, 6, 252)),  # not 259 = 1 × 37 × 7
    ],
)
def test_within_the_tolerance_the_micro_batch_stays_large(batch, gpus, cap, tolerance, split):
    plan = ib.plan(adamw(effective_batch=batch), gpus, batch_tolerance=tolerance, max_micro_batch=cap)
    assert counts(plan) == split


@pytest.mark.parametrize(
    ("total", "share", "steps"),
    [(612, "3%", 19), (78, "3%", 3), (100, "7%", 8), (100, "10%", 10), (1000, "0.1%", 1)],
)
def test_the_trainer_rounds_a_share_up_in_floats(total, share, steps):
    recipe = adamw(duration=f"{total}st", warmup=share)
    assert ib.plan(msgspec.structs.replace(recipe, convention="transformers"), 8).warmup_steps == steps
    assert ib.plan(recipe, 8).warmup_steps == int(total * float(share[:-1]) / 100 + 1e-9)


def test_megatron_floors_a_warmup_in_tokens():
    recipe = adamw(effective_batch=1024, seq_len=2048, duration="300e9tok", warmup="375e6tok")
    assert ib.plan(recipe, 8).warmup_steps == 179
    assert ib.plan(msgspec.structs.replace(recipe, convention="megatron"), 8).warmup_steps == 178  # 178.8


def test_an_epoch_in_a_schedule_is_the_datasets_samples_under_megatron():
    fields = {"dataset_size": 1000, "duration": "90ep", "warmup": "1ep", "convention": "megatron"}
    plan = ib.plan(adamw(**fields, schedule="multistep(30ep, 60ep)"), 4)
    assert plan.total_steps == 90_000 // 256
    changes = [step for step in range(5, plan.total_steps) if plan.lr_at(step) != plan.lr_at(step - 1)]
    assert changes == [117, 234]  # 117.19 and 234.38 steps


def test_beyond_the_tolerance_a_plan_is_infeasible_and_names_what_works():
    plan = ib.plan(adamw(), 7, batch_tolerance=0.01)
    assert plan.status == "infeasible"
    assert ib.Reason.NOT_DIVISIBLE in plan.reasons
    # On 6 GPUs 258 samples are within the tolerance.
    assert (plan.nearest_world_size, plan.nearest_batch) == (6, 259)
    assert (plan.nearest_world_sizes, plan.nearest_batches) == ((6, 8), (252, 259))
    assert counts(plan) == (None, None, None)
    assert plan.lr is None


# At the tuned GPU count


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", ["keep", "grow", 256])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb"])
def test_the_tuned_gpu_count_is_the_identity(policy, rule, optimizer):
    known = {"betas": (0.9, 0.95), "eps": 1e-7, "ema_decay": 0.99, "schedule": "linear", **NOISE}
    recipe = resnet(optimizer=optimizer, **known)
    plan = ib.plan(recipe, 8, policy=policy, rule=rule)
    assert counts(plan) == (32, 1, 256)
    assert (plan.lr, plan.lr_scale, plan.batch_change) == (0.1, 1.0, 0.0)
    assert (plan.betas, plan.eps, plan.weight_decay) == ((0.9, 0.95), 1e-7, 1e-4)
    assert (plan.momentum, plan.ema_decay) == (0.9, 0.99)
    assert (plan.steps_per_epoch, plan.total_steps, plan.warmup_steps) == (5005, 450_450, 25_025)
    assert plan.lr_at(0) == 0.0
    assert plan.lr_at(25_025) == 0.1


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_needs_nothing_measured_where_the_batch_stays(rule):
    assert ib.plan(resnet(), 8, policy="grow", rule=rule).lr == 0.1


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "sde"])
def test_no_rule_depends_on_the_split(rule):
    words = {
        (plan.lr, plan.betas, plan.eps, plan.weight_decay, plan.total_steps, plan.warmup_steps)
        for cap in (1, 7, 32, 64, None)
        for plan in [ib.plan(adamw(**NOISE), 8, policy=1024, rule=rule, max_micro_batch=cap)]
    }
    assert len(words) == 1


# The cap


def test_the_cap_and_where_it_is_from():
    assert (ib.plan(resnet(), 4).micro_batch_cap, ib.plan(resnet(), 4).cap_source) == (32, "tuned")
    capped = ib.plan(resnet(), 4, max_micro_batch=64)
    assert (capped.micro_batch_cap, capped.cap_source, capped.micro_batch) == (64, "max_micro_batch", 64)
    free = ib.plan(adamw(), 4)
    assert (free.micro_batch_cap, free.cap_source, free.micro_batch) == (None, "open", 64)


# Samples


def test_milestones_are_held_in_samples_and_rounded_half_up():
    schedule = "multistep(31st, 50st, 81st, gamma=0.1)"
    recipe = adamw(gpus=8, optimizer="sgd", duration="100st", warmup="0st", schedule=schedule)
    plan = ib.plan(recipe, 16, policy="grow")
    # 15.5, 25 and 40.5 steps
    changes = [step for step in range(1, 50) if plan.lr_at(step) != plan.lr_at(step - 1)]
    assert changes == [16, 25, 41]


# The dataset


def test_the_dataset_size_is_needed_only_where_an_epoch_is_a_unit():
    plan = ib.plan(adamw(seq_len=128), 8)
    assert plan.total_steps == 1000
    per_epoch = (plan.steps_per_epoch, plan.samples_per_epoch, plan.padded_samples, plan.dropped_samples)
    assert per_epoch == (None,) * 4
    for fields in ({"duration": "2ep"}, {"warmup": "2ep"}):
        with pytest.raises(ib.InputError) as caught:
            adamw(**fields)
        assert caught.value.field in ("dataset_size", *fields)


def test_a_ragged_epoch():
    recipe = adamw(effective_batch=250, dataset_size=2500, duration="4ep", warmup="1ep")
    whole = ib.plan(msgspec.structs.replace(recipe, drop_last=True), 7, split="ragged")
    assert (whole.steps_per_epoch, whole.total_steps, whole.warmup_steps) == (10, 40, 10)
    assert (whole.samples_per_epoch, whole.padded_samples, whole.dropped_samples) == (2500, 0, 0)
    # Its steps take any number of samples: nothing is padded.
    exact = ib.plan(recipe, 7, split="ragged")
    assert (exact.steps_per_epoch, exact.samples_per_epoch, exact.padded_samples) == (10, 2500, 0)
    odd = ib.Recipe(effective_batch=51, lr=0.1, dataset_size=255, duration="4ep")
    assert ib.plan(odd, 6, split="ragged").steps_per_epoch == 5
    assert ib.plan(odd, 6, split="uneven").total_steps == 20


@pytest.mark.parametrize("drop_last", [False, True, "loader", "sampler"])
def test_exact_counts_the_same_on_every_number_of_gpus(drop_last):
    epochs = {"effective_batch": 20, "dataset_size": 510, "duration": "4ep", "warmup": "1ep"}
    recipe = adamw(**epochs, convention="exact", drop_last=drop_last)
    plans = [ib.plan(recipe, gpus, split=split) for gpus in range(1, 11) for split in ("ragged", "uneven")]
    steps = 26 if drop_last is False else 25
    for plan in plans:
        assert (plan.steps_per_epoch, plan.total_steps, plan.warmup_steps) == (steps, 4 * steps, steps)
        assert (plan.samples_per_epoch, plan.padded_samples) == (510 if drop_last is False else 500, 0)
    assert len({tuple(plan.lr_at(step) for step in range(4 * steps)) for plan in plans}) == 1


# Warmup


def test_a_warmup_starts_at_0_and_scales_with_the_peak():
    recipe = adamw(gpus=8, schedule="constant")
    for gpus in (4, 8, 32):
        plan = ib.plan(recipe, gpus, policy="grow", rule="sqrt")
        assert plan.warmup_lr == 0
        assert plan.lr_at(plan.warmup_steps / 2) == pytest.approx(plan.lr / 2, rel=1e-15)
        assert plan.lr_at(plan.warmup_steps) == plan.lr


def test_with_linear_it_starts_at_the_tuned_learning_rate():
    plan = ib.plan(resnet(), 256, policy="grow", rule="linear")
    assert [plan.lr_at(step) for step in (0, 157 * 5)] == [0.1, 3.2]
    assert plan.lr_at(157 * 5 / 2) == pytest.approx(1.65, rel=1e-15)
    # Scaled down, the tuned rate would be above the peak.
    assert ib.plan(resnet(), 4, policy="grow", rule="linear").lr_at(0) == 0


def test_min_lr_scales_with_the_peak():
    plan = ib.plan(adamw(gpus=8, min_lr=1e-5), 32, policy="grow", rule="sqrt")
    assert plan.min_lr == pytest.approx(2e-5, rel=1e-15)
    assert plan.lr_at(plan.total_steps) == pytest.approx(2e-5, rel=1e-12)


# from_gpus


def test_from_gpus_sums_unequal_devices_and_the_plan_says_what_that_needs():
    recipe = ib.Recipe.from_gpus(gpus=4, batch_per_gpu=[32, 32, 16, 16], lr=0.1, duration="100st")
    assert recipe.effective_batch == 96
    plan = ib.plan(recipe, 8)
    assert ib.Reason.UNEQUAL_DEVICES in plan.reasons
    assert "weight" in ib.Reason.UNEQUAL_DEVICES.text
    assert plan.effective_batch == 96
    equal = ib.Recipe.from_gpus(gpus=4, batch_per_gpu=[32] * 4, lr=0.1, duration="100st")
    assert ib.Reason.UNEQUAL_DEVICES not in ib.plan(equal, 8).reasons


# Weight decay


@pytest.mark.parametrize(("rule", "scale"), [("linear", 4.0), ("sqrt", 2.0), ("power", 4**0.6)])
def test_adamws_decay_moves_when_the_learning_rate_does(rule, scale):
    fields = {"gpus": 8, "weight_decay": 0.1, "power": 0.6}
    multiplied = ib.plan(adamw(**fields, decay="lr_multiplied"), 32, policy="grow", rule=rule)
    assert multiplied.weight_decay == pytest.approx(0.1 * 4 / scale, rel=1e-14)
    # The timescale 1/(η·λ), counted in epochs, is that of the tuned run.
    assert multiplied.lr * multiplied.weight_decay / 4 == pytest.approx(1e-3 * 0.1, rel=1e-14)
    independent = ib.plan(adamw(**fields, decay="independent"), 32, policy="grow", rule=rule)
    assert independent.weight_decay == pytest.approx(0.4, rel=1e-15)


@pytest.mark.parametrize("decay", ["lr_multiplied", "independent", None])
def test_decay_keeps_its_timescale_where_the_learning_rate_stays(decay):
    """1/(ηλ) in epochs: a quarter of the steps, each with the same η, takes four times the decay. As under
    power, down to 0.
    """
    plan = ib.plan(adamw(gpus=8, weight_decay=0.1, decay=decay), 32, policy="grow", rule="none")
    assert (plan.lr, plan.weight_decay) == (1e-3, 0.4)
    tiny = adamw(gpus=8, weight_decay=0.1, decay=decay, power=1e-9)
    almost = ib.plan(tiny, 32, policy="grow", rule="power")
    assert almost.weight_decay == pytest.approx(plan.weight_decay, rel=1e-8)


def test_a_decay_that_was_said_is_not_called_unknown():
    decays = ("lr_multiplied", "independent")
    for optimizer, decay in itertools.product(("adamw", "lamb", "lion", "muon"), decays):
        plan = ib.plan(adamw(optimizer=optimizer, gpus=8, weight_decay=0.1, decay=decay), 32, policy="grow")
        assert ib.Reason.DECAY_UNKNOWN not in plan.reasons


# Names


def test_a_plan_has_its_question_and_its_schedule():
    planned = ib.plan(adamw(), 8)
    assert planned.recipe == adamw()
    assert planned.cluster.world_size == 8
    assert planned.schedule.at(0) == planned.lr_at(0)


# Fleets


def test_a_keyword_may_be_a_column_and_the_rows_value_wins():
    jobs = {
        "effective_batch": np.array([256] * 5), "lr": np.array([0.1] * 5), "gpus": np.array([8] * 5),
        "optimizer": np.array(["sgd"] * 5),
        "policy": np.array(["grow", "keep", None, "1024", "grow"], dtype=object),
        "rule": np.array(["sqrt", None, None, "linear", ""], dtype=object),
        "max_micro_batch": np.ma.array([32, 0, 16, 8, 4], mask=[0, 1, 0, 0, 0]),
    }  # fmt: skip
    table = ib.plan_fleet(jobs, [32], policy=512, rule="linear", max_micro_batch=2)
    assert table["effective_batch"].tolist() == [1024, 256, 512, 1024, 1024]
    assert table["lr"].tolist() == pytest.approx([0.2, 0.1, 0.2, 0.4, 0.4])
    assert table["micro_batch"].tolist() == [32, 2, 16, 8, 4]


def test_a_setting_may_stand_in_the_clusters():
    clusters = {"nodes": np.array([1, 1]), "gpus_per_node": np.array([8, 8])}
    clusters["max_micro_batch"] = np.array([4, 32])
    jobs = {"effective_batch": np.array([256]), "lr": np.array([0.1])}
    assert ib.plan_fleet(jobs, clusters)["micro_batch"].tolist() == [4, 32]


TYPES = {name: np.dtype(kind).type for name, kind, *_ in _core.results() if name != "status"}
"""As docs/fleet.md has them."""


def test_the_types_of_columns_are_fixed():
    jobs = {"effective_batch": np.array([256, 250]), "lr": np.array([0.1, 0.1])}
    table = ib.plan_fleet(jobs, [8], columns=["status", *TYPES])
    assert {name: table[name].dtype.type for name in TYPES} == TYPES
    # Unknown is −1 or NaN: the second row is infeasible.
    for name, kind in TYPES.items():
        if name not in ("reasons", "world_size", "data_parallel", "nearest_world_size", "nearest_batch"):
            assert np.isnan(table[name][1]) if kind is np.float64 else table[name][1] == -1, name
    assert ib.Reason.of(int(table["reasons"][1])) == (ib.Reason.NOT_DIVISIBLE,)


def test_in_arrow_reasons_are_lists_and_unknown_is_null():
    pa = pytest.importorskip("pyarrow", reason="tables of Arrow come with the extra 'fleet'")
    jobs = pa.table({"job": ["a", "b"], "effective_batch": [256, 250], "lr": [0.1, 0.1]})
    clusters = pa.table({"cluster": ["c"], "nodes": [1], "gpus_per_node": [8]})
    table = ib.plan_fleet(jobs, clusters, columns=["status", *TYPES])
    assert isinstance(table, pa.Table)
    assert table["reasons"].to_pylist()[1] == ["not_divisible"]
    assert pa.types.is_list(table.schema.field("reasons").type)
    assert pa.types.is_string(table.schema.field("reasons").type.value_type)
    for name, kind in TYPES.items():
        if name != "reasons":
            assert table.schema.field(name).type == pa.from_numpy_dtype(kind), name
    for name in ("micro_batch", "lr", "total_steps"):
        assert table[name][1].as_py() is None
    assert table["nearest_batch"].to_pylist() == [None, 248]


def test_in_csv_reasons_are_joined(tmp_path, ran):
    pytest.importorskip("pyarrow", reason="files come with the extra 'fleet'")

    (tmp_path / "jobs.csv").write_text(
        "job,effective_batch,lr,gpus,duration,optimizer\na,256,0.1,8,100st,adam\n"
    )
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpus_per_node\nc,16,8\n")
    words = ["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "--columns", "reasons"]
    row = next(csv.DictReader(io.StringIO(ran([*words, "--policy", "grow", "--rule", "linear"]).out)))
    assert set(row["reasons"].split(";")) >= {"rule_mismatch", "large_growth", "no_warmup"}


# one of a thing


def test_one_of_a_thing_is_singular():
    single = ib.plan(ib.Recipe(effective_batch=1, lr=1e-3), 1).explain()
    assert single.startswith("1 GPU: micro-batch 1 × accumulation 1 × 1 replica = 1 sample per step.")
    assert "# isobatch: 1 GPU, 256 samples a step = 256 × 1 × 1 replica\n" in str(
        ib.plan(adamw(), 1).to("transformers")
    )
    apart = ib.plan(adamw(model_parallel=2), 1).explain()
    assert apart.startswith(
        "Cannot train on 1 GPU as asked:\n  - 1 GPU is not a multiple of model_parallel 2"
    )
