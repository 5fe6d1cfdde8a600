"""Rows of a fleet in words: the same whatever the table is, and what the command asks for."""

import re

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")

JOBS = {
    "job": ["a", "b"],
    "effective_batch": [256, 256],
    "lr": [0.1, 0.1],
    "gpus": [8, 8],
    "micro_batch": [32, 32],
    "duration": ["100st", "100st"],
    "warmup": ["10st", "10st"],
    "batch_norm": [False, True],
}
CLUSTERS = {"cluster": ["small", "large", "odd"], "nodes": [1, 8, 1], "gpus_per_node": [8, 8, 3]}


def plans(tmp_path, name="plans.parquet", **settings):
    """A table of plans as it is written, read back."""
    for file, rows in (("jobs.csv", JOBS), ("clusters.csv", CLUSTERS)):
        csv.write_csv(pa.table(rows), tmp_path / file)
    path = tmp_path / name
    options = [word for option, value in settings.items() for word in (f"--{option}", str(value))]
    assert (
        main(["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "-o", str(path), *options])
        == 0
    )
    return path


def test_a_row_in_words(tmp_path):
    from isobatch.files.read import read_table

    arrow = read_table(plans(tmp_path))
    text = read_table(plans(tmp_path, "plans.csv"))
    texts = [ib.explain(arrow, row) for row in range(6)]
    assert texts == [ib.explain(text, row) for row in range(6)]
    assert texts[0].splitlines()[:4] == [
        "job a, cluster small, 8 GPUs: caution",
        "Micro-batch 32 × accumulation 1 × 8 replicas: 256 samples per step.",
        "Learning rate 0.1, as tuned.",
        "The run: 100 steps, 10 of them warmup.",
    ]
    assert "Nearest that works: 2 GPUs; or a batch of" in texts[2]
    assert "Goyal et al. 2017" in texts[4] and "Warnings:" in texts[4]
    grown = ib.plan_fleet(JOBS | {"job": np.arange(2)}, [64], policy="grow", rule="linear")
    assert "Learning rate 0.8, 8 × the tuned one." in ib.explain(grown, 0)
    assert "2,048 samples per step (+700 % of the tuned batch)" in ib.explain(grown, 0)


@pytest.mark.parametrize(
    ("table", "row", "says"),
    [
        ({"status": ["ok"], "reasons": [0]}, 1, "row must be from 0 to 0, got 1"),
        ({"status": ["ok"], "reasons": [0]}, "1", "row must be a whole number"),
        ({"lr": [1]}, 0, "has no column 'status'"),
        ({"status": ["ok"], "reasons": ["red"]}, 0, "reasons, as a fleet's table has them"),
        ("plans.csv", 0, "table must be a table of plans"),
        ({"status": 1, "reasons": 2}, 0, "table must be a table of plans"),
    ],
)
def test_bad_rows(table, row, says):
    with pytest.raises(ib.InputError, match=says):
        ib.explain(table, row)


def test_the_command_shows_what_is_asked_for(tmp_path, capsys, ran):
    path = str(plans(tmp_path))
    capsys.readouterr()
    out = ran(["explain", path, "--job", "b", "--gpus", "64"]).out
    assert out.startswith("job b, cluster large, 64 GPUs: caution\n") and out.count("job ") == 1
    assert ran(["explain", path, "--cluster", "odd"], 1).out.count("Nearest that works") == 2
    assert "--job" in ran(["explain", path, "--job", "bb"], 2).err
    assert "--gpus" in ran(["explain", path, "--gpus", "16"], 2).err


def test_a_count_that_is_not_of_whole_nodes_is_not_offered():
    jobs = {"effective_batch": [100], "lr": [0.1]}
    for gpus, explanation in (
        (24, "a batch of 96"),
        (8, "a batch of 96"),
        (7, "5 GPUs; or"),
        (30, "25 GPUs; or"),
    ):
        assert f"Nearest that works: {explanation}" in ib.explain(ib.plan_fleet(jobs, [gpus]), 0)


BAD = {"job": ["a", "b", "c"], "effective_batch": [256, 0, 256], "lr": [0.1, 0.1, -1.0]}


def test_the_illegal_value_is_named():
    plans_made = ib.plan_fleet(BAD, [8, 4])
    assert "pass the jobs that were planned" in ib.explain(plans_made, 2)
    explanation = ib.explain(plans_made, 3, jobs=BAD)
    assert explanation.endswith(
        "Illegal: job b (row 2): effective_batch must be a whole number from 1 to 2^40, got 0"
    )
    assert ib.explain(plans_made, 5, jobs=BAD).endswith(
        "Illegal: job c (row 3): lr must be a finite number above 0, got -1.0"
    )
    several = {"effective_batch": ["0"], "lr": ["x"], "duration": ["3"], "warmup": ["5%"], "min_lr": ["-1"]}
    explanation = ib.explain(ib.plan_fleet(several, [8]), 0, jobs=several)
    assert [explanation.count(f" {name} must be") for name in several] == [1, 1, 1, 0, 1]
    german = {"effective_batch": ["1.024"], "lr": ["0,001"]}
    explanation = ib.explain(ib.plan_fleet(german, [8]), 0, jobs=german)
    assert "got the text '1.024': write 1024; lr must be" in explanation and explanation.endswith(
        "write 0.001 (decimal=',' reads decimal commas: --decimal ,)"
    )
    assert "Illegal" not in ib.explain(plans_made, 0, jobs=BAD)
    with pytest.raises(ib.InputError, match="unknown job 'c'"):
        ib.explain(plans_made, 5, jobs={**BAD, "job": ["x", "y", "z"]})
    with pytest.raises(ib.InputError, match="jobs is missing"):
        ib.explain(plans_made, 5, clusters=[8])


def test_a_cluster_may_be_what_is_illegal():
    jobs = {name: values[:1] for name, values in BAD.items()}
    clusters = {"cluster": ["x", "y"], "nodes": [1, 1], "gpus_per_node": [8, 0]}
    plans_made = ib.plan_fleet(jobs, clusters)
    assert (
        ib.explain(plans_made, 1, jobs=jobs)
        .splitlines()[-1]
        .startswith("No value of this job is illegal by itself")
    )
    explanation = ib.explain(plans_made, 1, jobs=jobs, clusters=clusters)
    assert "Illegal: job a (row 1), cluster y (row 2): gpus_per_node must be" in explanation
    own = {**BAD, "nodes": [1, 1, 1], "gpus_per_node": [8, 8, 8]}
    assert "Illegal: job b (row 2): effective_batch" in ib.explain(ib.plan_fleet(own), 1, jobs=own)


def test_a_job_that_misses_its_deadline_has_other_rows():
    profile = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=312, intra_gb_s=240)
    jobs = {
        "job": ["a", "b"],
        "effective_batch": [256, 256],
        "lr": [0.1] * 2,
        "duration": ["9000st", "99000000st"],
    }
    plans_made = ib.plan_fleet(jobs, [1, 8, 16, 7], profile=profile, deadline_hours=1.5)
    assert plans_made["status"].tolist()[:4] == ["infeasible", "caution", "caution", "infeasible"]
    explanation = ib.explain(plans_made, 0)
    assert "Nothing close" not in explanation
    assert re.search(
        r"Other rows of this job that work: 16 GPUs on cluster 2 \(.*\); 8 GPUs on cluster 1 \(", explanation
    )
    lonely = ib.explain(plans_made, 4)
    assert "Nothing close" not in lonely and "isobatch counts" in lonely


def test_illegal_values_of_one_kind_are_listed_together(tmp_path, ran):
    """Two jobs with both slips, nine more with a decimal comma, one name with a slip of the finger."""
    jobs, plans = tmp_path / "jobs.csv", tmp_path / "plans.csv"
    rows = [f"{name},256,-{at}.5,sgd" for at, name in enumerate("ab")]
    rows += [f'{name},256,"0,{at}7",sgd' for at, name in enumerate("cdefghijk")]
    rows += ["l,256,0.1,adamv", 'm,256,"1,5",sgdd']
    jobs.write_text("job,effective_batch,lr,optimizer\n" + "\n".join(rows) + "\n")
    ran(["fleet", str(jobs), "--gpus", "8,16", "-o", str(plans)])
    listed = ran(["explain", str(plans), "--jobs", str(jobs), "--illegal"], 1).out.splitlines()
    optimizers = "sgd, adam, adamw, rmsprop, lars, lamb, lion, muon or adafactor"
    assert listed[::2] == [
        "10 rows: lr must be a finite number above 0, got the text '0,07': write 0.07 (decimal=',' reads "
        "decimal commas: --decimal ,)",
        "2 rows: lr must be a finite number above 0, got the text '-0.5'",
        f"1 row: optimizer must be {optimizers}, got 'adamv': did you mean 'adam'?",
        f"1 row: optimizer must be {optimizers}, got 'sgdd': did you mean 'sgd'?",
    ]
    assert listed[1].startswith(f"  job c ({jobs}, row 3), job d (") and listed[1].endswith("and 5 more")


def test_an_illegal_value_is_listed_once_where_it_is_however_many_rows_meet_it(tmp_path, ran):
    jobs, clusters, plans = (tmp_path / name for name in ("jobs.csv", "clusters.csv", "plans.csv"))
    jobs.write_text("job,effective_batch,lr\na,256,-1\nb,256,-2\nc,256,0.1\nd,256,0.1\n")
    clusters.write_text("cluster,nodes,gpus_per_node\nx,1,8\ny,2,8\nz,0,8\n")
    ran(["fleet", str(jobs), str(clusters), "-o", str(plans)])
    listed = ran(
        ["explain", str(plans), "--jobs", str(jobs), "--clusters", str(clusters), "--illegal"], 1
    ).out.splitlines()
    assert [line.split(" must")[0] for line in listed[::2]] == ["2 rows: lr", "1 row: nodes"]
    assert listed[1::2] == [
        f"  job a ({jobs}, row 1), job b ({jobs}, row 2)",
        f"  cluster z ({clusters}, row 3)",
    ]


def test_hours_and_cost_are_those_of_the_row():
    """Each where the table has it, whatever else it has."""
    profile = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=312, intra_gb_s=240)
    job = ib.Recipe(effective_batch=256, lr=0.1, duration="9000st")
    shapes = [ib.Cluster(price_per_gpu_hour=price) for price in (2.5, None)]
    columns = ["status", "reasons", "hours", "gpu_hours", "cost"]
    table = ib.plan_fleet([job], shapes, profile=profile, columns=columns)
    time, work, cost = "38 min 42 s", "5.16 GPU-hours", "cost $12.9"
    assert f"It takes {time}, {work}, {cost}.\n" in ib.explain(table, 0)
    assert f"{time}, {work}; cost not known, as the cluster has no price_per_gpu_hour." in ib.explain(
        table, 1
    )
    for names, parts in ((["cost"], cost), (["gpu_hours"], work), (["gpu_hours", "cost"], f"{work}, {cost}")):
        part = {name: table[name] for name in ["status", "reasons", *names]}
        assert f"It takes {parts}.\n" in ib.explain(part, 0)
    whole = ib.plan_fleet([job], shapes, profile=profile)
    assert f"It takes {time}, {work}, {cost}; no range known.\n" in ib.explain(whole, 0)


