"""A run under Ray Train loses a node, gets another, and equals the undisturbed run."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")
ray = pytest.importorskip("ray", reason="Ray Train comes with the extra 'ray'")
pytest.importorskip(
    "ray.train.v2.api.config", reason="this Ray has no elastic Ray Train", exc_type=ImportError
)

from allocation.pools import profile  # noqa: E402
from ddp import elastic, elastic_ray  # noqa: E402
from isobatch.integrations.elastic_ray import elastic_run, report  # noqa: E402

STEPS = 18
ROOT = Path(__file__).parents[3]
DIVIDE = ROOT / "examples" / "ray" / "divide.py"
PATHS = os.pathsep.join([str(ROOT / "tests"), str(ROOT / "python")])
"""For the workers, which import what they train."""


@pytest.fixture
def context(monkeypatch):
    """Ray Train's part of a worker: the checkpoint that was reported last, as a folder."""
    import shutil

    session = SimpleNamespace(folder=None, metrics=[], kept=None)

    def get_checkpoint():
        return None if session.folder is None else ray.train.Checkpoint.from_directory(session.folder)

    def reported(metrics, checkpoint=None):
        session.metrics.append(metrics)
        if checkpoint is not None:
            session.folder = str(shutil.copytree(checkpoint.path, session.kept / str(len(session.metrics))))

    monkeypatch.setattr(ray.train, "get_checkpoint", get_checkpoint)
    monkeypatch.setattr(ray.train, "report", reported)
    return session


def test_a_run_resumes_from_its_report(context, tmp_path):
    context.kept = tmp_path
    recipe = ib.Recipe(**elastic.RECIPE)
    run, saved = elastic_run(recipe, max_micro_batch=4)
    assert (saved, run.position.step) == ({}, 0)
    elastic.go_on(run, until=5)
    report(run, {"loss": 2.0}, {"model": {"weight": torch.ones(2)}})
    again, saved = elastic_run(recipe, max_micro_batch=6)
    assert (again.position.step, again.plan.micro_batch) == (5, 6)
    assert torch.equal(saved["model"]["weight"], torch.ones(2))
    assert context.metrics == [{"step": 5, "loss": 2.0}]


def test_another_rank_reports_without_a_checkpoint(context, rank):
    rank(1, 2)
    run, _ = elastic_run(ib.Recipe(**elastic.RECIPE))
    report(run, {"loss": 1.0}, {})
    assert (context.metrics, context.folder) == ([{"step": 0, "loss": 1.0}], None)


def test_bad_states_are_refused(context, tmp_path):
    recipe = ib.Recipe(**elastic.RECIPE)
    with pytest.raises(ib.InputError, match="state is in Ray's checkpoint"):
        elastic_run(recipe, state={})
    run, _ = elastic_run(recipe)
    with pytest.raises(ib.InputError, match="states must not have the name 'isobatch'"):
        report(run, {}, {"isobatch": {}})
    context.folder = str(tmp_path)
    with pytest.raises(ib.InputError, match=r"isobatch\.pt is missing in Ray's checkpoint"):
        elastic_run(recipe)


def rows_of(folder):
    """Returns step → (samples over all workers, learning rates, workers), each of the last start to count
    the step.
    """
    rows = {}
    logs = sorted(folder.glob("steps-*.jsonl"), key=lambda path: int(path.name.split("-")[1]))
    for start in dict.fromkeys(path.name.rsplit("-", 1)[0] for path in logs):
        steps = {}
        for path in folder.glob(f"{start}-*.jsonl"):
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                steps.setdefault(row["step"], []).append(row)
        for step, workers in steps.items():
            assert len(workers) == workers[0]["world"]
            rows[step] = (
                sorted(i for worker in workers for i in worker["ids"]),
                {worker["lr"] for worker in workers},
                workers[0]["world"],
            )
    return rows


@pytest.fixture
def good_counts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples" / "ray")
    return importlib.import_module("good_counts")


def test_only_counts_that_work_are_taken(good_counts):
    scaling = ray.train.ScalingConfig(num_workers=(2, 8), resources_per_worker={"slot": 1})
    policy = good_counts.GoodCounts(
        scaling, ib.counts(ib.Recipe(effective_batch=12, lr=0.1), range(1, 17)).working
    )
    nodes = {f"node-{number}": {"slot": slots} for number, slots in enumerate((1, 2, 2, 6))}
    workers = [policy._count_possible_workers(dict([*nodes.items()][:number])) for number in range(5)]
    assert (policy.counts, workers) == ([2, 3, 4, 6], [0, 0, 3, 4, 6])
    assert policy._get_num_workers_for_resource_request() == 6


