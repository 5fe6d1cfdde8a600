"""Answers: objectives, limits, nodes, the order of changes, and rows that cannot run."""

import re

import msgspec
import numpy as np
import pytest

import isobatch as ib
from allocation.pools import profile, random_jobs
from isobatch import InputError

SPEED = profile()


def jobs(count=2, **columns):
    table = {
        "job": [chr(ord("a") + at) for at in range(count)],
        "effective_batch": [840] * count,
        "lr": [0.1] * count,
    }
    return table | {"duration": ["1000st"] * count} | columns


def gpus(answer):
    return dict(zip(answer.table["job"].tolist(), answer.table["gpus"].tolist(), strict=True))


def why(answer, job):
    return answer.table["why"][answer.table["job"].tolist().index(job)]


def test_equal_jobs_have_equal_shares():
    answer = ib.allocate(jobs(4), 16, profile=SPEED)
    assert gpus(answer) == dict.fromkeys("abcd", 4)
    assert (answer.value, answer.gap, answer.idle) == (1.0, 0.0, 0)


def test_a_weight_pulls_gpus():
    answer = ib.allocate(jobs(2, weight=[1, 9]), 16, profile=SPEED)
    assert gpus(answer)["b"] > gpus(answer)["a"] >= 1


def test_the_mean_of_exponent_1_lets_jobs_wait_and_the_harmonic_one_does_not():
    slow = {"a": profile(per_sample=0.05), "b": profile(sync_gb_s=0.05)}
    assert gpus(ib.allocate(jobs(2), 8, profile=slow, p=-1))["b"] >= 1
    means = [ib.allocate(jobs(2), 8, profile=slow, p=p).value for p in (-1, 0, 1)]
    assert means == sorted(means)


@pytest.mark.parametrize("objective", ["fair", "throughput", "finish", "cost"])
def test_a_job_that_cannot_be_on_time_counts_as_one_that_cannot_be_read(objective):
    pool = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=3.0)
    answers = [
        ib.allocate(jobs(2, **columns), pool, objective=objective, profile=SPEED)
        for columns in ({"deadline_hours": [None, 1e-9]}, {"effective_batch": [840, 0]})
    ]
    late, unread = ((answer.value, answer.bound, gpus(answer)) for answer in answers)
    assert late == unread and late[2]["b"] == 0


def test_of_jobs_that_cannot_all_run_the_shortest_finish_first():
    table = jobs(3, duration=["9000st", "100st", "5000st"], min_gpus=[2, 2, 2])
    answer = ib.allocate(table, 4, objective="finish", profile=SPEED)
    assert gpus(answer) == {"a": 0, "b": 2, "c": 2}
    assert why(answer, "a") == "other jobs gain more from the GPUs"


def test_cost_takes_the_cheapest_count_that_keeps_the_deadline():
    pool = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=3.0)
    alone = ib.allocate(jobs(1), pool, objective="cost", profile=SPEED)
    hours = alone.table["hours_left"][0]
    assert gpus(alone) == {"a": 1}
    assert alone.value == pytest.approx(3 * hours)
    assert alone.idle_why == "no job gains from them"
    table = jobs(2, deadline_hours=[hours / 2.5, hours / 1e6])
    soon = ib.allocate(table, pool, objective="cost", profile=SPEED)
    assert soon.table["hours_left"][0] <= hours / 2.5
    assert gpus(soon)["a"] > 1
    assert why(soon, "b") == "no count meets its deadline_hours"


def test_done_samples_are_no_work_left():
    half = ib.allocate(jobs(1, done_samples=[420_000]), 1, objective="finish", profile=SPEED)
    full = ib.allocate(jobs(1), 1, objective="finish", profile=SPEED)
    assert half.value == pytest.approx(full.value / 2, rel=0.01)
    assert (
        why(ib.allocate(jobs(1, done_samples=[840_000]), 1, profile=SPEED), "a")
        == "nothing of its run is left"
    )


def test_min_max_and_types():
    nodes = {"node": ["x", "y"], "gpus": [8, 8], "gpu": ["A100", "H100"]}
    fast = [profile(gpu="A100"), profile(gpu="H100", per_sample=0.0002)]
    table = jobs(3, min_gpus=[2, 1, 1], max_gpus=[4, 16, 16], gpu=["A100", "H100", None])
    answer = ib.allocate(table, nodes, profile=fast)
    assert 2 <= gpus(answer)["a"] <= 4
    assert set(answer.placement["a"]) == {"x"}
    assert set(answer.placement["b"]) == {"y"}
    assert answer.table["gpu"].tolist()[:2] == ["A100", "H100"]


