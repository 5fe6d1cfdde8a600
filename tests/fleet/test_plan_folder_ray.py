"""Ray plans the same, whatever it loses on the way."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isobatch as ib
from jobs_in_files import Jobs, names_in, plans_in

ray = pytest.importorskip("ray", reason="the Ray engine comes with the extra 'ray'")

REPETITIONS = range(int(os.environ.get("ISOBATCH_REPETITIONS", "1")))
GPUS = [8, 96]
FILES = 48
"""So many that a run still goes on when it is disturbed after the first ones."""

pytestmark = [
    pytest.mark.timeout(300),
    # Ray leaves sockets and processes to its own clean-up.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Three nodes in one process tree, one core each."""
    from ray.cluster_utils import Cluster

    # Ray's usual 15 s until a lost node is missed are five here.
    soon = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 10,
    }
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": soon})
    nodes.add_node(num_cpus=1)
    nodes.add_node(num_cpus=1)
    ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def test_an_address_where_nobody_is(tmp_path, capsys, ran):
    from isobatch.cli import main

    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    (tmp_path / "clusters.csv").write_text("nodes\n1\n")
    words = [
        "fleet",
        *(f"{tmp_path}/{name}" for name in ("jobs.csv", "clusters.csv")),
        "-o",
        f"{tmp_path}/plans",
    ]
    assert main([*words, "--engine", "ray", "--address", "127.0.0.1:9"]) == 2
    assert "address: no Ray cluster at 127.0.0.1:9" in capsys.readouterr().err
    assert "--address needs --engine ray" in ran([*words, "--address", "auto"], 2).err


def data_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).glob("*.parquet")}


def test_the_same_files_to_the_byte(cluster, tmp_path):
    """The profile travels."""
    jobs = Jobs(tmp_path / "jobs", 5, 300)
    profile = ib.Profile.estimate(
        parameters=10**8, flops_per_sample=1e12, gpu_tflops=100, intra_gb_s=100, inter_gb_s=10
    )
    settings = {"policy": "grow", "max_micro_batch": 32, "profile": profile, "select": "fastest"}
    on_ray = ib.plan_files(jobs.folder, GPUS, tmp_path / "ray", engine="ray", **settings)
    local = ib.plan_files(jobs.folder, GPUS, tmp_path / "local", **settings)
    assert data_of(tmp_path / "ray") == data_of(tmp_path / "local")
    assert (on_ray.summary, on_ray.skipped) == (local.summary, 0)


def test_plans_that_cannot_be_written_stop_the_run(cluster, tmp_path):
    jobs = Jobs(tmp_path / "jobs", 2, 100)
    (tmp_path / "plans" / "00.parquet").mkdir(parents=True)
    with pytest.raises(ib.InputError, match="cannot be written: .*rerun to go on"):
        ib.plan_files(jobs.folder, GPUS, tmp_path / "plans", engine="ray")


def test_a_bad_file_is_reported_and_stops_no_other(cluster, tmp_path):
    jobs = Jobs(tmp_path / "jobs", 4, 100)
    (jobs.folder / "01.parquet").write_bytes(b"PAR1 but no more")
    pq.write_table(jobs.tables[2].drop_columns(["lr"]), jobs.folder / "02.parquet")
    plans = ib.plan_files(jobs.folder, GPUS, tmp_path / "plans", engine="ray")
    assert sorted(plans.failed) == [f"{jobs.folder}/01.parquet", f"{jobs.folder}/02.parquet"]
    assert plans.rows == 400
    assert names_in(tmp_path / "plans") == ["00.parquet", "03.parquet"]


@pytest.mark.slow  # that blocks of a table make its plans, tests/fleet/test_tabular.py shows
def test_ray_data_maps_tables(cluster, tmp_path):
    """The recipe of docs/fleet.md."""
    jobs = Jobs(tmp_path / "jobs", 3, 100)
    plans = ray.data.read_parquet(str(jobs.folder)).map_batches(
        ib.plan_table,
        batch_format="pyarrow",
        fn_kwargs={"clusters": GPUS, "policy": "grow", "max_micro_batch": 32},
    )
    rows = pa.concat_tables(ray.get(plans.to_arrow_refs()))
    number = pa.array([int(job[1:]) for job in rows["job"].to_pylist()])
    rows = (
        rows.append_column("n", number)
        .sort_by([("n", "ascending"), ("cluster", "ascending")])
        .drop_columns(["n"])
    )
    assert rows.equals(ib.plan_fleet(jobs.table, GPUS, policy="grow", max_micro_batch=32))


def workers():
    """Lists the processes of running tasks."""
    processes = []
    for process in Path("/proc").iterdir():
        try:
            if (process / "cmdline").read_bytes().startswith(b"ray::_task"):
                processes.append(int(process.name))
        except OSError:
            continue
    return processes


def while_running(jobs, folder, disturb):
    """Plans the jobs by Ray in a thread; `disturb` is called when a few files are done."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(ib.plan_files, jobs.folder, GPUS, folder, engine="ray")
        while len(list(folder.glob("*.parquet"))) < 2 and not run.done():
            time.sleep(0.002)
        assert not run.done(), "the run was over before it could be disturbed"
        disturb()
        return run.result()


def check(jobs, folder, plans):
    assert not plans.failed
    assert plans_in(folder).equals(ib.plan_fleet(jobs.table, GPUS))


@pytest.mark.race("the run may be over before it is disturbed")
@pytest.mark.parametrize("_", REPETITIONS)
def test_workers_are_killed(cluster, tmp_path, _):
    jobs = Jobs(tmp_path / "jobs", FILES, 10_000)
    killed = []

    def kill():
        for _ in range(2):
            until = time.monotonic() + 20
            while not (processes := workers()) and time.monotonic() < until:
                time.sleep(0.002)
            killed.append(random.choice(processes))
            os.kill(killed[-1], signal.SIGKILL)
            time.sleep(random.random() / 5)

    check(jobs, tmp_path / "plans", while_running(jobs, tmp_path / "plans", kill))
    assert len(killed) == 2


@pytest.mark.slow
@pytest.mark.race("the run may be over before it is disturbed")
@pytest.mark.parametrize("_", REPETITIONS)
def test_the_driver_is_killed(cluster, tmp_path, _):
    jobs = Jobs(tmp_path / "jobs", FILES, 10_000)
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpus_per_node\n0,1,8\n1,12,8\n")
    words = [sys.executable, "-m", "isobatch", "fleet", str(jobs.folder), str(tmp_path / "clusters.csv")]
    words += ["-o", str(tmp_path / "plans"), "--engine", "ray", "--address", cluster.address]
    run = subprocess.Popen(words, stderr=subprocess.PIPE)
    target = random.randrange(2, 8)
    while run.poll() is None and len(list((tmp_path / "plans").glob("*.parquet"))) < target:
        time.sleep(0.002)
    run.kill()
    assert run.wait() == -signal.SIGKILL, run.stderr.read().decode()
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    number = pa.array([int(name) for name in plans_in(tmp_path / "plans")["cluster"].to_pylist()])
    table = plans_in(tmp_path / "plans")
    table = table.set_column(table.column_names.index("cluster"), "cluster", number)
    assert table.equals(ib.plan_fleet(jobs.table, GPUS))
