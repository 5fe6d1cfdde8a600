"""What the parts share: a plan, a command with its end, a validation by command, the state of the GPU.

No torch, so no CUDA context.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import isobatch as ib

SMALL = os.environ.get("ISOBATCH_GPU_SMALL") == "1"
BENCH = Path(__file__).parent
MICRO = {"convnet": 2, "gpt2": 2} if SMALL else {"convnet": 64, "gpt2": 8}


def plan(ranks: int, micro_batch: int, accumulation: int = 1, precision: str | None = None) -> ib.Plan:
    """A plan of AdamW as the models' optimizers are made."""
    batch, how = ranks * micro_batch * accumulation, {"micro_batch": micro_batch, "precision": precision}
    run = {"dataset_size": 100 * batch, "duration": "10ep", "schedule": "constant"}
    return ib.plan(ib.Recipe(effective_batch=batch, lr=1e-3, optimizer="adamw", **run, **how), ranks)


def command(words: list[str], seconds: float, cwd: Path) -> tuple[int, str]:
    """The exit code and the end of what a command printed, all of its processes ended behind it.

    124 where it took too long.
    """
    path = os.pathsep.join(filter(None, [str(BENCH), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            words, cwd=cwd, env=environment, start_new_session=True, stdout=out, stderr=subprocess.STDOUT
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds * (4 if SMALL else 1))
        code = 124 if process.returncode is None else process.returncode
        with suppress(ProcessLookupError):  # what it has left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        return code, out.read()[-8000:]


def validate(
    planned: ib.Plan, *options: str, ranks: int = 1, seconds: float = 300.0, start: list[str] | None = None
) -> dict[str, Any]:
    """`isobatch validate`, or what else starts one: its exit code, seconds, and the report.

    The end of its output where there is none.
    """
    start = start or ["-m", "isobatch", "validate", "plan.json", "-o", "report.json", "--nproc-per-node", f"{ranks}"]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planned.save(folder / "plan.json")
        begun = time.perf_counter()
        code, output = command([sys.executable, *start, *options], seconds, folder)
        found: dict[str, Any] = {"exit_code": code, "command_seconds": time.perf_counter() - begun}
        file = folder / "report.json"
        return found | ({"report": json.loads(file.read_text())} if file.exists() else {"output": output})


def bad(found: dict[str, Any]) -> list[str]:
    """What failed of a validation, in words."""
    if "report" not in found:
        return [f"no report: exit code {found['exit_code']}: {found['output'][-500:]}"]
    proofs = found["report"]["proofs"]
    return [f"{proof['name']}: {proof['text']}" for proof in proofs if proof["verdict"] == "fail"]


def machine() -> dict[str, Any]:
    """What figures of a GPU mean nothing without: driver, clocks, power, MIG, other processes.

    By NVML, without a CUDA context, so that
    who asks is no process on the GPU. Without a GPU only that there is none."""
    versions = {"torch": importlib.metadata.version("torch"), "python": sys.version.split()[0]}
    found: dict[str, Any] = {**versions, "cores": os.cpu_count(), "device": "cpu"}
    try:
        import pynvml
    except ImportError:
        return found | {"nvml": "pynvml is not installed"}
    try:
        pynvml.nvmlInit()
        board = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError as error:
        return found | {"nvml": str(error)}

    def ask(function: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, f"nvmlDeviceGet{function}")(board, *arguments)
        except Exception:  # what this GPU or driver does not support
            return None

    clock, most = (ask(name, pynvml.NVML_CLOCK_SM) for name in ("ClockInfo", "MaxClockInfo"))
    power, limit, mig = ask("PowerUsage"), ask("EnforcedPowerLimit"), ask("MigMode")
    driver = pynvml.nvmlSystemGetDriverVersion()
    return found | {
        "device": ask("Name"),
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "clocks": {"sm_mhz": clock, "sm_max_mhz": most},
        "power": {"now_w": power and power / 1e3, "limit_w": limit and limit / 1e3},
        "mig": mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
        "other_processes": len(ask("ComputeRunningProcesses") or ()),
    }
