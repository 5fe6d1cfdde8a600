"""Bad input: an error that names the field for one plan, a reason on the row in a fleet, never a wrong
number.
"""

import contextlib
import math

import numpy as np
import pytest

import isobatch as ib

NAN, INF = math.nan, math.inf
BASE = {"effective_batch": 256, "lr": 0.1, "duration": "100st"}
NOT_COUNTS = [0, -1, -(2**63), 2.5, NAN, INF, True, [8], "eight", 2**63, 2**64, 10**400]
NOT_REALS = [NAN, INF, -INF, -1.0, "x", [0.1], True]

COUNTS = [
    "effective_batch",
    "dataset_size",
    "seq_len",
    "gpus",
    "micro_batch",
    "accumulation",
    "model_parallel",
    "parameters",
]
REALS = (
    "lr", "momentum", "eps", "weight_decay", "ema_decay", "noise_scale", "sigma_sq", "mu_sq", "min_lr",
        "clip_norm",
    "bucket_cap_mb",
)  # fmt: skip
NOT_LENGTHS = [
    "5epochen", "3 days", "", "ep", "5", "-5ep", "nanep", "infst", "5eps", "1__000st", "0x10st", "2.5.1st",
        "1e400st", "٣ep",
    "99999999999999999999999st", "5ep 3st", "5ep,", 5, 5.0, ["5ep"],
]  # fmt: skip
BAD = [
    *((name, value) for name in COUNTS for value in NOT_COUNTS),
    *((name, value) for name in REALS for value in NOT_REALS),
    *((name, value) for name in ("duration", "warmup") for value in NOT_LENGTHS),
    ("duration", "0st"), ("duration", "10%"), ("warmup", "-1%"),
    ("lr", 0), ("lr", None), ("effective_batch", None), ("effective_batch", 2**40 + 1), ("dataset_size",
        2**53 + 1),
    ("momentum", 1.0), ("ema_decay", 1.0), ("noise_scale", -1.0), ("sigma_sq", -1.0), ("mu_sq", -1.0),
        ("clip_norm", 0.0),
    ("min_lr", 0.2), ("power", NAN), ("power", INF), ("power", "x"),
    ("betas", (0.9,)), ("betas", (0.9, 1.0)), ("betas", (NAN, 0.9)), ("betas", (-0.1, 0.9)), ("betas", (0.9,
        0.9, 0.9)), ("betas", 0.9),
    ("optimizer", "Adan"), ("optimizer", "sgdd"), ("optimizer", ""), ("optimizer", 1), ("decay", "both"),
        ("decay", 1),
    ("convention", "pytorch"), ("convention", ""), ("drop_last", "both"), ("drop_last", 2), ("batch_norm",
        "yes"),
    ("precision", "fp99"), ("schedule", "cosinus"), ("schedule", 3), ("schedule", "multistep(30ep"),
        ("schedule", ""),
    ("ramp", "a b c"), ("ramp", "192 16"), ("ramp", "192 0 100"), ("ramp", "0 16 100"), ("ramp",
        "192 -16 100"),
    ("ramp", "10:256"), ("ramp", "0:256 1Q:256"), ("ramp", "0:100 5B:200 1B:256"), ("ramp", 192), ("ramp",
        ""),
]  # fmt: skip
CONTRADICTIONS = [
    ({"gpus": 3}, "gpus"),
    ({"gpus": 8, "model_parallel": 3}, "gpus"),
    ({"gpus": 8, "micro_batch": 7}, "micro_batch"),
    ({"gpus": 8, "micro_batch": 8, "accumulation": 2}, "accumulation"),
    ({"duration": "5ep"}, "duration"),
    ({"warmup": "5ep"}, "warmup"),
    ({"duration": "1e6tok"}, "duration"),
    ({"warmup": "1e6tok"}, "warmup"),
    ({"ramp": "0:128 1M:256"}, "ramp"),
    *(({"device_batches": batches}, "device_batches") for batches in ([64, None], (128, 128.5), (), 256, (100,
        100), (0, 256))),
    ({"device_batches": (128, 128), "accumulation": 2}, "device_batches"), ({"device_batches": (128, 128),
        "gpus": 4}, "device_batches"),
    ({"schedule": {"kind": "cosine"}}, "schedule"),
]  # fmt: skip
BAD_SETTINGS = [
    ("policy", "hold"), ("policy", ""), ("policy", 0), ("policy", -1), ("policy", 2.5), ("policy", 2**41),
    ("rule", "cubic"), ("rule", ""), ("rule", 3),
    *(("max_micro_batch", value) for value in (0, -1, 2.5, NAN, 2**31, 2**63, "x")),
    *(("max_batch", value) for value in (0, -1, 2.5, 2**63, "x")),
    *(("batch_tolerance", value) for value in (-0.1, 1.0, NAN, INF, "x")),
    *(("micro_batch_multiple", value) for value in (0, -1, 2.5, 2**63)),
    *(("split", value) for value in ("x", "", 2, True)), *(("short_epochs", value) for value in ("x", 2)),
    *(("beta2_rule", value) for value in ("x", "", 0.9, "half_life:1", "half_life:", "auto:-0.1",
        "auto:nan")),
    *(("duration_scale", value) for value in (0, -8, NAN, INF, "x", "8^", "^0.3", "8^nan", "0^0.3",
        "8^0.3^2")),
]  # fmt: skip
BAD_CLUSTERS = [
    *((name, value) for name in ("nodes", "gpus_per_node") for value in (0, -1, 2.5, NAN, 2**31 + 1, 2**63,
        "x", True)),
    *(("model_parallel", value) for value in (0, -1, 2.5, 2**63)),
    *((name, value) for name in ("memory_gib", "intra_gb_s", "inter_gb_s") for value in (NAN, INF, 0.0, -1.0,
        "x")),
    *((name, value) for name in ("latency_us", "price_per_gpu_hour") for value in (NAN, INF, -1.0, "x")),
]  # fmt: skip


