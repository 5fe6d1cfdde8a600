"""Scripts for Slurm, submitted to a real one: two on a node, arrays, other sizes, and a table's folder."""

from pathlib import Path

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.tools.sheet import Job
from slurm.cluster import NODES

pytestmark = pytest.mark.slow
TRAIN = str(Path(__file__).parent / "counted.py")
RECIPE = ib.Recipe(effective_batch=256, lr=0.1, duration="1000st")


@pytest.fixture(autouse=True)
def torch_is_there():
    pytest.importorskip("torch", reason="the jobs train with it")


def script(folder, *, nodes=1, gpus=2, seconds=0):
    """The plan for some GPUs as a file for sbatch."""
    plan = ib.plan(RECIPE, ib.Cluster(nodes=nodes, gpus_per_node=gpus))
    path = folder / "job.sbatch"
    plan.to("slurm", job=Job(command=(TRAIN, str(seconds)), again="isobatch plan job.toml")).save(path)
    return path


def ended(cluster, number):
    return cluster.wait(number), cluster.output(number)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (2, 1)])
def test_a_job_trains_the_plans_batch_with_cpus_for_its_loaders(cluster, tmp_path, nodes, gpus):
    state, output = ended(cluster, cluster.sbatch(script(tmp_path, nodes=nodes, gpus=gpus)))
    assert state == "COMPLETED" and f"256 samples a step on 2 ranks, {4 * gpus} CPUs a node" in output, output


def test_two_jobs_on_a_node_have_each_a_rendezvous_of_their_own(cluster, tmp_path):
    """The second went on in the first one's store, and ended with it."""
    on_one = ("--nodelist", NODES[0])
    first = cluster.sbatch(script(tmp_path, seconds=5), *on_one)
    second = cluster.sbatch(script(tmp_path, seconds=20), *on_one)
    cluster.wait(second, "RUNNING")
    assert cluster.job(first)["JobState"] == "RUNNING"
    assert ended(cluster, first)[0] == "COMPLETED"
    state, output = ended(cluster, second)
    assert state == "COMPLETED" and "256 samples" in output, output


def test_the_tasks_of_an_array_are_jobs_of_their_own(cluster, tmp_path):
    number = cluster.sbatch(script(tmp_path, seconds=5), "--array=0-1", "--nodelist", NODES[0])
    for task in (f"{number}_0", f"{number}_1"):
        state, output = ended(cluster, task)
        assert state == "COMPLETED" and "256 samples" in output, output


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        (("-N", "2"), 4),
        (("-N", "1-2", "-n", "2"), 4),
        (("--gpus-per-node=1",), 1),
        (("--gpus-per-node=4",), 4),
    ],
)
def test_a_job_of_another_size_ends_before_it_trains(cluster, tmp_path, options, gpus):
    state, output = ended(cluster, cluster.sbatch(script(tmp_path), *options))
    assert state == "FAILED" and "samples a step" not in output
    todo = f"plan anew: isobatch plan job.toml --gpus {gpus} --to slurm"
    assert output == f"isobatch: planned for 2 GPUs, started on {gpus}; {todo}\n"


def test_an_allocation_of_another_size_ends_before_it_trains(cluster, tmp_path):
    process = cluster.run("salloc", "-N2", "--gpus-per-node=2", "bash", str(script(tmp_path)), check=False)
    assert process.returncode == 1
    assert "isobatch: planned for 2 GPUs, started on 4; plan anew" in process.stderr


def test_as_many_gpus_on_other_nodes_are_the_plans(cluster, tmp_path):
    state, output = ended(cluster, cluster.sbatch(script(tmp_path), "-N", "2", "--gpus-per-node=1"))
    assert state == "COMPLETED" and "256 samples a step on 2 ranks" in output, output


def test_a_held_job_that_is_given_other_gpus_ends_before_it_trains(cluster, tmp_path):
    number = cluster.sbatch(script(tmp_path), "--hold")
    cluster.run("scontrol", "update", f"JobId={number}", "TresPerNode=gres:gpu:4")
    cluster.run("scontrol", "release", number)
    state, output = ended(cluster, number)
    assert state == "FAILED" and output.startswith("isobatch: planned for 2 GPUs, started on 4;")


def test_a_job_without_the_submitters_environment_still_has_the_plan(cluster, tmp_path):
    """Of --export=NONE srun would make nothing of what the script exports."""
    path = script(tmp_path)
    text = path.read_text()
    path.write_text(text.replace("set -euo", f"export PATH={cluster.environment['PATH']}\nset -euo", 1))
    state, output = ended(cluster, cluster.sbatch(path, "--export=NONE"))
    assert state == "COMPLETED" and "256 samples a step on 2 ranks" in output, output


def test_the_jobs_of_a_table_train_beside_each_other(cluster, tmp_path):
    jobs = "job,effective_batch,lr,duration\na,16,0.1,9st\nb,32,0.1,9st\nc d,64,0.1,9st\n"
    (tmp_path / "jobs.csv").write_text(jobs)
    plans, folder = str(tmp_path / "plans.csv"), tmp_path / "jobs"
    assert main(["fleet", str(tmp_path / "jobs.csv"), "--gpus", "1", "-o", plans]) == 0
    words = ["report", plans, "--to", "slurm", "-o", str(folder), "--script", f"{TRAIN} 5"]
    assert main(words) == 0
    files = sorted(folder.rglob("job.sbatch"))
    jobs = [cluster.sbatch(file, "--nodelist", NODES[1]) for file in files]
    assert [cluster.job(number)["JobName"] for number in jobs] == ["a", "b", "c-d"]
    for number, batch in zip(jobs, (16, 32, 64), strict=True):
        state, output = ended(cluster, number)
        assert state == "COMPLETED" and f"{batch} samples a step on 1 ranks" in output, output
