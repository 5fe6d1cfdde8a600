"""The submit plugin in a real slurmctld: who is given a plan, who is refused, what may change afterwards."""

import time

import pytest

pytestmark = pytest.mark.slow
ASKS = ("--comment", "isobatch:vision")
ON_FOUR = ("--gpus-per-node=4", "--nodes=1")


@pytest.fixture
def shown(tmp_path):
    """A job that shows its plan and its GPUs."""
    path = tmp_path / "shown.sh"
    gpus = "$((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE))"
    path.write_text(f"#!/bin/bash\nenv | grep '^ISOBATCH_[A-SU-Z]' | sort\necho on {gpus}\n")
    return path


def output(cluster, number):
    assert cluster.wait(number) == "COMPLETED", cluster.job(number)
    return cluster.output(number)


def plan_on(gpus, micro_batch):
    lines = ("ACCUMULATION=1", "LR=0.1", f"MICRO_BATCH={micro_batch}", "WARMUP_STEPS=0", f"WORLD_SIZE={gpus}")
    return "".join(f"ISOBATCH_{line}\n" for line in lines) + f"on {gpus}\n"


@pytest.mark.parametrize(
    "options",
    [
        ON_FOUR,
        ("--gres=gpu:4",),
        ("--gpus-per-node=2", "--nodes=2"),
        ("--gpus=4", "--nodes=1-2"),
        ("--gpus-per-task=1", "--ntasks=4"),
        ("--gpus-per-task=1", "--nodes=2", "--ntasks-per-node=2"),
    ],
    ids=" ".join,
)
def test_a_job_has_the_plan_for_the_gpus_that_it_is_given(cluster, shown, options):
    assert output(cluster, cluster.sbatch(shown, *ASKS, *options)) == plan_on(4, 64)


@pytest.mark.parametrize(
    "options",
    [
        ("--gpus-per-node=4", "--nodes=1-2"),
        ("--gpus-per-node=4", "--ntasks=64"),
        ("--gpus-per-node=4", "--ntasks=8", "--ntasks-per-node=4"),
        ("--gpus-per-node=4", "--nodelist=127.0.0.[2-3]"),
        ("--gpus-per-socket=1", "--sockets-per-node=1"),
    ],
    ids=" ".join,
)
def test_a_job_whose_gpus_are_open_is_refused(cluster, shown, options):
    """Each of them would run: the first four on 8 GPUs, with the plan for 4."""
    process = cluster.run("sbatch", *ASKS, *options, str(shown), check=False)
    assert process.returncode != 0
    assert "isobatch: how many GPUs vision gets is open: give --nodes N" in process.stderr
    process = cluster.run("sbatch", *ASKS, "--gpus-per-node=3", "--nodes=1", str(shown), check=False)
    assert process.returncode != 0 and "isobatch: no plan for vision on 3 GPUs" in process.stderr


@pytest.mark.parametrize(
    "change",
    [
        "TresPerNode=gres:gpu:2",
        "Gres=gpu:2",
        "TresPerTask=gres:gpu:1",
        "NumNodes=2",
        "NumTasks=64",
        "Comment=mine",
        "Comment=isobatch:other",
    ],
)
def test_a_change_of_its_size_is_refused(cluster, shown, change):
    """A job that was held, changed and released trained 512 for 256."""
    number = cluster.sbatch(shown, "--hold", *ASKS, *ON_FOUR)
    assert cluster.run("scontrol", "update", f"JobId={number}", change, check=False).returncode != 0
    log = (cluster.folder / "slurmctld.log").read_text()
    refusals = (f"job {number} has the plan of vision", "a plan is given to a job when it is submitted")
    assert any(refusal in log for refusal in refusals)
    cluster.run("scontrol", "release", number)
    assert output(cluster, number) == plan_on(4, 64)


def test_other_changes_and_other_jobs_are_free(cluster, shown):
    number = cluster.sbatch(shown, "--hold", *ASKS, *ON_FOUR)
    cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=7", "Nice=3", "JobName=longer")
    assert cluster.job(number)["TimeLimit"] == "00:07:00"
    cluster.run("scontrol", "release", number)
    assert output(cluster, number) == plan_on(4, 64)
    plain = cluster.sbatch(shown, "--hold", *ON_FOUR)
    cluster.run("scontrol", "update", f"JobId={plain}", "TresPerNode=gres:gpu:2", "Comment=mine")
    late = cluster.run("scontrol", "update", f"JobId={plain}", "Comment=isobatch:vision", check=False)
    assert late.returncode != 0
    cluster.run("scontrol", "release", plain)
    assert output(cluster, plain) == "on 2\n"


def test_the_tasks_of_an_array_and_a_job_that_is_requeued_keep_the_plan(cluster, shown):
    number = cluster.sbatch(shown, "--array=0-1", *ASKS, *ON_FOUR)
    assert [output(cluster, f"{number}_{task}") for task in (0, 1)] == [plan_on(4, 64)] * 2
    number = cluster.sbatch(shown, "--requeue", *ASKS, *ON_FOUR)
    assert output(cluster, number) == plan_on(4, 64)
    cluster.run("scontrol", "requeue", number)
    # Slurm lets two minutes pass. slurmd revokes the credentials of a job that has ended, by the second: one
    # of the same second is refused.
    time.sleep(5)
    cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    cluster.wait(number, "PENDING", "RUNNING", "COMPLETED")
    assert output(cluster, number) == plan_on(4, 64)


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_commands_without_an_environment_print_the_exports(cluster, command):
    process = cluster.run(command, *ASKS, *ON_FOUR, "true", check=False)
    assert process.returncode != 0
    words = "ISOBATCH_WORLD_SIZE=4 ISOBATCH_MICRO_BATCH=64 ISOBATCH_ACCUMULATION=1 ISOBATCH_LR=0.1"
    assert f"isobatch: only sbatch is handed a plan; without the comment: export {words}" in process.stderr
    assert cluster.run(command, *ON_FOUR, "true").returncode == 0