def refused(*fields):
    """Expects an error about one of the fields, by name."""

    def named(error):
        return error.field in fields and error.field in str(error)

    return pytest.RaisesExc(ib.InputError, check=named)


def shown(value):
    return str(value)[:40]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={shown(value)}" for name, value in BAD])
def test_a_recipe_names_the_field_and_what_is_legal(name, value):
    with refused(name):
        ib.Recipe(**BASE | {name: value})


@pytest.mark.parametrize(("fields", "name"), CONTRADICTIONS)
def test_a_recipe_may_not_contradict_itself_or_leave_out_what_it_needs(fields, name):
    with refused(name, "dataset_size", "seq_len", "model_parallel"):
        ib.Recipe(**BASE | fields)


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_a_plan_names_the_setting(name, value):
    with refused(name):
        ib.plan(ib.Recipe(**BASE), 8, **{name: value})


@pytest.mark.parametrize(("name", "value"), BAD_CLUSTERS)
def test_a_plan_names_the_clusters_field(name, value):
    with refused(name):
        ib.plan(ib.Recipe(**BASE), ib.Cluster(**{name: value}))


@pytest.mark.parametrize("kind", [float, np.float64, np.int64])
def test_a_whole_number_may_be_typed_as_a_float(kind):
    recipe = ib.Recipe(
        effective_batch=kind(256), lr=0.1, parameters=kind(3e8), duration="100st", gpus=kind(8)
    )
    assert repr(recipe) == repr(
        ib.Recipe(effective_batch=256, lr=0.1, parameters=300_000_000, duration="100st", gpus=8)
    )
    assert ib.Recipe.from_gpus(gpus=kind(8), batch_per_gpu=kind(4), lr=0.1).effective_batch == 32
    unequal = ib.Recipe.from_gpus(gpus=2, batch_per_gpu=[kind(4), 5], lr=0.1)
    assert unequal.device_batches == (4, 5)
    plan = ib.plan(
        recipe, ib.Cluster(nodes=kind(1), gpus_per_node=kind(4)), policy=kind(512), max_micro_batch=kind(64)
    )
    assert plan == ib.plan(recipe, kind(4), policy=512, max_micro_batch=64)
    assert ib.Plan.from_json(plan.to_json()) == plan
    assert plan.position(kind(5)) == plan.position(5) and plan.micro_batches(kind(1)).tolist() == [64, 64]
    assert ib.replan(plan, at_step=kind(5), effective_batch=kind(256)).settings.policy == 256
    assert ib.counts(recipe, [kind(8)], best_batch_up_to=kind(64)).best_batch == 64
    assert (
        ib.Profile.estimate(parameters=kind(1e9), flops_per_sample=1e9, gpu_tflops=100).gradient_bytes == 2e9
    )


def test_a_cluster_too_large_for_its_product():
    with refused("nodes", "gpus_per_node"):
        ib.plan(ib.Recipe(**BASE), ib.Cluster(nodes=2**20, gpus_per_node=2**20))


