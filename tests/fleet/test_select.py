"""`select` where rows of a job cannot be compared: which row it takes, and the caution that says so."""

import re

import numpy as np
import pytest

import isobatch as ib
from isobatch.fleet.query import query

C = ib.Constant


def profile(gpu="H100", noise=None):
    return ib.Profile(
        gpu=gpu, gradient_bytes=4e8, overlap=C(value=2), compute_constant=C(value=0.01),
        compute_per_sample=C(value=0.00125),
        intra_latency_us=C(value=8), intra_gb_s=C(value=150), inter_latency_us=C(value=25),
        inter_gb_s=C(value=20),
        noise_scale=None if noise is None else C(value=noise), micro_batch=(1, 512), replicas_per_node=(1,
        64), nodes=(1, 64),
    )  # fmt: skip


def node(gpus, gpu="H100", price=3.0):
    return ib.Cluster(nodes=1, gpus_per_node=gpus, gpu=gpu, price_per_gpu_hour=price)


JOBS = {"job": ["a", "b", "c"], "effective_batch": [255, 480, 7], "lr": [0.1] * 3, "duration": ["1000st"] * 3}
COLUMNS = ["job", "cluster", "world_size", "status", "reasons", "hours"]


def chosen(jobs, clusters, **settings):
    table = ib.plan_fleet(jobs, clusters, columns=COLUMNS, **settings)
    reasons = [{str(reason) for reason in row} for row in ib.Reason.of(table["reasons"])]
    return list(
        zip(
            table["job"].tolist(),
            table["world_size"].tolist(),
            table["status"].tolist(),
            reasons,
            strict=True,
        )
    )


@pytest.mark.parametrize("top", [1, 2])
def test_a_gpu_that_no_profile_knows(top):
    """255 samples fit 15 GPUs alone, of an unmeasured kind; 7 samples fit none of these."""
    rows_chosen = chosen(
        JOBS, [node(8), node(15, "B200"), node(16)], profile=profile(), select="fastest", top=top
    )
    of_job = {name: [row[1:] for row in rows_chosen if row[0] == name] for name in "abc"}
    assert of_job["a"] == [(15, "caution", {"other_hardware", "not_compared"})]
    assert [gpus for gpus, *_ in of_job["b"]] == [16, 8][:top]
    assert of_job["c"] == [(8, "infeasible", {"not_divisible"})]


def test_a_price_that_is_not_known():
    rows_chosen = chosen(
        {**JOBS, "effective_batch": [40, 5, 7]},
        [node(8), node(5, price=None)],
        profile=profile(),
        select="cheapest",
    )
    assert rows_chosen == [
        ("a", 8, "caution", {"not_compared"}),
        ("b", 5, "caution", {"not_compared"}),
        ("c", 8, "infeasible", {"not_divisible"}),
    ]