def test_the_command_lists_what_is_illegal(tmp_path, capsys, ran):
    jobs, plans = tmp_path / "jobs.csv", tmp_path / "plans.csv"
    jobs.write_text("job,effective_batch,lr\na,256,0.1\nb,0,0.1\nc,256,-1\n,256,0.1\n")
    ran(["fleet", str(jobs), "--gpus", "8,16", "-o", str(plans)])
    listed = ran(["explain", str(plans), "--jobs", str(jobs), "--illegal"], 1).out.splitlines()
    assert listed == [
        "2 rows: the job has no id: each row of the jobs needs one",
        "  row 7 of the plans, row 8 of the plans",
        "1 row: effective_batch must be a whole number from 1 to 2^40, got the text '0'",
        f"  job b ({jobs}, row 2)",
        "1 row: lr must be a finite number above 0, got the text '-1'",
        f"  job c ({jobs}, row 3)",
    ]
    assert main(["explain", str(plans), "--jobs", str(jobs), "--job", "c", "--gpus", "8"]) == 1
    assert "Illegal: job c" in capsys.readouterr().out
    assert "--illegal needs --jobs FILE" in ran(["explain", str(plans), "--illegal"], 2).err


def test_plans_without_the_columns_for_illegal_values_are_refused(tmp_path, ran):
    jobs, clusters, plans = (tmp_path / name for name in ("jobs.csv", "clusters.csv", "plans.csv"))
    jobs.write_text("job,effective_batch,lr\na,256,-1\n")
    clusters.write_text("cluster,nodes,gpus_per_node\nx,1,8\n")
    words = ["explain", str(plans), "--jobs", str(jobs), "--clusters", str(clusters), "--illegal"]
    for columns, lacks in (("job,status", "cluster"), ("cluster,reasons", "job"), ("job,cluster", "reasons")):
        ran(["fleet", str(jobs), str(clusters), "--columns", columns, "-o", str(plans)])
        assert f"{plans}: --illegal needs the column {lacks}, which the plans lack" in ran(words, 2).err
    ran(["fleet", str(jobs), str(clusters), "--columns", "job,cluster,reasons", "-o", str(plans)])
    assert "lr must be" in ran(words, 1).out
