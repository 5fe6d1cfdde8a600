"""Counts: groups, plans at a count, platforms' tables, and the short form for schedulers."""

import json

import msgspec
import numpy as np
import pytest
import yaml

import isobatch as ib
from isobatch.tools.platforms import write
from test_schemas import problems

NODE = ib.Cluster(gpus_per_node=8)
RECIPE = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=8, accumulation=2, lr=1e-4, duration="1000st")


@pytest.mark.parametrize("split", ["even", "ragged", "uneven"])
def test_groups_are_what_the_replicas_of_the_plan_take(split):
    answer = ib.counts(RECIPE, range(1, 129), cluster=NODE, split=split, batch_tolerance=0.02)
    for gpus, groups in zip(answer.columns["gpus"].tolist(), answer.groups, strict=True):
        plan = answer.plan_at(gpus)
        if plan.status == "infeasible":
            assert groups == () and gpus not in answer.working
            continue
        took = [int(plan.micro_batches(rank).sum()) for rank in range(gpus)]
        assert sorted(took) == sorted(size for replicas, size in groups for _ in range(replicas))
        row = np.flatnonzero(answer.columns["gpus"] == gpus)[0]
        assert sum(took) == answer.columns["effective_batch"][row] and gpus in answer.working
    assert any(len(groups) == 2 for groups in answer.groups) == (split != "even")


def test_hyperpods_rows_add_up():
    text, notes = write(ib.counts(RECIPE, range(1, 129), cluster=NODE, split="ragged"), "hyperpod")
    rows = yaml.safe_load(text)["scale_config"]
    assert rows[3]["training_config"]["training_args"] == {
        "train_batch_size": 128,
        "uneven_batch": {
            "use_uneven_batch": True,
            "num_dp_groups_with_small_batch_size": 16,
            "small_local_batch_size": 5,
            "large_local_batch_size": 6,
        },
        "learning_rate": 1e-4,
    }
    assert list(rows) == list(range(1, 17)) and rows[4]["training_config"]["training_args"][
        "micro_train_batch_size"
    ] == (4)
    assert notes == ("left out 1, 2, 3, 4, 5, 6, 7 GPUs: a part of a node of 8",)
    small = ib.Cluster(gpus_per_node=1)
    _, notes = write(ib.counts(RECIPE, [3, 4], cluster=small, split="ragged"), "hyperpod")
    assert notes == ("left out 3 GPUs: their uneven groups take 6 passes, and HyperPod's take one",)


@pytest.mark.parametrize(
    ("platform", "line"),
    [
        ("slurm", "#SBATCH --nodes=1,2,4"),
        ("torchft", "# replica groups of 8 GPUs that keep the plan: 1 2 4"),
        ("torchrun", "torchrun --nnodes 1:4 --nproc-per-node 8 (3 nodes do not divide"),
        ("kubeflow", "  name: isobatch-32"),
    ],
)
def test_platforms_get_the_counts_that_work(platform, line):
    text, _ = write(ib.counts(RECIPE, range(8, 33), cluster=NODE), platform)
    assert any(each.startswith(line) for each in text.splitlines())
    if platform == "kubeflow":
        nodes = [each["spec"]["trainer"]["numNodes"] for each in yaml.safe_load_all(text)]
        assert nodes == [1, 2, 4]


def test_no_count_for_a_platform_is_said():
    with pytest.raises(ib.InputError, match="no count of whole nodes of 8 GPUs has a plan"):
        write(ib.counts(RECIPE, [4, 24], cluster=NODE), "slurm")
    with pytest.raises(ib.InputError, match="unknown platform .mesos.: there are hyperpod"):
        write(ib.counts(RECIPE, [8]), "mesos")


def test_the_command(tmp_path, ran):
    RECIPE.save(tmp_path / "job.json")
    job = [str(tmp_path / "job.json"), "--gpus", "8,24"]
    assert "8 × 6 + 16 × 5" in ran(["counts", *job, "--split", "ragged"]).out
    shown = ran(["counts", *job])
    assert "groups" not in shown.out and "no plan on 24 GPUs" in shown.err
    assert ran(["counts", *job, "--to", "slurm"]).out == "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=8\n"


MEASURED = ib.Profile.estimate(
    parameters=10**9, flops_per_sample=6e12, gpu_tflops=989, intra_gb_s=400.0, inter_gb_s=50.0
)


def short(ran, folder, *words, code=0):
    """Runs `counts --json --short`, whose answer fits its schema."""
    RECIPE.save(folder / "job.json")
    answer = json.loads(ran(["counts", str(folder / "job.json"), *words, "--json", "--short"], code).out)
    assert problems("counts", answer) == []
    return answer


