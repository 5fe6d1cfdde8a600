"""Validations on simulated GPUs over the CPU (tests/fakecuda): the branches of CUDA, not its figures."""

import json
import socket
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

import fakecuda
from plan_of import loop_of


@pytest.fixture
def validate(tmp_path):
    """`validate(ranks, "--option", …, gpus=2, **recipe)` returns the proofs by name and the report."""

    def run(ranks, *options, gpus=2, mib=1000, nodes=1, **recipe):
        loop_of(ranks * nodes, effective_batch=16 * ranks, **recipe).save(tmp_path / "plan.json")
        command = [sys.executable, "-m", "isobatch", "validate", "plan.json", "--device", "cuda", "--quick"]
        # Not over a limit because this machine is busy.
        command += ["--phase-seconds", "240", "--nproc-per-node", str(ranks), "-o", "report.json", *options]
        if nodes > 1:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            command += ["--nnodes", str(nodes), "--rendezvous", f"127.0.0.1:{port}", "--node-rank"]
        hosts = [
            subprocess.Popen(
                [*command, str(node)] if nodes > 1 else command,
                cwd=tmp_path,
                env=fakecuda.environment(tmp_path, gpus, mib, f"host{node}"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in range(nodes)
        ]
        outputs = [host.communicate(timeout=400)[0] for host in hosts]
        assert (tmp_path / "report.json").exists(), outputs
        report = json.loads((tmp_path / "report.json").read_text())
        return {proof["name"]: proof for proof in report["proofs"]}, report

    return run


def failed(proofs):
    """Returns the failed proofs, but for the speed of ranks: this machine's."""
    failures = [proof for proof in proofs.values() if proof["verdict"] == "fail"]
    return [proof for proof in failures if proof["name"] not in ("ranks", "rank_steps")]


ALONE = """
import isobatch as ib, torch
from cuda_on_cpu import GPU
from isobatch.training.lr import PlanLR

weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1, device="cuda"))
recipe = ib.Recipe(effective_batch=8, lr=0.5, optimizer="sgd", duration="9st", warmup="2st")
scheduler = PlanLR(optimizer, ib.plan(recipe, 1))
(count,) = optimizer._optimizer_step_post_hooks.values()  # the step itself may read its learning rate
before = GPU.syncs
for _ in range(3):
    count(optimizer, (), {})
    scheduler.step()
lr = torch.tensor(scheduler.get_last_lr()[0]).item()
print(GPU.syncs - before, optimizer.param_groups[0]["lr"].item() == lr, flush=True)
"""


def test_a_learning_rate_on_a_gpu_is_not_waited_for(tmp_path):
    env = fakecuda.environment(tmp_path, gpus=1)
    ran = subprocess.run([sys.executable, "-c", ALONE], env=env, capture_output=True, text=True, timeout=200)
    assert ran.stdout == "0 True\n", ran.stderr


def test_two_gpus_over_nccl(validate):
    proofs, report = validate(2, precision="bf16")
    assert failed(proofs) == []
    assert report["machine"]["backend"] == "nccl" and not report["machine"]["emulated"]
    for name in "gpu", "gradient", "gradient_bfloat16", "equal_weights", "all_reduce", "memory":
        assert proofs[name]["verdict"] == "pass", proofs[name]
    assert proofs["gpu"]["text"] == "NVIDIA H100 80GB HBM3, alone"
    assert report["step"]["micro_batches"][0]["peak_memory_kind"] == "cuda_allocated"


@pytest.mark.slow
def test_two_nodes_of_two_gpus(validate):
    proofs, report = validate(2, "--noise-steps", "0", nodes=2)
    assert failed(proofs) == []
    assert (report["machine"]["nodes"], len(report["machine"]["ranks"])) == (2, 4)


@pytest.mark.slow
def test_a_gpu_that_has_too_little_memory(validate):
    words = ("--noise-steps", "0", "--workload", "ddp.workloads:quarter_of_the_gpu_a_sample")
    proof = validate(1, *words, gpus=1, mib=4000)[0]["memory"]
    assert proof["diagnosis"]["causes"] == ["out_of_memory"]
    assert proof["values"]["largest_micro_batch"] == 3 and "rank 0" in proof["text"]


@pytest.mark.slow
def test_a_probe_on_a_gpu(tmp_path):
    loop_of(effective_batch=32, duration="8st").save(tmp_path / "plan.json")
    words = [sys.executable, "-m", "isobatch", "probe", "plan.json", "--workload", "probing.tiny:regression"]
    words += ["--device", "cuda", "--budget", "60s", "--samples", "256", "--seeds", "1"]
    env = fakecuda.environment(tmp_path, 1)
    ran = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    assert "on cuda" in ran.stdout and "Learning rate to take at batch 32" in ran.stdout
