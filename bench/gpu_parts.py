"""The parts of a day with one GPU: each is a function of its name, which `bench/gpu.py` calls in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gpu_models
import msgspec
import torch
from gpu_tools import CUDA, DEVICE, alone, bad, command, free_running, plan, validate, verdicts
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import isobatch as ib
from isobatch.forecast.measurements import Measurements
from isobatch.guard import GuardError, guard
from isobatch.integrations.torch import PlanLR
from isobatch.validate.ranks.network import nccl_version

Figures = dict[str, Any]


def facts(small: bool) -> Figures:
    """The machine in its own words: the driver's tables, torch's build, NCCL, processors and memory."""

    def output(*words: str) -> str | None:
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout[:8000]
        except (OSError, subprocess.SubprocessError):
            return None

    return {
        "nvidia_smi": output("nvidia-smi", "-q"),
        "topology": output("nvidia-smi", "topo", "-m"),
        "processors": output("lscpu"),
        "memory": output("free", "-g"),
        "gpus": torch.cuda.device_count(),
        "nccl": nccl_version() if CUDA else None,
        "build": torch.__config__.show(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("CUDA_", "NCCL_"))},
    }


NOTEBOOK = """
import isobatch as ib
from gpu_models import mlp
def own():  # no module has it
    return mlp()
