"""Validations on GPUs that are made up over the CPU (tests/fakecuda): what only runs on CUDA, for real but for its figures."""

import json
import subprocess
import sys

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

import fakecuda


@pytest.fixture
def validate(tmp_path):
    """`validate(ranks, "--option", …, gpus=2, VARIABLE=…, **recipe)` returns the proofs by name and the report."""

    def run(ranks, *options, gpus=2, mib=1000, env=None, recipe=None):
        settings = {"effective_batch": 16 * ranks, "lr": 0.1, "optimizer": "sgd", "micro_batch": 8}
        made = ib.Recipe(**{**settings, "dataset_size": 200, "duration": "40st", **(recipe or {})})
        ib.plan(made, ranks).save(tmp_path / "plan.json")
        command = [sys.executable, "-m", "isobatch", "validate", "plan.json", "--device", "cuda", "--quick"]
        command += ["--nproc-per-node", str(ranks), "-o", "report.json", *options]
        environment = fakecuda.environment(tmp_path, gpus, mib, **(env or {}))
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )
        assert (tmp_path / "report.json").exists(), done.stdout + done.stderr
        report = json.loads((tmp_path / "report.json").read_text())
        return {proof["name"]: proof for proof in report["proofs"]}, report

    return run


def failed(found):
    """The proofs that failed, but for those of speed, which is this machine's."""
    speed = "ranks", "local_step"
    return {
        name: one["text"] for name, one in found.items() if one["verdict"] == "fail" and name not in speed
    }


RATES = """
import isobatch as ib, torch
from cuda_on_cpu import GPU
from isobatch.integrations.torch.lr import PlanLR

weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1, device="cuda"))
scheduler = PlanLR(optimizer, ib.plan(ib.Recipe(effective_batch=8, lr=0.5, optimizer="sgd", duration="9st", warmup="2st"), 1))
(count,) = optimizer._optimizer_step_post_hooks.values()  # the step itself may read its learning rate
before = GPU.syncs
for _ in range(3):
    count(optimizer, (), {})
    scheduler.step()
print(GPU.syncs - before, optimizer.param_groups[0]["lr"].item() == torch.tensor(scheduler.get_last_lr()[0]).item())
"""


def test_a_learning_rate_on_a_gpu_is_not_waited_for(tmp_path):
    words = [sys.executable, "-c", RATES]
    done = subprocess.run(
        words, env=fakecuda.environment(tmp_path), capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "0 True\n", done.stdout + done.stderr


@pytest.mark.slow
def test_two_gpus_over_nccl(validate):
    found, report = validate(2, recipe={"precision": "bf16"})
    assert failed(found) == {}
    assert report["machine"]["backend"] == "nccl" and not report["machine"]["emulated"]
    for name in "gpu", "gradient", "gradient_bfloat16", "equal_weights", "all_reduce", "memory":
        assert found[name]["verdict"] == "pass", found[name]
    assert "18 of 18 NVLinks up" in found["gpu"]["text"]
    assert report["step"]["micro_batches"][0]["peak_memory_kind"] == "cuda_allocated"
