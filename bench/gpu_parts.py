"""The parts of a day with one GPU: `python gpu_parts.py PART ROW` plays a row in the current folder.

Each part is a function that returns a row's figures; what it lists under "wrong" is not as it should be.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from gpu_tools import BENCH, SMALL, TESTS, Figures, failed_proofs, plan, run_command, validate, write_figures

import isobatch as ib
from isobatch.forecast.measurements import Measurements

MICRO = {"convnet": 2, "gpt2": 2} if SMALL else {"convnet": 64, "gpt2": 8}
BARE_SECONDS = 0.5 if SMALL else 5.0
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def facts(row: str) -> Figures:
    """The machine in its own words; and an all-reduce of one rank over NCCL."""
    if row == "nccl":
        from gpu_loops import all_reduce_speed, alone

        with alone():
            return {f"{size} MiB, GB/s": all_reduce_speed(size) for size in ([1] if SMALL else [1, 64, 1024])}
    import torch

    from isobatch.validate.ranks.network import nccl_version

    commands = ("nvidia-smi -q", "nvidia-smi topo -m", "lscpu", "free -g")
    texts = {words: run_command(["bash", "-c", words])[1] for words in commands}
    versions = {"cuda": torch.version.cuda, "nccl": nccl_version(), "build": torch.__config__.show()}
    own = {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "NCCL_"))}
    return {**texts, **versions, "gpus": torch.cuda.device_count(), "environment": own}


# ---- a plan's step: validated, beside a bare loop, and predicted from smaller ones ----


def validation(row: str) -> Figures:
    """A whole validation, the same step in a bare loop, and the error of a calibration."""
    figures, report = compare_step(row)
    if report is not None:
        errors = calibration_error(report["measurements"])
        figures |= {f"calibration_{name}": error for name, error in errors.items()}
    return figures


def prediction(row: str) -> Figures:
    """The step of a quick validation beside a bare loop."""
    return compare_step(row, "--quick")[0]


def bare_loop(name: str, micro_batch: int, precision: str | None) -> Figures:
    """Trains a model of gpu_models.py without isobatch."""
    import gpu_models
    from gpu_loops import alone, free_running

    with alone():
        return free_running(getattr(gpu_models, name)(), micro_batch, precision, BARE_SECONDS)


def compare_step(row: str, *options: str) -> tuple[Figures, Any]:
    """Returns a validated step's figures beside those of a bare loop, and the report."""
    name, kind = row.split()
    precision = None if kind == "fp32" else kind
    ran = validate(plan(1, MICRO[name], precision=precision), *options, "--workload", f"gpu_models:{name}")
    report = ran["report"]
    figures: Figures = {"validate_seconds": ran["seconds"], "wrong": failed_proofs(ran)}
    if report is None or report["step"] is None:
        return figures | {"wrong": figures["wrong"] or ["no step was timed"]}, None
    proofs = report["proofs"]
    figures |= {"verdict": report["verdict"], "proofs": {proof["name"]: proof["verdict"] for proof in proofs}}
    for proof in proofs:
        if proof["name"].startswith("gradient") and proof["values"].get("relative_l2") is not None:
            figures[proof["name"]] = f"off by {proof['values']['relative_l2']:.2g}, limit {proof['gate']:.2g}"
    write_figures(figures)
    bare = bare_loop(name, MICRO[name], precision)
    seconds = report["step"]["planned_step_seconds"]
    memory = max(size["peak_memory_bytes"] for size in report["step"]["micro_batches"])
    figures |= {"step_seconds": seconds, "bare_step_seconds": bare["step_seconds"]}
    figures |= {"peak_gib": memory / 2**30, "bare_peak_gib": bare["peak_memory_bytes"] / 2**30}
    figures["time_error"] = seconds / bare["step_seconds"] - 1
    return figures | {"memory_error": memory / bare["peak_memory_bytes"] - 1}, report


