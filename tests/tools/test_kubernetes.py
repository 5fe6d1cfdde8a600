"""TrainJobs, PyTorchJobs and Kubernetes Jobs: the command in them is read as a shell script's."""

import pytest
import yaml

import isobatch as ib
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job
from tools.test_reading import written

FLAGS = ["sft.py", "--per_device_train_batch_size", "4", "--learning_rate=2e-5", "--max_steps", "1000"]
GPU = {"nvidia.com/gpu": 8}


def trainjob(**trainer):
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": spec}


def container(**more):
    return {"template": {"spec": {"containers": [{"command": ["torchrun", *FLAGS], **more}]}}}


def pytorchjob(**replicas):
    specs = {name: {"replicas": count, **container()} for name, count in replicas.items()}
    spec = {"nprocPerNode": "4", "pytorchReplicaSpecs": specs}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec}


def read(tmp_path, job):
    return read_file(written(tmp_path, "job.yaml", yaml.safe_dump(job)))


@pytest.mark.parametrize(
    ("job", "gpus"),
    [
        (trainjob(command=["torchrun", *FLAGS], numNodes=4, numProcPerNode=8), 32),
        (trainjob(command=["torchrun"], args=FLAGS, numNodes=2, resourcesPerNode={"limits": GPU}), 16),
        (trainjob(command=["torchrun", "--nnodes=3", "--nproc-per-node", "2", *FLAGS], numNodes=4,
                  numProcPerNode=8), 6),
        (trainjob(command=["bash", "-c", "python -m torch.distributed.run --nnodes $PET_NNODES "
                                         "--nproc-per-node=1 " + " ".join(FLAGS)], numNodes=5), 5),
        (pytorchjob(Master=1, Worker=3), 16),
        (pytorchjob(Master=1), 4),
        ({"apiVersion": "batch/v1", "kind": "Job", "spec": container(resources={"requests": GPU})}, 8),
    ],
)  # fmt: skip
def test_a_jobs_command_and_gpus_are_read(tmp_path, job, gpus):
    recipe = read(tmp_path, job)
    assert recipe.tool == "transformers" and recipe.faults == []
    assert (recipe.fields["gpus"], recipe.fields["batch_per_gpu"]) == (gpus, 4)
    assert (recipe.fields["lr"], recipe.fields["duration"]) == (2e-5, "1000st")


def test_a_pytorchjob_without_torchrun_has_a_rank_a_pod_of_one_gpu(tmp_path):
    job = pytorchjob(Master=1, Worker=3)
    del job["spec"]["nprocPerNode"]
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        (pod,) = replica["template"]["spec"]["containers"]
        pod |= {"command": ["python", *FLAGS], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert read(tmp_path, job).fields["gpus"] == 4
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"]["limits"] = GPU
    assert "gpus" not in read(tmp_path, job).fields


def test_a_containers_variables_stand_in_its_command(tmp_path):
    env = [{"name": "ACC", "value": "2"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "x"}}}]
    more = ["--gradient_accumulation_steps=$(ACC)", "--run_name", "$$(ACC)"]
    job = trainjob(command=["torchrun", *FLAGS, *more], numNodes=1, numProcPerNode=8, env=env)
    recipe = read(tmp_path, job)
    assert recipe.fields["accumulation"] == 2 and recipe.settings["run_name"] == "$(ACC)"


def test_settings_of_the_runtime_are_asked_for(tmp_path):
    for open_part, why in (({"numProcPerNode": 8}, "runtime's"), ({"numNodes": 2}, "nor a node's GPUs")):
        job = trainjob(command=["torchrun", *FLAGS], **open_part)
        file = written(tmp_path, "job.yaml", yaml.safe_dump(job))
        with pytest.raises(ib.InputError, match=f"is not in the file, .*{why}: give gpus a value"):
            ib.Recipe.read(file)
        assert ib.Recipe.read(file, gpus=8).effective_batch == 32
    alone = read(tmp_path, trainjob(command=["python", *FLAGS], numNodes=2, numProcPerNode=8))
    assert "gpus" not in alone.fields
    assert any("its command is not torchrun" in note for note in alone.notes)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (trainjob(numNodes=2), "job.yaml: spec.trainer.command is missing: the image's own"),
        (trainjob(command="torchrun"), "spec.trainer.command must be a list of texts"),
        (trainjob(command=[["torchrun"]]), "spec.trainer.command must be a list of texts"),
        ({**trainjob(), "spec": None}, "spec.trainer must be a table"),
        (pytorchjob(Worker="2"), "spec.pytorchReplicaSpecs.Worker.replicas must be a whole number from 0"),
        ({"apiVersion": "batch/v1", "kind": "Job", "spec": {}},
            "spec.template.spec.containers must be a list"),
        (trainjob(command=["torchrun", *FLAGS], numNodes=[1], resourcesPerNode={"limits": [1]}, env=3),
            "number of nodes must be a whole number from 1, got"),
    ],
)  # fmt: skip
def test_a_job_that_is_none_is_named(tmp_path, job, message):
    file = written(tmp_path, "job.yaml", yaml.safe_dump(job))
    with pytest.raises(ib.InputError) as error:
        ib.Recipe.read(file)
    assert message in str(error.value)


def test_a_written_trainjob_is_read_again(tmp_path):
    plan = ib.plan(ib.Recipe.from_gpus(gpus=8, batch_per_gpu=4, lr=2e-5, duration="1000st"), 16)
    text = plan.to("kubeflow", job=Job(command=tuple(FLAGS))).text
    reading = read_file(written(tmp_path, "trainjob.yaml", text))
    assert (reading.fields["gpus"], reading.fields["batch_per_gpu"]) == (16, 4)
