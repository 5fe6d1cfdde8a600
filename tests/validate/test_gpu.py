"""Tests on a real GPU: `pytest -m gpu`. Without one they are skipped, each with its reason."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from plan_of import loop_of

torch = pytest.importorskip("torch", reason="the validator needs torch")

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="torch finds no CUDA device")]
TESTS = Path(__file__).parent.parent


def nccl():
    return torch.cuda.nccl.version() if GPUS and torch.distributed.is_nccl_available() else (0,)


@pytest.fixture
def validate(tmp_path):
    """`validate(ranks, "--option", …, env={…}, **recipe)` gives (exit code, report)."""

    def run(ranks, *options, env=None, visible="0", **fields):
        loop_of(ranks, **{"effective_batch": 16 * ranks, **fields}).save(tmp_path / "plan.json")
        command = [sys.executable, "-m", "isobatch", "validate", "plan.json", "--device", "cuda", "--quick"]
        command += ["--nproc-per-node", str(ranks), "-o", "report.json", *options]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])),
            "CUDA_VISIBLE_DEVICES": visible,
            **(env or {}),
        }
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
        )
        file = tmp_path / "report.json"
        assert file.exists(), ran.stdout + ran.stderr
        return ran.returncode, json.loads(file.read_text())

    return run


def verdicts(report):
    return {proof["name"]: proof["verdict"] for proof in report["proofs"]}


def failed(report):
    return {proof["name"]: proof for proof in report["proofs"] if proof["verdict"] == "fail"}


def test_one_rank_has_no_wire(validate):
    code, report = validate(1)
    assert (code, failed(report), report["machine"]["backend"]) == (0, {}, "nccl")
    assert verdicts(report)["all_reduce"] == verdicts(report)["bandwidth"] == "unchecked"
    assert report["allreduce"]["table"] == []
    assert "one rank" in next(p for p in report["proofs"] if p["name"] == "bandwidth")["text"]
    assert report["machine"]["ranks"][0]["device_memory_bytes"] > 1 << 30


def test_several_ranks_on_one_gpu_prove_function_over_gloo(validate):
    code, report = validate(2)
    assert (code, failed(report), report["machine"]["backend"]) == (0, {}, "gloo")
    assert report["machine"]["emulated"]
    outcome = verdicts(report)
    assert outcome["gradient"] == outcome["equal_weights"] == outcome["all_reduce"] == "pass"
    assert outcome["bandwidth"] == outcome["step_time"] == outcome["ranks"] == "unchecked"
    assert report["measurements"] is None


@pytest.mark.skipif(nccl() < (2, 30), reason="this NCCL has one rank on a GPU at most: it is older than 2.30")
def test_several_ranks_on_one_gpu_over_nccl(validate):
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    _, report = validate(2, "--phase-seconds", "40", env=env)
    assert (failed(report), report["machine"]["backend"]) == ({}, "nccl")
    assert report["machine"]["emulated"]
    assert verdicts(report)["bandwidth"] == "unchecked"


@pytest.mark.skipif(GPUS < 2, reason="there are not two GPUs")
def test_two_gpus_over_nccl(validate):
    _, report = validate(2, visible="0,1")
    assert (failed(report), report["machine"]["backend"]) == ({}, "nccl")
    assert not report["machine"]["emulated"]
    assert all(row["wrong_elements"] in (0, None) for row in report["allreduce"]["table"])
    assert report["measurements"]["all_reduce"]


@pytest.mark.parametrize(("precision", "name"), [("bf16", "bfloat16"), ("fp16", "float16")])
@pytest.mark.parametrize("workload", ["mlp", "ddp.workloads:images"])
def test_mixed_precision(validate, workload, precision, name):
    _, report = validate(2, "--workload", workload, precision=precision)
    assert failed(report) == {}
    proof = next(p for p in report["proofs"] if p["name"] == f"gradient_{name}")
    assert proof["verdict"] == "pass"
    assert 0 < proof["values"]["relative_l2"] < proof["gate"]


@pytest.mark.parametrize("options", [["--compile"], ["--channels-last"], ["--compile", "--channels-last"]])
def test_options_of_the_model(validate, options):
    _, report = validate(2, "--workload", "ddp.workloads:images", "--phase-seconds", "120", *options)
    assert failed(report) == {}


def test_peak_memory_is_the_allocators(validate):
    _, report = validate(
        1, "--workload", "ddp.workloads:images", effective_batch=512, micro_batch=256, dataset_size=2048
    )
    rows = report["step"]["micro_batches"]
    assert [row["micro_batch"] for row in rows] == [128, 256]
    assert all(row["peak_memory_kind"] == "cuda_allocated" for row in rows)
    assert all(row["peak_memory_reserved_bytes"] >= row["peak_memory_bytes"] for row in rows)
    assert rows[0]["peak_memory_bytes"] < rows[1]["peak_memory_bytes"]


def test_out_of_memory_at_the_planned_micro_batch(validate):
    code, report = validate(1, "--workload", "ddp.workloads:quarter_of_the_gpu_a_sample")
    assert code == 1
    assert failed(report)["memory"]["diagnosis"]["causes"] == ["out_of_memory"]
    assert failed(report)["memory"]["values"]["largest_micro_batch"] == 3


def test_the_largest_micro_batch_that_fits_the_gpu(validate):
    options = ["--workload", "ddp.workloads:quarter_of_the_gpu_a_sample", "--find-micro-batch"]
    _, report = validate(1, *options, effective_batch=2, micro_batch=1)
    search = report["micro_batch_search"]
    assert (search["largest_micro_batch"], search["complete"]) == (3, True)
    assert all(size["fragmentation_bytes"] >= 0 for size in search["tries"])


@pytest.mark.parametrize(
    ("workload", "cause"),
    [
        ("no_gpu_has_the_memory", "out_of_memory"),
        ("dies_on_rank_1", "dead_rank"),
        ("hangs_in_a_kernel", "rank_failed"),
        ("asserts_on_the_gpu", "rank_failed"),
    ],
)
def test_a_fault_of_one_rank_is_named_with_its_host(validate, workload, cause):
    options = ["--noise-steps", "0", "--phase-seconds", "20", "--workload", f"ddp.workloads:{workload}"]
    _, report = validate(2, *options)
    proof = failed(report)["ranks_alive"]
    assert cause in proof["diagnosis"]["causes"]
    assert "rank 1" in proof["text"] and "host " in proof["text"]


def test_a_survivor_on_a_shared_gpu_ends_the_undisturbed_run(tmp_path):
    from ddp import surviving
    from ddp.crews import Ranks, faults

    options = {"ranks": 2, "min_ranks": 1, "steps": 40, "inside": True, "timeout": 30.0}
    options |= {"gpus": 1, "gloo": True}
    with Ranks(tmp_path, options) as ranks:
        ranks.start("0")
        ranks.start("1", kills=[[12, "between"]])
        codes = ranks.wait(70)
        wrong, _ = faults(tmp_path, surviving.undisturbed(options))
        assert (codes["0"], wrong) == (0, []), ranks.said("0")


STARTS = {
    "torchrun": [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
        *("-m", "isobatch.validate", "plan.json", "--quick", "-o", "report.json"),
    ],
    "notebook": [
        "-c",
        "import isobatch as ib\nfrom ddp.workloads import good\ndef own():\n    return good()\n"
        "options = ib.validate.Options(extent='quick')\n"
        "ib.validate.launch('plan.json', 1, workload=own, options=options).save('report.json')",
    ],
}
"""Ways to start a validation besides `isobatch validate`; no module has the notebook's factory."""


def start(way, folder):
    loop_of(1, effective_batch=16).save(folder / "plan.json")
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    ran = subprocess.run(
        [sys.executable, *STARTS[way]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (folder / "report.json").exists(), ran.stdout + ran.stderr
    report = json.loads((folder / "report.json").read_text())
    assert (failed(report), report["machine"]["backend"]) == ({}, "nccl")


def test_started_by_torchrun(tmp_path):
    start("torchrun", tmp_path)


def test_started_in_a_notebook(tmp_path):
    start("notebook", tmp_path)


def test_a_notebook_that_has_used_cuda_is_told(tmp_path):
    loop_of(1, effective_batch=16).save(tmp_path / "plan.json")
    code = (
        "import torch; torch.zeros(1, device='cuda')\n"
        "from isobatch.validate import launch\n"
        "launch('plan.json', 1, workload=lambda: None)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert "CUDA was used in this process" in ran.stderr