def test_whole_nodes_first_then_best_fit():
    table = jobs(3, min_gpus=[8, 3, 1], max_gpus=[8, 3, 1])
    answer = ib.allocate(table, ib.Cluster(nodes=3, gpus_per_node=4), profile=SPEED)
    assert answer.placement == {"a": {"0": 4, "1": 4}, "b": {"2": 3}, "c": {"2": 1}}


def test_a_count_that_stays_keeps_its_nodes():
    table = jobs(3, max_gpus=[4, 2, 2])
    holdings = {"job": ["a", "b", "c"], "node": ["1", "0", "0"], "gpus": [4, 2, 2]}
    answer = ib.allocate(table, ib.Cluster(nodes=2, gpus_per_node=4), held=holdings, profile=SPEED)
    assert answer.table["status"].tolist() == ["stays"] * 3
    assert answer.changes == ()


def test_a_placement_is_what_the_next_division_holds():
    table, pool = jobs(3, max_gpus=[4, 2, 2]), ib.Cluster(nodes=2, gpus_per_node=4)
    first = ib.allocate(table, pool, profile=SPEED)
    rows = [(job, node, gpus) for job, nodes in first.placement.items() for node, gpus in nodes.items()]
    columns = dict(zip(("job", "node", "gpus"), map(list, zip(*rows, strict=True)), strict=True))
    for holdings in (first.placement, columns):
        again = ib.allocate(table, pool, held=holdings, profile=SPEED)
        assert again.table["status"].tolist() == ["stays"] * 3
        assert (again.placement, again.changes) == (first.placement, ())
    with pytest.raises(InputError, match="gpus must be a whole number from 1, got 0"):
        ib.allocate(table, pool, held={"a": {"0": 0}}, profile=SPEED)
    assert ib.allocate(table, pool, held={"a": {}}, profile=SPEED).placement == first.placement


def test_a_move_must_pay_for_its_restart():
    pool, holdings = ib.Cluster(gpus_per_node=8), {"job": ["a", "b"], "node": ["0", "0"], "gpus": [3, 4]}
    young = ib.allocate(jobs(2, age_seconds=[40, 40]), pool, held=holdings, profile=SPEED)
    table = jobs(2, age_seconds=[1e6, 1e6], duration=["90000st", "90000st"])
    old = ib.allocate(table, pool, held=holdings, profile=SPEED)
    ending = ib.allocate(table | {"done_samples": [840 * 89_990] * 2}, pool, held=holdings, profile=SPEED)
    for stays in (young, ending):
        assert stays.table["status"].tolist() == ["stays", "stays"]
    assert gpus(old) == {"a": 4, "b": 4}
    assert [change.action for change in old.changes] == ["grow"]


def test_pieces_are_joined_by_as_few_moves_as_can_be():
    table = jobs(4, min_gpus=[1, 1, 1, 4], max_gpus=[1, 1, 3, 4])
    holdings = {"job": ["a", "b", "c"], "node": ["0", "1", "2"], "gpus": [1, 1, 3]}
    answer = ib.allocate(table, ib.Cluster(nodes=3, gpus_per_node=4), held=holdings, profile=SPEED)
    assert gpus(answer) == {"a": 1, "b": 1, "c": 3, "d": 4}
    assert sorted(answer.table["status"].tolist()) == ["moves", "runs", "stays", "stays"]
    assert [change.action for change in answer.changes] == ["stop", "start", "start"]


def test_pinned_jobs_are_left_alone():
    holdings = {"job": ["a"], "node": ["0"], "gpus": [1]}
    answer = ib.allocate(jobs(2, pinned=[True, False], weight=[9, 1]), 8, held=holdings, profile=SPEED)
    assert gpus(answer) == {"a": 1, "b": 7}
    assert answer.table["status"].tolist() == ["stays", "runs"]


def test_changes_never_ask_a_node_for_more_than_it_has():
    draw = np.random.default_rng(3)
    table, speeds = random_jobs(draw, 30)
    pool = ib.Cluster(nodes=8, gpus_per_node=8)
    first = ib.allocate(table, pool, profile=speeds)
    holdings = [
        {"job": job, "node": n, "gpus": g} for job, nodes in first.placement.items() for n, g in nodes.items()
    ]
    table["weight"] = draw.permutation(table["weight"])
    table["restart_seconds"] = np.full(30, 0.01)
    second = ib.allocate(table, pool, held=holdings, profile=speeds)
    has = {job: dict(nodes) for job, nodes in first.placement.items()}
    assert second.changes
    for change in second.changes:
        has[change.job] = change.nodes
        for node in map(str, range(8)):
            assert sum(nodes.get(node, 0) for nodes in has.values()) <= 8
    assert {job: nodes for job, nodes in has.items() if nodes} == second.placement