report = ib.validate.launch("plan.json", 1, workload=own, options=ib.validate.Options(extent="quick"))
report.save("report.json")
"""


def starts(small: bool) -> Figures:
    """The ways to start a validation: by command, by torchrun, from Python with a factory of its own. Nothing may fail."""
    options = ["--quick", "--workload", "gpu_models:mlp", "-o", "report.json"]
    ways = {
        "command": ["-m", "isobatch", "validate", "plan.json", "--nproc-per-node", "1", *options],
        "torchrun": [
            *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
            *("-m", "isobatch.validate", "plan.json", *options),
        ],
        "python": ["notebook.py"],
    }
    found: Figures = {"wrong": []}
    for name, words in ways.items():
        with tempfile.TemporaryDirectory() as at:
            folder = Path(at)
            plan(1, 16).save(folder / "plan.json")
            (folder / "notebook.py").write_text(NOTEBOOK)
            code, output = command([sys.executable, *words], 90, folder)
            file, one = folder / "report.json", {"exit_code": code}
            one |= {"report": json.loads(file.read_text())} if file.exists() else {"output": output}
        found[name] = {"exit_code": code, "verdicts": verdicts(one)}
        found["wrong"] += [f"{name}: {text}" for text in bad(one)]
    return found


def tests(small: bool) -> Figures:
    """`pytest -m gpu`: how many passed, failed and were skipped, each with its reason; function first, then memory alone."""
    found: Figures = {"wrong": []}
    for name, chosen in (("function", "not memory and not fits"), ("memory", "memory or fits")):
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", chosen, "-p", "no:cacheprovider"]
        words += ["-rfEs", "tests/validate/test_gpu.py"]
        code, output = command(words, 290, Path(__file__).parents[1])
        counts = re.findall(r"(\d+) (passed|failed|skipped|error)", output)
        reasons = re.findall(r"^(?:SKIPPED|FAILED|ERROR).*", output, re.MULTILINE)
        found[name] = {"exit_code": code, "counts": {word: int(n) for n, word in counts}, "lines": reasons}
        if code or not counts:
            found["wrong"].append(f"{name}: exit code {code}: {output[-800:]}")
    return found


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autocast bf16": {"precision": "bf16"},
    "GradScaler": {"precision": "fp16"},
    "compile": {"compile": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True},
    "wrong loss": {"sum": True},
}


def _guarded(
    steps: int, *, precision: str | None = None, compile: bool = False, sum: bool = False, **optimizer: Any
) -> None:
    """Trains one rank under guard."""
    torch.manual_seed(0)
    planned = plan(1, 16, 2, precision)
    data = TensorDataset(torch.randn(3200, 32), torch.randint(10, (3200,)))
    loader = DataLoader(data, 16, sampler=DistributedSampler(data))
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
    model = DistributedDataParallel(net, device_ids=[0] if CUDA else None)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, **optimizer)
    scheduler = PlanLR(adamw, planned)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision or "")
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=precision == "fp16")
    watch = guard(planned, loss=lambda m, b: cross_entropy(m(b[0].to(DEVICE)), b[1].to(DEVICE)))
    watch.attach(model, adamw, loader)
    # On a CPU nothing is compiled, only traced: that is what the guard sees of it.
    called = torch.compile(model, backend="inductor" if CUDA else "aot_eager") if compile else model
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    for index, (x, y) in enumerate(loader):
        with nullcontext() if index % 2 else model.no_sync():
            with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
                loss = cross_entropy(called(x.to(DEVICE)), y.to(DEVICE), reduction="sum" if sum else "mean")
            scaler.scale(loss / 2).backward()
        if index % 2:
            scaler.step(adamw)
            scaler.update()
            scheduler.step()
            adamw.zero_grad()
        if index // 2 >= steps:
            return


def guards(small: bool) -> Figures:
    """The guard in loops as they are written for GPUs: good ones must pass, the wrong one must not."""
    found: Figures = {"wrong": []}
    with alone():
        for name, way in WAYS.items():
            if name == "capturable" and not CUDA:
                found[name] = "not asked: capturable optimizers need CUDA"
                continue
            try:
                _guarded(8 if small else 40, **way)
                found[name] = "no complaint"
            except GuardError as error:
                found[name] = str(error)[:500]
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"[:500]
            if (found[name] == "no complaint") == (name == "wrong loss"):
                found["wrong"].append(f"{name}: {found[name]}")
    return found


def prediction(small: bool) -> Figures:
    """The validator's step against one that runs freely, in all formats: seconds, their ratio, peak memory, the gradient's error."""
    formats = (None, "bf16") if small else (None, "tf32", "bf16", "fp16")
    names = ("mlp",) if small else ("mlp", "resnet50", "gpt2")
    found: Figures = {"wrong": []}
    with alone():
        for name, precision in [(name, precision) for name in names for precision in formats]:
            key, micro = f"{name} {precision or 'fp32'}", gpu_models.MICRO[name]
            planned = plan(1, micro, precision=precision)
            one = validate(planned, "--quick", "--workload", f"gpu_models:{name}", seconds=120)
            report = one.get("report", {})
            if report.get("step") is None:
                found["wrong"].append(f"{key}: {bad(one)}")
                continue
            bare = free_running(getattr(gpu_models, name)(), micro, precision, 10 if small else 200)
            predicted = report["step"]["planned_step_seconds"]
            found[key] = {
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
            }
            found["wrong"] += [f"{key}: {text}" for text in bad(one)]
    return found


def calibration(small: bool) -> Figures:
    """The error of a calibration in time and memory, fitted to small micro-batches and asked about the largest."""
    found: Figures = {"wrong": []}
    for name in ("mlp",) if small else ("resnet50", "gpt2"):
        planned = plan(1, gpu_models.MICRO[name], precision=None if small else "bf16")
        words = [*(["--quick"] if small else []), "--workload", f"gpu_models:{name}"]
        one = validate(planned, *words, seconds=140)
        measured = one.get("report", {}).get("measurements")
        if measured is None:
            found["wrong"].append(f"{name}: no measurements: {bad(one)}")
            continue
        whole = msgspec.convert(measured, Measurements)
        *fitted, asked = sorted(whole.steps, key=lambda row: row.micro_batch)
        if len(fitted) < 2:  # a quick run has two sizes: nothing is left out then
            fitted, asked = [*fitted, asked], fitted[0]
        try:
            profile = ib.calibrate(msgspec.structs.replace(whole, steps=tuple(fitted)))
        except ib.InputError as error:  # times among noise: where it is only rehearsed, that is no fault
            found[name] = {"refused": str(error)}
            found["wrong"] += [] if small else [f"{name}: {error}"]
            continue
        update = 0.0 if profile.update is None else profile.update.value
        seconds = (
            profile.compute_constant.value + profile.compute_per_sample.value * asked.micro_batch + update
        )
        real = sorted(asked.step_seconds)[len(asked.step_seconds) // 2]
        found[name] = {
            "asked_micro_batch": asked.micro_batch,
            "left_out": asked not in fitted,
            "predicted_seconds": seconds,
            "measured_seconds": real,
            "time_error": seconds / real - 1,
        }
        fixed, per = profile.memory_fixed_gib, profile.memory_per_sample_gib
        if fixed is not None and per is not None and asked.memory_gib:
            gib = fixed.value + per.value * asked.micro_batch
            found[name]["memory_error"] = gib / asked.memory_gib - 1
    return found


def search(small: bool) -> Figures:
    """The largest micro-batch that the search recommends, and 60 real steps at it: does it hold?"""
    name = "mlp" if small else "gpt2"
    precision, limit = None if small else "bf16", [] if CUDA else ["--memory-limit", "0.7"]
    words = ["--quick", "--find-micro-batch", *limit, "--workload", f"gpu_models:{name}"]
    one = validate(plan(1, gpu_models.MICRO[name], precision=precision), *words, seconds=240)
    found = one.get("report", {}).get("micro_batch_search")
    if found is None or not found["largest_micro_batch"]:
        return {"wrong": [f"no search: {bad(one)}"]}
    size = found["recommended_micro_batch"] or found["largest_micro_batch"]
    figures: Figures = {"search": found, "micro_batch": size, "wrong": []}
    with alone():
        try:
            workload, tried = getattr(gpu_models, name)(), min(size, 64) if small else size
            figures["real"] = free_running(workload, tried, precision, 6 if small else 60)
        except RuntimeError as error:
            figures["wrong"].append(f"micro-batch {size} did not hold: {error}"[:400])
    return figures


def noise(small: bool) -> Figures:
    """The gradient noise scale of two ranks, on this device and on the CPU, of a workload that is known to have 9 samples."""
    known, found = 9.0, {"wrong": []}
    words = ["--quick", "--workload", "gpu_models:known_noise", "--noise-steps", "8" if small else "64"]
    for device in ("auto", "cpu"):
        one = validate(plan(2, 8, optimizer="sgd"), *words, ranks=2, device=device, seconds=140)
        found[device] = one.get("report", {}).get("noise") or {}
        scale, error = found[device].get("noise_scale"), found[device].get("standard_error")
        if scale is None or error is None or abs(scale - known) > 4 * error:
            found["wrong"].append(f"{device}: {scale} ± {error}, where {known} is known")
    return found


FAULTS = {
    "killed": ("ranks_alive", "dead_rank"),
    "out_of_memory": ("ranks_alive", "out_of_memory"),
    "hangs": ("ranks_alive", "rank_failed"),
    "asserts": ("ranks_alive", "rank_failed"),
    "flips": ("same_bits", "silent_corruption"),
}


def faults(small: bool) -> Figures:
    """Faults on one of two ranks: the proof that failed, whom it names, its cause, in what time."""
    found: Figures = {"wrong": []}
    for name in ("killed", "out_of_memory", "asserts") if small else FAULTS:
        proof_name, cause = FAULTS[name]
        words = ["--quick", "--noise-steps", "0", "--phase-seconds", "20", "--workload", f"gpu_models:{name}"]
        words += ["--soak", "0.2"] if name == "flips" else []
        one = validate(plan(2, 8), *words, ranks=2, seconds=110)
        proofs = {proof["name"]: proof for proof in one.get("report", {}).get("proofs", [])}
        proof = proofs.get(proof_name, {})
        causes = (proof.get("diagnosis") or {}).get("causes", [])
        text = proof.get("text", one.get("output", ""))[-400:]
        found[name] = {"verdict": proof.get("verdict"), "text": text, "causes": causes}
        found[name]["command_seconds"] = one["command_seconds"]
        if cause not in causes or "rank 1" not in text:
            wrong = f"{name}: {proof_name} should say {cause} of rank 1, and says {causes}: {text}"
            found["wrong"].append(wrong)
    return found