def test_schedulers_get_the_counts_that_work(tmp_path, ran):
    answer = short(ran, tmp_path, "--gpus", "1..512")
    assert answer == {
        "schema": "isobatch.counts/1",
        "gpus": [1, 2, 4, 8, 16, 32, 64, 128],
        "best": 128,
        "best_by": "most",
        "effective_batch": 128,
        "gpus_per_node": 8,
        "why": None,
    }
    assert short(ran, tmp_path, "--gpus", "16,8,8")["gpus"] == [8, 16]
    grown = short(ran, tmp_path, "--gpus", "8,16", "--policy", "grow")
    assert (grown["gpus"], grown["effective_batch"]) == ([8, 16], None)
    none = short(ran, tmp_path, "--gpus", "3,5", code=1)
    assert (none["gpus"], none["best"], none["best_by"], none["effective_batch"]) == ([], None, None, None)
    assert none["why"] == "not_divisible"


def test_counts_that_are_no_whole_nodes_are_an_answer(tmp_path, ran):
    eights = ["--gpus-per-node", "8"]
    none = short(ran, tmp_path, "--gpus", "12,20", *eights, code=1)
    assert (none["gpus"], none["best"], none["gpus_per_node"]) == ([], None, 8)
    assert none["why"] == "not_whole_nodes"
    job = str(tmp_path / "job.json")
    typed = ran(["counts", job, "--gpus", "12,16,20", *eights, "--json", "--short"])
    assert json.loads(typed.out)["gpus"] == [16]
    assert "left out 2 GPU counts not of whole nodes of 8 GPUs: 12, 20; another --gpus-per-node" in typed.err
    assert "left out 1 GPU count" in ran(["counts", job, "--gpus", "12,16", *eights, "--to", "slurm"]).err
    assert "left out" not in ran(["counts", job, "--gpus", "1..64", "--json", "--short"]).err
    assert "no count fills nodes of 8 GPUs" in ran(["counts", job, "--gpus", "12", *eights], 2).err


def test_without_nodes_or_times_any_count_is_one_node_as_isobatch_plan_has_it(tmp_path, ran):
    ib.Recipe(effective_batch=240, lr=0.1).save(tmp_path / "job.json")
    job = str(tmp_path / "job.json")
    words = ["counts", job, "--gpus", "8,12,20", "--json"]
    rows, note = ran(words)
    rows = [json.loads(line) for line in rows.splitlines()]
    assert "planned as one node each: 2 GPU counts not of whole nodes of 8 GPUs: 12, 20;" in note
    plans = [json.loads(ran(["plan", job, "--gpus", str(row["gpus"]), "--json"]).out) for row in rows]
    note = "planned as one node: 12 GPUs fill no whole nodes of 8; --gpus-per-node N makes nodes of N"
    assert note in ran(["plan", job, "--gpus", "12"]).err
    for whole in (["8"], ["12", "--gpus-per-node", "6"], ["12", "--gpus-per-node", "12"]):
        assert "planned as one node" not in ran(["plan", job, "--gpus", *whole]).err
    assert [row["gpus"] for row in rows] == [8, 12, 20]
    assert [row["micro_batch"] for row in rows] == [plan["micro_batch"] for plan in plans] == [30, 20, 12]
    assert json.loads(ran([*words, "--short"]).out)["gpus_per_node"] is None
    assert ib.counts(ib.Recipe(effective_batch=240, lr=0.1), [12]).plan_at(12).cluster.nodes == 1
    MEASURED.save(tmp_path / "speed.json")
    assert "no count fills nodes" in ran([*words[:3], "12", "--profile", str(tmp_path / "speed.json")], 2).err


def test_a_missed_deadline_is_no_plan_in_any_output(tmp_path, ran):
    MEASURED.save(tmp_path / "speed.json")
    RECIPE.save(tmp_path / "job.json")
    hours = ib.counts(RECIPE, [1, 8], profile=MEASURED, cluster=NODE).columns["hours"].tolist()
    timed = ["--profile", str(tmp_path / "speed.json"), "--deadline-hours", str(sum(hours) / 2)]
    words = ["counts", str(tmp_path / "job.json"), "--gpus", "1,8", *timed]
    rows = [json.loads(line) for line in ran([*words, "--json"]).out.splitlines()]
    assert [row["status"] == "infeasible" for row in rows] == [True, False]
    assert ["misses_deadline" in row["reasons"] for row in rows] == [True, False]
    shown = ran(words)
    assert "1 of 2 GPU counts has a plan" in shown.err and "missed" in shown.out
    missed = [*words[:3], "1", *timed]
    assert ran(["plan", *missed[1:], "--json"], 1) and ran([*missed, "--json"], 1) and ran(missed, 1)