def test_a_node_that_is_gone_is_said():
    holdings = {"job": ["a", "z"], "node": ["dead", "0"], "gpus": [8, 1]}
    answer = ib.allocate(jobs(1), 8, held=holdings, profile=SPEED)
    assert why(answer, "a") == "nodes that it held are not in the pool: dead"
    assert answer.notes == ("held by unknown jobs, and counted as free: z",)
    assert answer.table["status"].tolist() == ["runs"]


BAD = {
    "effective_batch": (0, "effective_batch"),
    "weight": (-1, "weight must be a number above 0, at most 1e12, got -1"),
    "min_gpus": (9, "the pool has no count"),
    "max_gpus": (10**400, "max_gpus must be a whole number from 1"),
    "gpu": ("T4", "the pool has no count"),
    "deadline_hours": (1e-9, "no count meets its deadline_hours"),
    "pinned": ("maybe", "pinned must be true or false"),
    "profile": (7, "profile must be the path of a profile, got 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_ten_thousand_hostile_rows_leave_the_good_one_its_gpus(name):
    cell, message = BAD[name]
    table = jobs(1)
    good = {key: cells * 10_001 for key, cells in table.items()} | {"job": np.arange(10_001).astype(str)}
    good[name] = [cell] * 10_000 + [None if name != "effective_batch" else 840]
    answer = ib.allocate(good, 8, profile=SPEED, max_micro_batch=64)
    assert answer.table["gpus"].tolist() == [0] * 10_000 + [8]
    assert message in answer.table["why"][0]


def test_a_job_without_a_profile_waits():
    answer = ib.allocate(jobs(2), 8, profile={"a": SPEED})
    assert gpus(answer) == {"a": 8, "b": 0}
    assert why(answer, "b") == "no profile: its speed is not known"
    assert answer.table["reasons"][1] == 0 or answer.table["micro_batch"][1] == -1


@pytest.mark.parametrize(
    ("limits", "profile", "reason"),
    [
        ({"budget": [1e-9]}, SPEED, "the run costs more than budget"),
        ({}, None, "no profile: its speed is not known"),
        (
            {"parameters": [10**9]},
            msgspec.structs.replace(SPEED, parameters=10**10),
            "the profile is of another",
        ),
    ],
)
@pytest.mark.parametrize("nodes", [1, 8])
def test_a_job_waits_for_what_stops_it_where_it_fits(limits, profile, reason, nodes):
    """Below 8 GPUs no count is a multiple of its model_parallel, which is not why it waits."""
    pool = ib.Cluster(nodes=nodes, gpus_per_node=8, price_per_gpu_hour=3.0)
    table = jobs(1, model_parallel=[8], **limits) | {"effective_batch": [64]}
    answer = ib.allocate(table, pool, profile=profile)
    assert gpus(answer) == {"a": 0} and reason in why(answer, "a")
    assert answer.idle_why == "no job can run" or "speed of 1 job on more is not known" in answer.idle_why
    reasons = ib.Reason.of(int(answer.table["reasons"][0]))
    assert ib.Reason.MODEL_PARALLEL not in reasons
    never = ib.allocate(table | {"model_parallel": [1024]}, pool, profile=SPEED)
    assert why(never, "a") == ib.Reason.MODEL_PARALLEL.text


def test_idle_gpus_whose_gain_is_not_known_are_no_loss():
    near = msgspec.structs.replace(SPEED, inter_gb_s=None, inter_latency_us=None)
    pool = {"gpus": [8, 8], "node": ["n1", "n2"]}
    table = jobs(1) | {"effective_batch": [960]}
    answer = ib.allocate(table, pool, profile=near)
    assert gpus(answer) == {"a": 8}
    assert answer.idle_why.startswith("the speed of 1 job on more is not known: the profile lacks a link")
    assert gpus(ib.allocate(table, pool | {"inter_gb_s": [50.0] * 2}, profile=near)) == {"a": 16}


def test_the_cost_of_running_jobs_has_no_penalty():
    pool = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=3.0)
    alone = ib.allocate(jobs(1), pool, objective="cost", profile=SPEED)
    both = ib.allocate(jobs(2, max_gpus=[8, 8], min_gpus=[8, 8]), pool, objective="cost", profile=SPEED)
    assert alone.of_running == alone.value
    hours = np.nansum(both.table["hours_left"])
    assert both.of_running == pytest.approx(3 * 8 * hours) and both.value > 2 * both.of_running


@pytest.mark.parametrize(("name", "field"), [("Priority", "weight"), ("Deadline (h)", "deadline_hours")])
def test_a_column_of_another_name_is_refused_unless_ours_is_there(name, field):
    with pytest.raises(InputError, match=re.escape(f"unknown column {name!r}: did you mean {field!r}?")):
        ib.allocate(jobs(1, **{name: [1]}), 8, profile=SPEED)
    assert gpus(ib.allocate(jobs(1, **{name: [1], field: [10]}), 8, profile=SPEED)) == {"a": 8}


@pytest.mark.parametrize(
    ("holdings", "message"),
    [
        ({"job": ["a"], "node": ["0"], "gpus": [9]}, "node '0' has 8 GPUs, but more are held"),
        ({"job": ["a"], "node": ["0"], "gpus": [-1]}, "gpus must be a whole number from 1, got -1"),
        ({"job": ["a"], "gpus": [1]}, "node is missing"),
    ],
)
def test_a_held_table_that_cannot_be_is_refused(holdings, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        ib.allocate(jobs(1), 8, held=holdings, profile=SPEED)


def test_two_jobs_with_one_id_and_two_nodes_with_one_name_are_refused():
    with pytest.raises(InputError, match="duplicate job id 'a'"):
        ib.allocate(jobs(2, job=["a", "a"]), 8, profile=SPEED)
    with pytest.raises(InputError, match="duplicate node id 'x'"):
        ib.allocate(jobs(1), {"node": ["x", "x"], "gpus": [8, 8]}, profile=SPEED)


def test_a_job_is_explained():
    answer = ib.allocate(jobs(2), 8, profile=SPEED)
    text = answer.explain("a")
    assert text.startswith("a has 4 on 0; 1 GPU more would add")
    assert "their holders would lose" in text
    with pytest.raises(InputError, match="unknown job 'nobody'"):
        answer.explain("nobody")


def test_waiting_and_saturated_jobs_are_explained():
    nodes = {"node": ["x"], "gpus": [8], "gpu": ["A100"]}
    answer = ib.allocate(jobs(2, gpu=["A100", "T4"]), nodes, profile=SPEED)
    assert answer.explain("a") == "a has 8 on x; it gains nothing from more of this kind"
    assert answer.explain("b") == "b waits: the pool has no count within its min_gpus, max_gpus and gpu"


def test_a_column_that_is_nearly_one_of_a_job_is_refused():
    with pytest.raises(InputError, match="unknown column 'weigth': did you mean 'weight'"):
        ib.allocate(jobs(1, weigth=[9]), 8, profile=SPEED)
    assert ib.allocate(jobs(1, team=["x"]), 8, profile=SPEED).table["team"] == ["x"]


def test_goodput_weighs_samples_by_what_they_are_worth():
    noisy = profile(noise=5000.0)
    answer = ib.allocate(jobs(2), 16, profile=noisy, policy="goodput", max_batch=4096, rule="sqrt")
    rows = answer.rows()
    assert all(row["goodput"] < row["samples_per_second"] for row in rows)
    assert rows[0]["effective_batch"] > 840


def test_the_rows_are_those_of_the_call():
    table = {name: np.array(cells) for name, cells in jobs(2, team=["x", "y"]).items()}
    answer = ib.allocate(table, 8, profile=SPEED)
    for cells in table.values():
        cells[:] = cells[::-1].copy() if cells.dtype.kind == "U" else 1
    assert answer.table["effective_batch"].tolist() == [840, 840]
    assert (answer.table["team"].tolist(), answer.table["lr"].tolist()) == (["x", "y"], [0.1, 0.1])
    assert answer.table["job"].tolist() == ["a", "b"]
    with pytest.raises(InputError, match="speedup is a column of the jobs and of the result"):
        ib.allocate(jobs(1, speedup=[1]), 8, profile=SPEED)


def test_the_rows_of_a_data_frame_are_those_of_the_call():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(jobs(2, team=[1, 2]) | {"job": [1, 2]})
    answer = ib.allocate(frame, 8, profile=SPEED)
    frame.loc[0, "job"], frame.loc[0, "team"], frame.loc[0, "lr"] = 77, 99, 5.0
    rows = answer.rows()
    assert [(row["job"], row["team"], row["lr"]) for row in rows] == [(1, 1, 0.1), (2, 2, 0.1)]


def test_the_answer_does_not_change_with_what_it_has_given():
    answer = ib.allocate(jobs(2), 8, profile=SPEED)
    for nodes in (*answer.placement.values(), *(change.nodes for change in answer.changes)):
        nodes.clear()
    assert answer.table["gpus"].tolist() == [4, 4]


def test_tables_of_arrow_give_one():
    pa = pytest.importorskip("pyarrow")
    answer = ib.allocate(pa.table(jobs(2, team=["x", "y"])), 8, profile=SPEED)
    assert answer.table["team"].to_pylist() == ["x", "y"]
    assert answer.table["gpus"].to_pylist() == [4, 4]
