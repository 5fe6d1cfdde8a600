"""A plan, a command, a validation and the state of the GPU, for all parts; without torch."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SMALL = os.environ.get("ISOBATCH_GPU_SMALL") == "1"
BENCH = Path(__file__).parent
TESTS = BENCH.parent / "tests"
Figures = dict[str, Any]


def write_figures(figures: Figures) -> None:
    """Writes a row's figures so far: they stay where the row is ended before it has all."""
    Path("figures.json").write_text(json.dumps(figures, default=str))


def plan(
    ranks: int, micro_batch: int, optimizer: str = "adamw", *, lr: float = 1e-3, precision: str | None = None
) -> Any:
    """Returns a plan as the workloads' optimizers are made."""
    import isobatch as ib

    batch = ranks * micro_batch
    length = {"dataset_size": 100 * batch, "duration": "10ep", "schedule": "constant"}
    form = {"optimizer": optimizer, "lr": lr, "micro_batch": micro_batch, "precision": precision}
    return ib.plan(ib.Recipe(effective_batch=batch, **length, **form), ranks)


def run_command(words: list[str], **environment: str) -> tuple[int, str]:
    """Runs a command in the row's folder; returns its exit code and its output.

    That is also in the row's output, which the day keeps where the row is not done.
    """
    paths = filter(None, [str(BENCH), str(TESTS), os.environ.get("PYTHONPATH")])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    with Path("output.txt").open("ab") as output:
        begin = output.seek(0, os.SEEK_END)
        code = subprocess.run(words, env=variables, stdout=output, stderr=output, check=False).returncode
    with Path("output.txt").open("rb") as output:
        output.seek(begin)
        return code, output.read().decode(errors="replace")


def validate(planned: Any, *options: str, ranks: int = 1) -> Figures:
    """Runs `isobatch validate`; returns its exit code, seconds, and the report if any."""
    words = ["-m", "isobatch", "validate", "plan.json", "-o", "report.json", "--nproc-per-node", str(ranks)]
    planned.save("plan.json")
    begun = time.perf_counter()
    code, output = run_command([sys.executable, *words, *options])
    seconds, file = time.perf_counter() - begun, Path("report.json")
    report = json.loads(file.read_text()) if file.exists() else None
    return {"exit_code": code, "seconds": seconds, "report": report, "output": output[-400:]}


def failed_proofs(ran: Figures) -> list[str]:
    """Lists the failed proofs of a validation, in words."""
    if ran["report"] is None:
        return [f"no report: exit code {ran['exit_code']}: {ran['output']}"]
    proofs = ran["report"]["proofs"]
    return [f"{proof['name']}: {proof['text']}" for proof in proofs if proof["verdict"] == "fail"]


def machine() -> Figures:
    """Returns the state of the GPU: driver, clocks, power, MIG, other processes.

    NVML answers without a CUDA context, so that this process is none of the GPU's.
    """
    versions = {"torch": importlib.metadata.version("torch"), "python": sys.version.split()[0]}
    state: Figures = {**versions, "cores": os.cpu_count(), "device": "cpu"}
    try:
        import pynvml
    except ImportError:
        return state | {"nvml": "pynvml is not installed"}
    try:
        pynvml.nvmlInit()
        board = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        return state | {"nvml": str(error)}

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, f"nvmlDeviceGet{function}")(board, *arguments)
        except Exception:  # This GPU or driver does not support it.
            return None

    clock, most = (ask(name, pynvml.NVML_CLOCK_SM) for name in ("ClockInfo", "MaxClockInfo"))
    power, limit, mig = ask("PowerUsage"), ask("EnforcedPowerLimit"), ask("MigMode")
    name, driver = ask("Name"), pynvml.nvmlSystemGetDriverVersion()
    processes = ask("ComputeRunningProcesses")
    return state | {
        "device": name.decode() if isinstance(name, bytes) else name,
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "clocks": {"sm_mhz": clock, "sm_max_mhz": most},
        "power": {"now_w": power and power / 1e3, "limit_w": limit and limit / 1e3},
        "mig": mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        "other_processes": None if processes is None else len(processes),
    }