def test_why_there_are_no_counts_tells_plans_from_refusals(tmp_path, ran):
    MEASURED.save(tmp_path / "speed.json")
    RECIPE.save(tmp_path / "job.json")
    profiled = ["--gpus", "1..128", "--profile", str(tmp_path / "speed.json"), "--deadline-hours", "1e-9"]
    assert short(ran, tmp_path, *profiled, code=1)["why"] == "misses_deadline"
    above = ["--gpus", "8,16", "--max-batch", "4"]
    assert short(ran, tmp_path, *above, code=1)["why"] == "above_max_batch"
    assert short(ran, tmp_path, "--gpus", "3,5", "--model-parallel", "4", code=1)["why"] == "model_parallel"
    listing = ib.counts(msgspec.structs.replace(RECIPE, duration=None), [8], profile=MEASURED, cluster=NODE)
    assert listing.good(1.0).why == "needs_duration"
    alone = msgspec.structs.replace(MEASURED, inter_gb_s=None)
    on_time = ib.counts(RECIPE, range(1, 65), profile=MEASURED, cluster=NODE, deadline_hours=1e3)
    assert on_time.good().best_by == "deadline" and on_time.good() == on_time.good(1e3)
    assert ib.counts(RECIPE, [16], profile=alone, cluster=NODE).good(1e9).why == "needs_profile"


def test_hours_that_are_not_known_are_named_beside_the_short_form(tmp_path, ran):
    RECIPE.save(tmp_path / "job.json")
    msgspec.structs.replace(MEASURED, inter_gb_s=None).save(tmp_path / "speed.json")
    words = [
        "counts",
        str(tmp_path / "job.json"),
        "--gpus",
        "1..64",
        "--profile",
        str(tmp_path / "speed.json"),
    ]
    shown = ran([*words, "--json", "--short"])
    assert json.loads(shown.out)["best"] <= 8
    assert "no hours at 3 GPU counts (16, 32, 64): the profile has no network between nodes" in shown.err


def test_the_best_count_is_the_knee_or_the_cheapest_within_the_deadline(tmp_path, ran):
    MEASURED.save(tmp_path / "speed.json")
    profiled = ["--gpus", "1..128", "--profile", str(tmp_path / "speed.json")]
    listing = ib.counts(RECIPE, range(1, 129), profile=MEASURED, cluster=NODE)
    answer = short(ran, tmp_path, *profiled)
    assert (answer["best"], answer["best_by"]) == (listing.knee, "knee")
    hours = dict(zip(listing.columns["gpus"].tolist(), listing.columns["hours"].tolist(), strict=True))
    limit = (hours[8] + hours[4]) / 2
    answer = short(ran, tmp_path, *profiled, "--deadline-hours", f"{limit}")
    assert answer["gpus"] == [8, 16, 32, 64, 128] and answer["best_by"] == "deadline"
    work = {gpus: gpus * hours[gpus] for gpus in answer["gpus"]}
    assert work[answer["best"]] == min(work.values())
    assert short(ran, tmp_path, *profiled, "--deadline-hours", "1e-9", code=1)["gpus"] == []


def test_with_best_batch_up_to_the_counts_are_those_of_the_best_batch(tmp_path, ran):
    answer = short(ran, tmp_path, "--gpus", "1..8", "--best-batch-up-to", "100", "--micro-batches", "4")
    assert (answer["gpus"], answer["effective_batch"], answer["best"]) == ([1, 2, 3, 4, 6, 8], 96, 8)


def test_the_schema_of_counts_refuses_others(tmp_path, ran):
    answer = short(ran, tmp_path, "--gpus", "1..8")
    assert problems("counts", {**answer, "later": 1}) == []  # a later version may add a field
    for change in ({"gpus": [0]}, {"gpus": ["8"]}, {"schema": "isobatch.counts/2"}, {"best": "8"}):
        assert problems("counts", {**answer, **change})
    assert problems("counts", {name: value for name, value in answer.items() if name != "best"})


@pytest.mark.parametrize("words", [[], ["--json", "--to", "slurm"], ["--json", "-o", "page.html"]])
def test_the_short_form_is_one_of_json(tmp_path, ran, words):
    RECIPE.save(tmp_path / "job.json")
    error = ran(["counts", str(tmp_path / "job.json"), "--short", *words], 2).err
    assert "--short goes with --json, and without --to and --output" in error