def calibration_error(measured: Any) -> Figures:
    """Fits a profile to the smaller micro-batches; returns its errors and stated range at the largest."""
    whole = msgspec.convert(measured, Measurements)
    *fitted, largest = sorted(whole.steps, key=lambda step: step.micro_batch)
    left_out = len(fitted) > 1
    if not left_out:  # Two sizes are needed for a fit: its errors are then no forecast's.
        fitted.append(largest)
    try:
        profile = ib.calibrate(msgspec.structs.replace(whole, steps=tuple(fitted)))
    except ib.InputError as error:  # Too few sizes, or the times are noise, as on a busy machine.
        return {"refused": str(error)}
    columns = profile.forecast(gpus=1, gpus_per_node=1, micro_batch=largest.micro_batch)
    forecast = {name: float(column[0]) for name, column in columns.items()}
    seconds = sorted(largest.step_seconds)[len(largest.step_seconds) // 2]
    errors = {
        "left_out": left_out,
        "micro_batch": largest.micro_batch,
        "range": forecast["step_error"] / seconds,
    }
    errors |= {"time_error": forecast["step_seconds"] / seconds - 1}
    return errors | {"memory_error": forecast["memory_gib"] / (largest.memory_gib or math.nan) - 1}


def search(name: str) -> Figures:
    """The search's recommended micro-batch, and real steps at it."""
    options = ["--quick", "--find-micro-batch", *(["--memory-limit", "0.7"] if SMALL else [])]
    ran = validate(plan(1, MICRO[name], precision="bf16"), *options, "--workload", f"gpu_models:{name}")
    sizes = (ran["report"] or {}).get("micro_batch_search")
    if sizes is None or not sizes["largest_micro_batch"]:
        return {"wrong": [f"no search: {failed_proofs(ran)}"]}
    size = sizes["recommended_micro_batch"] or sizes["largest_micro_batch"]
    figures: Figures = {"largest": sizes["largest_micro_batch"], "micro_batch": size, "search": sizes}
    write_figures(figures)
    return figures | bare_loop(name, min(size, 64) if SMALL else size, "bf16")


# ---- is it the same training? ----


def same(name: str) -> Figures:
    """`isobatch same` of a script with transformers' Trainer; two ranks share the GPU."""
    splits = [word for split in ("1x4x2", "1x1x8", "2x2x2") for word in ("--split", split)]
    script = [sys.executable, *TORCHRUN, "{gpus}", str(BENCH / "same" / f"{name}.py"), "llama"]
    script += ["--per_device_train_batch_size", "{micro_batch}"]
    script += ["--gradient_accumulation_steps", "{accumulation}"]
    words = ["same", "--device", "cuda", *splits, "--steps", "2", "-o", "same.json", "--", *script]
    code, output = run_command([sys.executable, "-m", "isobatch", *words])
    answer = json.loads(Path("same.json").read_text()) if Path("same.json").exists() else None
    wrong = [f"exit code {code}: {output[-1000:]}"] if code else []
    return {"same": answer and answer["same"], "answer": answer, "wrong": wrong}


def bits(row: str) -> Figures:
    """The SHA of the weights at one rank and at two ranks on the GPU; or the price of a step beside DDP's."""
    words = [
        sys.executable,
        str(BENCH / "bits.py"),
        "price" if row == "price" else "same",
        "--device",
        "cuda",
    ]
    if row == "price":
        sizes = ["--sizes", "1M" if SMALL else "10M,50M", "--chunks", "4"]
        words += ["--counts", "1" if SMALL else "1,2", *sizes, "--pairs", "2" if SMALL else "7"]
    else:
        words += ["--counts", "1,2", "--workloads", "gpt,vit", "--steps", "8" if SMALL else "100"]
    # cuBLAS has the same bits each time only with a workspace of a fixed size.
    code, output = run_command(words, CUBLAS_WORKSPACE_CONFIG=":4096:8")
    _, *table = [line for line in output.splitlines() if line.startswith("| ")] or [""]
    figures: Figures = {"wrong": [] if code == 0 and table else [output[-1000:]]}
    for number, line in enumerate(table):
        name, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        figures[f"{number + 1}. {name}"] = ", ".join(cells)
        if row == "sha" and len({*cells}) > 1:
            figures["wrong"].append(f"{name}: {', '.join(cells)}")
    return figures


# ---- what goes wrong ----

FAULTS = {
    "out_of_memory": ("no_gpu_has_the_memory", "out_of_memory"),
    "killed": ("dies_on_rank_1", "dead_rank"),
    "hangs": ("hangs_in_a_kernel", "rank_failed"),
    "asserts": ("asserts_on_the_gpu", "rank_failed"),
}
"""A workload of tests/ddp/workloads.py, and the cause that must be named."""


def faults(name: str) -> Figures:
    """A fault on one of two ranks: whether the failed proof names the rank, its host and the cause."""
    workload, cause = FAULTS[name]
    # A rank over its limit hangs: its machine is not merely busy.
    options = ["--quick", "--noise-steps", "0", "--phase-seconds", "60" if SMALL else "20"]
    ran = validate(plan(2, 8, "sgd", lr=0.1), *options, "--workload", f"ddp.workloads:{workload}", ranks=2)
    proofs = {proof["name"]: proof for proof in (ran["report"] or {}).get("proofs", [])}
    proof = proofs.get("ranks_alive", {"text": f"exit code {ran['exit_code']}: {ran['output']}"})
    causes, text = (proof.get("diagnosis") or {}).get("causes", []), proof["text"][-400:]
    named = cause in causes and "rank 1" in text and "host " in text
    wrong = [] if named else [f"should say {cause}, rank 1 and its host: {causes}, {text}"]
    return {"causes": ", ".join(causes), "text": text, "seconds": ran["seconds"], "wrong": wrong}


def survive(_: str) -> Figures:
    """Two ranks share the GPU over gloo, one is killed between passes: the other ends the undisturbed run."""
    sys.path.insert(0, str(TESTS))
    from ddp import surviving
    from ddp.crews import Ranks, faults, gaps

    options = {"ranks": 2, "min_ranks": 1, "steps": 40, "inside": True, "timeout": 30.0}
    options |= {"gpus": 1, "gloo": True}
    with tempfile.TemporaryDirectory() as name, Ranks(Path(name), options) as ranks:
        ranks.start("0")
        ranks.start("1", kills=[[12, "between"]])
        codes = ranks.wait(70)
        wrong, apart = faults(Path(name), surviving.undisturbed(options))
        wrong += [f"exit codes {codes}: {ranks.said('0')[-1000:]}"] if codes["0"] else []
        return {"seconds_to_next_step": max(gaps(Path(name)), default=None), "apart": apart, "wrong": wrong}


# ---- the rest ----

WORK = {
    "fleet": "plan, 20,000 jobs × 100 clusters, 11 columns",
    "schedules": "schedules, 1,000 cosines × 20,000 steps, float32",
    "files": "files, 8 of 100,000 jobs × 10 clusters, 12 columns",
}


def cores(row: str) -> Figures:
    """Seconds of planning on 1, 2, 4, 8 and 16 threads, the least of four."""
    import fleet_threads

    counts = [count for count in (1, 2, 4, 8, 16) if count <= len(os.sched_getaffinity(0))]
    with tempfile.TemporaryDirectory() as folder:
        if row == "files":
            fleet_threads.make_jobs(folder)
        return {f"{count} threads, s": fleet_threads.run(count, WORK[row], folder)[0] for count in counts}


def tests(names: str) -> Figures:
    """Tests of `pytest -m gpu`: how many passed, failed or were skipped, and why."""
    words = f"-m pytest -q -m gpu -p no:cacheprovider -rfEs --rootdir={BENCH.parent}".split()
    files = [str(TESTS / name) for name in ("validate/test_gpu.py", "guard/test_guard_cuda.py")]
    code, output = run_command([sys.executable, *words, "-k", names, *files])
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", output)}
    lines = re.findall(r"^(?:SKIPPED|FAILED|ERROR).*", output, re.MULTILINE)
    blind = code or not counts.get("passed")  # Skipped tests have shown nothing.
    return {
        "counts": counts,
        "lines": lines,
        "wrong": [f"exit code {code}: {output[-1000:]}"] if blind else [],
    }


if __name__ == "__main__":
    part, row = sys.argv[1:]
    write_figures(globals()[part](row))
