"""The manifest of examples/kubernetes, played: its commands in network namespaces as pods, of which one is
deleted and made anew elsewhere.
"""

import json
import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")
yaml = pytest.importorskip("yaml", reason="the manifest is YAML")

from ddp import surviving  # noqa: E402
from ddp.crews import faults, lines  # noqa: E402
from ddp.hosts import NETWORK, Hosts  # noqa: E402

STORE, PORT = 4, "29400"
OPTIONS = {"ranks": 3, "min_ranks": 1, "lease": 3.0, "timeout": 60.0, "steps": 90, "pause": 1.0}


def commands():
    """The commands of the manifest's store and ranks, by kind."""
    text = (Path(__file__).parents[3] / "examples/kubernetes/survivors.yaml").read_text()
    specs = {document["kind"]: document["spec"] for document in yaml.safe_load_all(text)}
    pods = {"Pod": specs["Pod"], "Job": specs["Job"]["template"]["spec"]}
    (port,) = specs["Service"]["ports"]
    assert str(port["port"]) == PORT
    assert specs["Job"]["completions"] == specs["Job"]["parallelism"]
    return {kind: pod["containers"][0]["command"] for kind, pod in pods.items()}


def start(hosts, host, address, command, folder):
    """Starts a pod's command on its host, where the names of pods and of the store are known."""
    (folder / f"hosts-{host}").write_text(
        f"127.0.0.1 localhost\n{address} train-{host}\n{NETWORK}.{STORE} store\n"
    )
    space = ["nice", "-n", "-15", "ip", "netns", "exec", f"{hosts.name}-h{host}"]
    space += ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
    script = 'hostname "$0"; mount --bind "$1" /etc/hosts; shift; exec "$@"'
    path = f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    environment["ISOBATCH_RUN_KEY"] = "of-the-manifest-s-secret"
    with (folder / f"pod-{host}.log").open("a") as out:
        return subprocess.Popen(
            [*space, "sh", "-c", script, f"train-{host}", str(folder / f"hosts-{host}"), *command],
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def wait_for(folder, is_there, seconds=240):
    until = time.monotonic() + seconds
    while not any(is_there(line) for line in lines(folder)):
        assert time.monotonic() < until, "what was waited for did not come"
        time.sleep(0.2)


@pytest.mark.netns
def test_a_deleted_pod_comes_again_with_another_address(tmp_path):
    alone = surviving.undisturbed(OPTIONS)
    command_of = commands()
    with Hosts(4, "1gbit", name="ibk") as hosts, ExitStack() as stack:

        def pod(host, command, address=None):
            process = start(hosts, host, address or f"{NETWORK}.{host}", command, tmp_path)
            stack.callback(process.wait)
            stack.callback(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
            return process

        def rank(host, address=None):
            name = f"train-{host}" if address is None else f"train-{host}-again"
            words = [surviving.__file__, f"store:{PORT}", str(tmp_path), name, json.dumps(OPTIONS)]
            return pod(host, [*command_of["Job"][:-1], *words], address)

        assert command_of["Job"][-1] == "train.py"
        pod(STORE, command_of["Pod"])
        pods = {host: rank(host) for host in (1, 2, 3)}
        wait_for(tmp_path, lambda line: line.get("done") == 5)
        hosts.cut(2)
        os.killpg(pods[2].pid, signal.SIGKILL)
        for change in ["flush"], ["add", f"{NETWORK}.12/24"]:
            subprocess.run(["ip", "-n", f"{hosts.name}-h2", "addr", *change, "dev", "eth0"], check=True)
        wait_for(tmp_path, lambda line: line.get("of") == 2 and "done" in line)
        hosts.cut(2, "up")
        pods[2] = rank(2, f"{NETWORK}.12")
        codes = [process.wait(180) for process in pods.values()]
    assert codes == [0, 0, 0], [(tmp_path / f"pod-{host}.log").read_text()[-800:] for host in pods]
    assert faults(tmp_path, alone)[0] == []
    crews = {line["crew"]: line["of"] for line in lines(tmp_path) if "at" in line}
    assert crews == {0: 3, 1: 2, 2: 3}
