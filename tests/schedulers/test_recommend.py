"""The recommender of examples/kubeflow: what it answers to TrainJobs, and to anything else."""

import http.client
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import isobatch as ib

SCRIPT = Path(__file__).parents[2] / "examples/kubeflow/recommend.py"
RECIPE = ib.Recipe(effective_batch=96, lr=0.1, duration="1000st")
AMD = {"resourcesPerNode": {"limits": {"cpu": 64, "amd.com/gpu": 4}}}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a recommender with the recipe `gpt`."""
    folder = tmp_path_factory.mktemp("recipes")
    RECIPE.save(folder / "gpt.toml")
    (folder / "broken.toml").write_text("= =")
    words = [sys.executable, str(SCRIPT), str(folder), "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(words, text=True, env=environment, **pipes)
    yield int(process.stdout.readline().split()[-1])
    process.terminate()
    process.wait()
    process.stdout.close()


def train_job(name="gpt", **trainer):
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "a", "annotations": {"isobatch/recipe": name}},
        "spec": {"suspend": True, "runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
    }


def post(port, body):
    """Posts a body; returns the code and the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}", data=data)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def patched(value, patch):
    """Applies a merge patch (RFC 7396), as `kubectl patch --type merge` does."""
    if not isinstance(patch, dict):
        return patch
    return {**value, **{name: patched(value.get(name, {}), part) for name, part in patch.items()}}


@pytest.mark.parametrize(
    ("trainer", "nodes", "feasible"),
    [
        ({"numNodes": 5, "numProcPerNode": 8}, 4, [1, 2, 3, 4]),
        ({"numNodes": 1, "numProcPerNode": "8"}, 1, [1]),
        ({"numNodes": 5, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "4"}}}, 4, [1, 2, 3, 4]),
        ({"numNodes": 20, "numProcPerNode": 2}, 16, [1, 2, 3, 4, 6, 8, 12, 16]),
        ({"numNodes": 9, "numProcPerNode": "auto", **AMD}, 8, [1, 2, 3, 4, 6, 8]),
        ({"numProcPerNode": 8}, 12, [1, 2, 3, 4, 6, 12]),
    ],
)
def test_the_most_nodes_that_work_are_answered_with_their_plan(port, trainer, nodes, feasible):
    code, answer = post(port, train_job(**trainer))
    assert (code, answer["numNodes"], answer["feasible"]) == (200, nodes, feasible)
    each = int(answer["env"][0]["value"]) // nodes
    plan = ib.plan(RECIPE, ib.Cluster(nodes=nodes, gpus_per_node=each)).require()
    values = {variable["name"]: variable["value"] for variable in answer["env"]}
    assert values["ISOBATCH_MICRO_BATCH"] == str(plan.micro_batch)
    assert values["ISOBATCH_ACCUMULATION"] == str(plan.accumulation)


def test_the_patch_changes_what_the_proposal_lets_a_plugin_change(port):
    job = train_job(numNodes=5, numProcPerNode=8)
    after = patched(job, post(port, job)[1]["patch"])
    assert after["spec"]["trainer"] == {"numNodes": 4, "numProcPerNode": 8}
    assert after["spec"]["suspend"] is True
    annotations = {"isobatch/recipe": "gpt", "trainer.kubeflow.org/autoconf-plugin-done": "yes"}
    assert after["metadata"] == {"name": "a", "annotations": annotations}
    models = pytest.importorskip("kubeflow_trainer_api.models")
    checked = models.TrainerV1alpha1TrainJob.from_dict(after)
    assert checked.spec.trainer.num_nodes == 4 and checked.to_dict() == after


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Content-Length must be from 1"),
        (b"{", "Expecting property name"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b"[" * 200_000, "recursion"),
        ([], "expected a TrainJob with the annotation isobatch/recipe"),
        ({"metadata": None}, "expected a TrainJob"),
        ({**train_job(), "spec": [1]}, "expected a TrainJob"),
        (train_job(resourcesPerNode=[1]), "expected a TrainJob"),
        (train_job("../gpt"), "isobatch/recipe must be a name, got '../gpt'"),
        (train_job(["gpt"]), "isobatch/recipe must be a name"),
        (train_job("gpt\n"), "isobatch/recipe must be a name"),
        (train_job("gone", numProcPerNode=8), "gone.toml: cannot be read"),
        (train_job("broken", numProcPerNode=8), "broken.toml: cannot be read"),
        (train_job(numNodes=0, numProcPerNode=8), "must be whole numbers, got 0"),
        (train_job(numNodes=True, numProcPerNode=8), "must be whole numbers, got True"),
        (train_job(numNodes=2.5, numProcPerNode=8), "must be whole numbers, got 2.5"),
        (train_job(numProcPerNode="many"), "must be whole numbers"),
        (train_job(numProcPerNode="auto"), "the GPUs of a node are not said"),
        (train_job(numNodes=2), "the GPUs of a node are not said: set resourcesPerNode.limits or"),
        (train_job(resourcesPerNode={"limits": {"habana.ai/gaudi": 8}}), "the GPUs of a node are not said"),
        (train_job(numNodes=2, numProcPerNode=5), "gpt works on no number of nodes up to 2 of 5 GPUs"),
    ],
)
def test_anything_else_is_an_error_and_the_next_request_is_answered(port, body, message):
    code, answer = post(port, body)
    assert code == 400 and message in answer["error"] and list(answer) == ["error"]
    assert post(port, train_job(numNodes=1, numProcPerNode=8))[0] == 200


def test_a_body_that_is_too_large_is_not_read(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/", b"", {"Content-Length": str((1 << 20) + 1)})
    response = connection.getresponse()
    error = "Content-Length must be from 1 to 1048576, got 1048577"
    assert (response.status, json.load(response)) == (400, {"error": error})
    connection.close()


@pytest.mark.parametrize(
    "data", [b"", b"garbage\r\n\r\n", b"Content-Length: 9\r\n\r\n{", b"Content-Length: x\r\n\r\n"]
)
def test_broken_connections_end_nothing(port, data):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"POST / HTTP/1.0\r\n" + data if b":" in data else data)
    assert post(port, train_job(numNodes=1, numProcPerNode=8))[0] == 200