def test_a_range_without_a_count_that_works_is_refused(good_counts):
    def train():
        raise AssertionError

    for workers, message in (
        ((5, 7), r"\[1, 2, 4, 8\] lies in num_workers=\(5, 7\)"),
        (4, "must be a range"),
    ):
        with pytest.raises(ib.InputError, match=message):
            scaling = ray.train.ScalingConfig(num_workers=workers)
            good_counts.GoodCountsTrainer(train, counts=(1, 2, 4, 8), scaling_config=scaling)


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("words", "config", "steps"),
    [
        pytest.param([], {}, STEPS, id="any-count"),
        # Three slots, one, and three again, of which Ray alone would take three for a batch of 8.
        pytest.param(["good"], elastic_ray.GOOD, 27, id="good-counts"),
    ],
)
def test_two_workers_one_and_two_again(tmp_path, words, config, steps):
    alone, out = tmp_path / "alone", tmp_path / "out"
    alone.mkdir()
    out.mkdir()
    elastic_ray.train({"folder": str(alone), "ray": False} | config)
    line = [sys.executable, elastic_ray.__file__, str(out), *words]
    process = subprocess.Popen(line, start_new_session=True)
    try:
        assert process.wait(1200) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # it then ends its cluster
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
    # Ray may end the workers before it has noted the checkpoint that they reported last.
    assert as_alone(out, alone, steps) == [2, 1, 2]


def as_alone(out, alone, steps=STEPS):
    """Asserts equal steps with the undisturbed run; returns the numbers of workers, in turn."""
    expected, rows = rows_of(alone), rows_of(out)
    assert [*sorted(rows)] == [*range(steps)]
    assert {step: row[:2] for step, row in rows.items()} == {step: row[:2] for step, row in expected.items()}
    weights, weights_alone = (torch.load(Path(folder) / "model.pt") for folder in (out, alone))
    for name in weights_alone:
        assert (
            float((weights[name] - weights_alone[name]).abs().max() / weights_alone[name].abs().max())
            <= 1e-12
        )
    return [workers for workers, _ in itertools.groupby(rows[step][2] for step in range(steps))]


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.timeout(1500)
def test_a_loop_divides_a_cluster_over_two_jobs(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", PATHS)  # of the nodes

    alone, table, log = tmp_path / "alone", tmp_path / "jobs.csv", tmp_path / "divide.txt"
    alone.mkdir()
    elastic_ray.train({"folder": str(alone), "ray": False})
    profile().save(str(tmp_path / "speed.json"))
    row = f"12,0.05,3ep,70,{tmp_path / 'speed.json'},2,0.01,ddp.elastic_ray:divided"
    columns = "job,effective_batch,lr,duration,dataset_size,profile,max_gpus,restart_seconds,train"
    table.write_text("\n".join([columns, f"a,{row}", f"b,{row}", ""]))
    cluster = Cluster(
        shutdown_at_exit=False, initialize_head=True, head_node_args={"num_cpus": 4, "resources": {"slot": 2}}
    )
    words = [sys.executable, str(DIVIDE), str(table), "--folder", str(tmp_path), "--gpu", "slot"]
    with log.open("w") as file:
        loop = subprocess.Popen(
            [*words, "--every", "1", "--max-micro-batch", "2"],
            env={**os.environ, "RAY_ADDRESS": cluster.address},
            stdout=file,
            stderr=file,
        )

    def until(name):
        while not all((tmp_path / f"out-{job}" / name).exists() for job in "ab"):
            assert loop.poll() is None, log.read_text()
            time.sleep(0.2)

    try:
        until("change")  # each has one of two
        second = cluster.add_node(num_cpus=4, resources={"slot": 2})
        until("again")  # each has a node of two
        cluster.remove_node(second)
        assert loop.wait(1200) == 0, log.read_text()
    finally:
        loop.terminate()
        loop.wait()
        cluster.shutdown()
    moved = [as_alone(tmp_path / f"out-{job}", alone)[:3] for job in "ab"]
    # A job left alone at the end has two again, at once where it comes back only then.
    assert [1, 2, 1] in moved and all(workers in ([1, 2, 1], [1, 2]) for workers in moved), log.read_text()
