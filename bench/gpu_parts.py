"""The parts of a day with one GPU.

Each is a function of its name, which `bench/gpu.py` calls with a row, in a process of its own. What it
lists under "wrong" is not as it should be."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from gpu_tools import BENCH, MICRO, SMALL, bad, command, machine, plan, validate

import isobatch as ib
from isobatch.forecast.measurements import Measurements

Figures = dict[str, Any]
TESTS = BENCH.parent / "tests"


def facts(_: str) -> Figures:
    """The machine in its own words: the driver's tables, torch's build, NCCL, processors and memory."""
    import torch

    from isobatch.validate.ranks.network import nccl_version

    asked = ("nvidia-smi -q", "nvidia-smi topo -m", "lscpu", "free -g")
    return {
        **{words: command(["bash", "-c", words], 20, BENCH)[1] for words in asked},
        "gpus": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "nccl": nccl_version(),
        "build": torch.__config__.show(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NCCL_"))},
    }


NOTEBOOK = """
import isobatch as ib
from gpu_models import gpt2
def own():  # no module has it
    return gpt2()
report = ib.validate.launch("plan.json", 1, workload=own, options=ib.validate.Options(extent="quick"))
report.save("report.json")
"""


def starts(way: str) -> Figures:
    """A way to start a validation: by command, by torchrun, from Python with a factory of its own.

    None may fail.
    """
    options = ["--quick", "--workload", "gpu_models:gpt2"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    start = {
        "command": None,
        "torchrun": [*torchrun, "-m", "isobatch.validate", "plan.json", "-o", "report.json"],
        "python": ["-c", NOTEBOOK],
    }[way]
    one = validate(plan(1, 16), *([] if way == "python" else options), seconds=80, start=start)
    return {"exit_code": one["exit_code"], "wrong": bad(one)}


def tests(name: str) -> Figures:
    """One test of `pytest -m gpu`.

    How many of its cases passed, failed and were skipped, each with its reason.
    """
    words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "-rfEs"]
    code, output = command([*words, f"tests/validate/test_gpu.py::{name}"], 230, BENCH.parent)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", output)}
    lines = re.findall(r"^(?:SKIPPED|FAILED|ERROR).*", output, re.MULTILINE)
    blind = machine()["device"] != "cpu" and "no CUDA device" in output
    wrong = [f"exit code {code}: {output[-800:]}"] if code or not counts or blind else []
    return {"exit_code": code, "counts": counts, "lines": lines, "wrong": wrong}


def guards(way: str) -> Figures:
    """The guard in a loop as it is written for GPUs: a good one must pass, the wrong one must not."""
    from gpu_loops import CUDA, WAYS, alone, guarded

    from isobatch.guard import GuardError

    if way == "capturable" and not CUDA:
        return {"says": "not asked: capturable optimizers need CUDA"}
    says = "no complaint"
    with alone():
        try:
            guarded(8 if SMALL else 40, **WAYS[way])
        except GuardError as error:
            says = str(error)[:500]
    return {"says": says, "wrong": [says] if (says == "no complaint") == (way == "wrong loss") else []}


def prediction(row: str) -> Figures:
    """The validator's step against one that runs freely afterwards.

    Seconds, their ratio, peak memory, the gradient's error.
    """
    name, kind = row.split()
    precision = None if kind == "fp32" else kind
    words = ["--quick", "--workload", f"gpu_models:{name}"]
    one = validate(plan(1, MICRO[name], precision=precision), *words, seconds=80)
    report = one.get("report", {})
    if report.get("step") is None:
        return {"wrong": bad(one) or ["no step was timed"]}
    import gpu_models
    from gpu_loops import alone, free_running

    with alone():
        bare = free_running(getattr(gpu_models, name)(), MICRO[name], precision, 10 if SMALL else 200)
    predicted = report["step"]["planned_step_seconds"]
    return {
        "predicted_step_seconds": predicted,
        "measured_step_seconds": bare["step_seconds"],
        "ratio": predicted / bare["step_seconds"],
        "predicted_peak_bytes": max(r["peak_memory_bytes"] for r in report["step"]["micro_batches"]),
        "measured_peak_bytes": bare["peak_memory_bytes"],
        "gradients": {
            proof["name"]: (proof["values"].get("relative_l2"), proof["gate"])
            for proof in report["proofs"]
            if proof["name"].startswith("gradient")
        },
        "wrong": bad(one),
    }


def survive(_: str) -> Figures:
    """Two ranks, one of which is killed in the middle of a step.

    The other goes on, and the run is the undisturbed one.
    """
    import torch

    sys.path.insert(0, str(TESTS))
    from ddp import surviving
    from ddp.crews import Ranks, faults, gaps

    gpus = torch.cuda.device_count()
    if gpus == 1 and torch.cuda.nccl.version() < (2, 30):
        return {"says": "not asked: this NCCL has one rank on a GPU at most, from 2.30 on it can have more"}
    os.environ |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"} if gpus == 1 else {}
    options = {"ranks": 2, "min_ranks": 1, "steps": 40, "gpus": gpus, "inside": True, "timeout": 30.0}
    with tempfile.TemporaryDirectory() as at, Ranks(Path(at), options) as ranks:
        ranks.start("0")
        ranks.start("1", kills=[[12, "between"]])
        codes = ranks.wait(70)
        wrong, apart = faults(Path(at), surviving.undisturbed(options))
        wrong += [f"exit codes {codes}: {ranks.said('0')[-500:]}"] if codes["0"] else []
        return {
            "exit_codes": codes,
            "seconds_to_next_step": gaps(Path(at)),
            "weights_apart": apart,
            "wrong": wrong,
        }


def calibration(name: str) -> Figures:
    """The error of a calibration in time and memory.

    Fitted to small micro-batches and asked about the largest.
    """
    precision = "bf16" if machine()["device"] != "cpu" else None
    one = validate(plan(1, MICRO[name], precision=precision), "--workload", f"gpu_models:{name}", seconds=140)
    measured = one.get("report", {}).get("measurements")
    if measured is None:
        return {"wrong": [f"no measurements: {bad(one)}"]}
    whole = msgspec.convert(measured, Measurements)
    *fitted, asked = sorted(whole.steps, key=lambda row: row.micro_batch)
    if len(fitted) < 2:  # nothing is left out then
        fitted, asked = [*fitted, asked], fitted[0]
    try:
        profile = ib.calibrate(msgspec.structs.replace(whole, steps=tuple(fitted)))
    except ib.InputError as error:  # times among noise: where it is only rehearsed, that is no fault
        return {"refused": str(error), "wrong": [] if SMALL else [str(error)]}
    update = 0.0 if profile.update is None else profile.update.value
    seconds = profile.compute_constant.value + profile.compute_per_sample.value * asked.micro_batch + update
    real = sorted(asked.step_seconds)[len(asked.step_seconds) // 2]
    found: Figures = {
        "asked_micro_batch": asked.micro_batch,
        "left_out": asked not in fitted,
        "predicted_seconds": seconds,
        "measured_seconds": real,
        "time_error": seconds / real - 1,
    }
    fixed, per = profile.memory_fixed_gib, profile.memory_per_sample_gib
    if fixed is not None and per is not None and asked.memory_gib:
        found["memory_error"] = (fixed.value + per.value * asked.micro_batch) / asked.memory_gib - 1
    return found


def search(name: str) -> Figures:
    """The largest micro-batch that the search recommends, and 60 real steps at it: does it hold?"""
    cpu = machine()["device"] == "cpu"
    precision, limit = None if cpu else "bf16", ["--memory-limit", "0.7"] if SMALL else []
    words = ["--quick", "--find-micro-batch", *limit, "--workload", f"gpu_models:{name}"]
    one = validate(plan(1, MICRO[name], precision=precision), *words, seconds=180)
    found = one.get("report", {}).get("micro_batch_search")
    if found is None or not found["largest_micro_batch"]:
        return {"wrong": [f"no search: {bad(one)}"]}
    size = found["recommended_micro_batch"] or found["largest_micro_batch"]
    figures: Figures = {"search": found, "micro_batch": size, "wrong": []}
    import gpu_models
    from gpu_loops import alone, free_running

    with alone():
        try:
            tried = min(size, 64) if SMALL else size
            workload = getattr(gpu_models, name)()
            figures["real"] = free_running(workload, tried, precision, 6 if SMALL else 60)
        except RuntimeError as error:
            figures["wrong"].append(f"micro-batch {size} did not hold: {error}"[:400])
    return figures


FAULTS = {
    "killed": ("ranks_alive", "dead_rank"),
    "out_of_memory": ("ranks_alive", "out_of_memory"),
    "hangs": ("ranks_alive", "rank_failed"),
    "asserts": ("ranks_alive", "rank_failed"),
}


def faults(name: str) -> Figures:
    """A fault on one of two ranks: the proof that failed, whom it names, its cause, in what time."""
    proof_name, cause = FAULTS[name]
    words = ["--quick", "--noise-steps", "0", "--workload", f"gpu_models:{name}"]
    # Over its limit is a rank that hangs, and not one whose machine is busy with others.
    words += ["--phase-seconds", "60" if SMALL else "20"]
    one = validate(plan(2, 8), *words, ranks=2, seconds=100)
    proofs = {proof["name"]: proof for proof in one.get("report", {}).get("proofs", [])}
    proof = proofs.get(proof_name, {})
    causes = (proof.get("diagnosis") or {}).get("causes", [])
    text = proof.get("text", f"exit code {one['exit_code']}: {one.get('output')}")[-400:]
    found = {"verdict": proof.get("verdict"), "text": text, "causes": causes}
    known = cause in causes and "rank 1" in text and "host " in text
    wrong = [] if known else [f"{proof_name} should say {cause}, rank 1 and its host: {causes}, {text}"]
    return {**found, "seconds": one["command_seconds"], "wrong": wrong}