@pytest.mark.parametrize(
    ("name", "value"), [("effective_batch", "256"), ("lr", "0.1"), ("seq_len", "128"), ("min_lr", "0.01")]
)
def test_a_number_as_text_is_the_number_or_an_error_but_never_a_plan_that_cannot_be_read_back(
    tmp_path, name, value
):
    written = tmp_path / "plan.json"
    with contextlib.suppress(ib.InputError):
        plan = ib.plan(ib.Recipe(**BASE | {name: value}), 8)
        plan.save(written)
    if written.exists():
        assert ib.Plan.load(written) == plan


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"gpus": 0, "batch_per_gpu": 32}, "gpus"),
        ({"gpus": -1, "batch_per_gpu": 32}, "gpus"),
        ({"gpus": 8, "batch_per_gpu": 0}, "batch_per_gpu"),
        ({"gpus": 8, "batch_per_gpu": 2.5}, "batch_per_gpu"),
        ({"gpus": 8, "batch_per_gpu": 32, "accumulation": 0}, "accumulation"),
        ({"gpus": 8, "batch_per_gpu": 32, "model_parallel": 3}, "model_parallel"),
        ({"gpus": 8, "batch_per_gpu": 32, "effective_batch": 256}, "effective_batch"),
        ({"gpus": 8, "batch_per_gpu": [32] * 7}, "batch_per_gpu"),
        ({"gpus": 2, "batch_per_gpu": [32, 0]}, "batch_per_gpu"),
        ({"gpus": 2, "batch_per_gpu": [32, NAN]}, "batch_per_gpu"),
        ({"gpus": 2, "batch_per_gpu": "32"}, "batch_per_gpu"),
        ({"gpus": 2**31, "batch_per_gpu": 2**31}, "effective_batch"),
    ],
)
def test_from_gpus_names_the_field(fields, name):
    with refused(name):
        ib.Recipe.from_gpus(lr=0.1, **fields)


def test_results_that_pass_their_column_are_a_reason_not_a_wrapped_number():
    plan = ib.plan(ib.Recipe(effective_batch=2**40, lr=0.1), 1)
    assert plan.status == "infeasible"
    assert ib.Reason.TOO_LARGE in plan.reasons
    grown = ib.plan(ib.Recipe(effective_batch=2**36, lr=0.1, gpus=1, micro_batch=2**16), 2**20, policy="grow")
    assert grown.status == "infeasible"
    assert ib.Reason.TOO_LARGE in grown.reasons
    long = ib.Recipe(effective_batch=1, lr=0.1, dataset_size=2**53, duration="1000000ep")
    plan = ib.plan(long, 1)
    assert plan.status == "infeasible" or plan.total_steps == 2**53 * 10**6


@pytest.mark.parametrize("rule", ["linear", "power", "sde"])
def test_a_learning_rate_that_overflows_is_a_reason(rule):
    recipe = ib.Recipe(effective_batch=1, lr=1e308, power=1000.0, gpus=1, duration="10000sp", warmup="1sp")
    plan = ib.plan(recipe, 4096, policy="grow", rule=rule)
    assert plan.status == "infeasible" or math.isfinite(plan.lr)


# Fleets: the row's error is that row's


def objects(values):
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def invalid(bits):
    return any(reason.value.startswith("invalid") for reason in ib.Reason.of(int(bits)))


ONE = {"effective_batch": np.array([256]), "lr": np.array([0.1])}
NULLS = (None, "", NAN)  # cells without a value: the default stands