@pytest.mark.parametrize("limit", [{}, {"budget": 1e6}, {"max_micro_batch": 8}])
def test_clusters_whose_network_the_profile_lacks(tmp_path, ran, limit):
    """Each row without a cost has a reason, and the cheapest has the caution `not_compared`."""
    measured = ib.Profile.estimate(
        parameters=10**8, flops_per_sample=1e12, gpu_tflops=100, gpu="H100", intra_gb_s=100
    )
    shape = {"gpus_per_node": 8, "gpu": "H100", "price_per_gpu_hour": 3.0}
    clusters = [ib.Cluster(nodes=1, **shape), ib.Cluster(nodes=4, **shape | {"price_per_gpu_hour": 0.1})]
    jobs = {"job": ["a"], "effective_batch": [256], "lr": [0.1], "duration": ["1000st"]}
    rows = chosen(jobs, clusters, profile=measured, **limit)
    why = "needs_profile" if "budget" in limit else "other_hardware"
    assert why not in rows[0][3] and why in rows[1][3]
    assert rows[1][2] == ("infeasible" if "budget" in limit else "caution")
    (cheapest,) = chosen(jobs, clusters, profile=measured, select="cheapest", **limit)
    assert cheapest[1:3] == (8, "caution") and "not_compared" in cheapest[3]
    known = [
        ib.Cluster(**{name: getattr(cluster, name) for name in ("nodes", *shape)}, inter_gb_s=25)
        for cluster in clusters
    ]
    (cheapest,) = chosen(jobs, known, profile=measured, select="cheapest", **limit)
    assert cheapest[1] == 32 and "not_compared" not in cheapest[3]

    measured.save(tmp_path / "profile.json")
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr,duration\na,256,0.1,1000st\n")
    (tmp_path / "clusters.csv").write_text(
        "nodes,gpus_per_node,gpu,price_per_gpu_hour\n1,8,H100,3\n4,8,H100,0.1\n"
    )
    files = [str(tmp_path / name) for name in ("jobs.csv", "clusters.csv", "profile.json")]
    options = [text for name, value in limit.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    words = ["fleet", *files[:2], "--profile", files[2], "--select", "cheapest", *options]
    assert "1 row left out of the choice: their time, cost or noise scale is not known" in ran(words).err


def test_a_noise_scale_that_is_not_known():
    jobs = {**JOBS, "effective_batch": [256, 60, 7], "noise_scale": [1000.0, None, None]}
    rows_chosen = chosen(jobs, [node(8), node(4), node(15)], profile=profile(), select="goodput")
    assert rows_chosen[1][1:] == (4, "caution", {"not_compared"})
    assert "not_compared" not in rows_chosen[0][3] | rows_chosen[2][3] and rows_chosen[2][2] == "infeasible"


def test_no_row_within_the_deadline_is_taken_for_one_that_cannot_be_compared():
    rows_chosen = chosen(JOBS, [node(5), node(3)], profile=profile(), select="fastest", deadline_hours=1e-6)
    assert [row[2:] for row in rows_chosen] == [("infeasible", {"misses_deadline"})] * 2 + [
        ("infeasible", {"not_divisible"})
    ]


def test_the_first_that_can_be_planned_by_the_plainest_means():
    """Against the fleet without a choice, over random jobs and kinds of GPUs."""
    draw = np.random.default_rng(7)
    jobs = {
        "job": np.arange(200),
        "effective_batch": draw.integers(1, 600, 200),
        "lr": np.full(200, 0.1),
        "duration": ["100st"] * 200,
    }
    clusters = [
        node(int(gpus), str(gpu))
        for gpus, gpu in zip(draw.integers(1, 30, 9), draw.choice(["H100", "B200"], 9), strict=True)
    ]
    every = ib.plan_fleet(jobs, clusters, profile=profile(), columns=COLUMNS)
    best = ib.plan_fleet(jobs, clusters, profile=profile(), columns=COLUMNS, select="fastest")
    kinds, left_out = set(), 0
    for job in range(200):
        of_job = slice(job * 9, job * 9 + 9)
        feasible, hours = every["status"][of_job] != "infeasible", every["hours"][of_job]
        known = feasible & ~np.isnan(hours)
        at = int(np.nanargmin(np.where(known, hours, np.inf))) if known.any() else int(feasible.argmax())
        assert best["world_size"][job] == every["world_size"][of_job][at]
        marked = ib.Reason.NOT_COMPARED in ib.Reason.of(int(best["reasons"][job]))
        assert marked == (feasible & ~known).any()
        left_out += int((feasible & ~known).sum())
        assert (best["status"][job] == "infeasible") == (not feasible.any())
        kinds.add((bool(known.any()), bool(feasible.any())))
    assert len(kinds) == 3, "jobs that can be compared, that cannot, and that cannot be planned"
    assert query(clusters, profile=profile(), select="fastest").fleet(jobs).left_out == left_out


def test_the_same_in_files(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "jobs").mkdir()
    parquet.write_table(arrow.table(JOBS), tmp_path / "jobs" / "jobs.parquet")
    clusters = [node(8), node(15, "B200"), node(16)]
    settings = {"profile": profile(), "select": "fastest", "columns": COLUMNS}
    manifest = ib.plan_files(tmp_path / "jobs", clusters, tmp_path / "plans", **settings)
    whole = ib.plan_fleet(arrow.table(JOBS), clusters, **settings)
    filed = parquet.read_table(tmp_path / "plans" / "jobs.parquet")
    assert filed.select(COLUMNS).to_pylist() == whole.to_pylist()
    assert whole["reasons"].to_pylist()[0] == ["other_hardware", "not_compared"]
    assert (manifest.summary.reasons["not_compared"], manifest.summary.left_out) == (2, 2)


@pytest.mark.parametrize("name", ["max_gpus", "min_gpus", "Max_Nodes"])
def test_a_limit_that_limits_nothing_is_said(name):
    with pytest.warns(
        UserWarning,
        match=rf"not fields, carried along: {name} \(limits nothing: name the clusters of each job by "
        rf"pairs\)",
    ):
        table = ib.plan_fleet({**JOBS, name: [8, 8, 8]}, [4, 16])
    assert table[name].tolist() == [8] * 6


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Max GPUs", "limits nothing: name the clusters"),
        ("Deadline (h)", "deadline_hours?"),
        ("Budget ($)", "budget?"),
        ("Tokens", "duration?"),
        ("TP", "model_parallel?"),
        ("Job Name", "job?"),
        ("profile", "not read: a fleet takes one profile for each GPU type"),
    ],
)
def test_a_column_of_a_spreadsheet_is_hinted_at(name, hint):
    with pytest.warns(UserWarning, match=re.escape(f"not fields, carried along: {name} ({hint}")):
        ib.plan_fleet({**JOBS, name: [8, 8, 8]}, [4])