@pytest.mark.parametrize("name", sorted({name for name, _ in BAD}))
def test_a_fleets_row_carries_its_error_and_the_others_go_on(name):
    needed = name in ("effective_batch", "lr")
    values = [
        v for field, v in BAD if field == name and (needed or not any(v is n for n in NULLS)) and v != ""
    ]
    values = [v for v in values if not isinstance(v, (list, bool)) and v != 10**400]
    assert values
    rows = len(values)
    jobs = {field: objects([value] * (rows + 2)) for field, value in BASE.items()}
    jobs[name] = objects([BASE.get(name), *values, BASE.get(name)])
    table = ib.plan_fleet(jobs, [8, 16])
    bad = np.repeat(np.array([False] + [True] * rows + [False]), 2)
    for row, status in enumerate(table["status"]):
        assert (status == "infeasible") == bad[row], (name, jobs[name][row // 2])
        assert invalid(table["reasons"][row]) == bad[row]
    for column in ("micro_batch", "accumulation", "effective_batch", "total_steps"):
        assert (table[column][bad] == -1).all()
        assert (table[column][~bad] > 0).all()
    assert np.isnan(table["lr"][bad]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_and_infinity_in_a_column_of_reals(dtype):
    jobs = {"effective_batch": np.array([256] * 4), "lr": np.array([0.1, NAN, INF, -0.1], dtype=dtype)}
    table = ib.plan_fleet(jobs, [8])
    assert [invalid(bits) for bits in table["reasons"]] == [False, True, True, True]


@pytest.mark.parametrize(
    "dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float64]
)
def test_counts_of_any_width(dtype):
    jobs = {"effective_batch": np.array([64, 0, 96], dtype=dtype), "lr": np.array([0.1] * 3)}
    table = ib.plan_fleet(jobs, [8])
    assert table["micro_batch"].tolist() == [8, -1, 12]
    assert invalid(table["reasons"][1])


def test_a_count_beyond_its_range_in_a_column():
    big, low = np.array([2**63, 2**64 - 1, 256], dtype=np.uint64), np.array([-(2**63), -1, 256])
    for batches in (big, low):
        table = ib.plan_fleet({"effective_batch": batches, "lr": np.array([0.1] * 3)}, [8])
        assert [invalid(bits) for bits in table["reasons"]] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "value"), [pair for pair in BAD_CLUSTERS if not isinstance(pair[1], bool) and pair[1] == pair[1]]
)
def test_a_bad_cluster_row(name, value):
    clusters = {"nodes": objects([1, 1]), "gpus_per_node": objects([8, 8]), name: objects([None, value])}
    if name in ("nodes", "gpus_per_node"):
        clusters[name][0] = 8
    table = ib.plan_fleet(ONE | {"effective_batch": np.array([1024])}, clusters)
    assert table["status"].tolist()[0] != "infeasible"
    assert invalid(table["reasons"][1])


def test_a_bad_setting_in_a_column():
    jobs = {
        "effective_batch": np.array([256] * 4), "lr": np.array([0.1] * 4),
        "policy": np.array(["keep", "hold", "-3", "512"]), "rule": np.array(["auto", "auto", "auto",
            "cubic"]),
    }  # fmt: skip
    table = ib.plan_fleet(jobs, [8])
    assert [invalid(bits) for bits in table["reasons"]] == [False, True, True, True]


def test_a_bad_setting_for_all_rows_is_an_error_of_the_call():
    bad = {"policy": "hold", "rule": "cubic", "max_micro_batch": 0, "batch_tolerance": NAN}
    for name, value in bad.items():
        with refused(name):
            ib.plan_fleet(ONE, [8], **{name: value})
    with pytest.raises((ib.InputError, TypeError)):
        ib.plan_fleet(ONE, [8], polizy="keep")


@pytest.mark.parametrize(
    ("jobs", "clusters", "field"),
    [
        ({"lr": ONE["lr"]}, [8], "effective_batch"),
        ({"effective_batch": np.array([256])}, [8], "lr"),
        (ONE, {"gpu": np.array(["a"])}, "nodes"),
        (ONE | {"effective_batch": np.array([256, 512])}, [8], "lr"),
        (ONE | {"effective_batch": np.array([[256]])}, [8], "effective_batch"),
        (ONE | {"effective_batch": np.array([256 + 0j])}, [8], "effective_batch"),
        ({name: np.repeat(cell, 2) for name, cell in {"job": "a", **ONE}.items()}, [8], "job"),
        (ONE, [8, 8, 0.5], None),
        ("jobs.xlsx", [8], None),
        (3, [8], "job"),
        ("/nowhere/at/all.csv", [8], None),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_of_the_call(jobs, clusters, field):
    with pytest.raises(ib.InputError) as caught:
        ib.plan_fleet(jobs, clusters)
    assert field is None or caught.value.field == field


def test_pairs_that_name_nobody():
    pairs = [({"job": ["b"], "cluster": [0]}, "job"), ({"job": ["a"], "cluster": [7]}, "cluster")]
    for named, field in (*pairs, ({"job": ["a"]}, "cluster")):
        with refused(field):
            ib.plan_fleet(ONE | {"job": np.array(["a"])}, [8], pairs=named)


def test_of_dozens_of_faults_a_message_has_the_first():
    with pytest.raises(ib.InputError) as caught:
        ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8, **{f"zz{number}": 1 for number in range(50)})
    message = str(caught.value)
    assert message.startswith("50 faults:") and message.endswith("and 30 more")
    assert len(caught.value.causes) == 50
    assert len(message) < 10_000
