"""What the parts share: a validation by command, a bare training loop, the state of the GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.diagnosis.tensors import AUTOCAST, float32_as
from isobatch.validate import Workload
from isobatch.validate.host import gpu

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
BENCH = Path(__file__).parent


def plan(
    ranks: int, micro_batch: int, accumulation: int = 1, precision: str | None = None, **fields: Any
) -> ib.Plan:
    """A plan of AdamW as the models' optimizers are made."""
    recipe = ib.Recipe(
        effective_batch=ranks * micro_batch * accumulation,
        lr=1e-3,
        optimizer=fields.pop("optimizer", "adamw"),
        dataset_size=fields.pop("dataset_size", 100 * ranks * micro_batch * accumulation),
        duration="10ep",
        schedule="constant",
        micro_batch=micro_batch,
        precision=precision,
        **fields,
    )
    return ib.plan(recipe, ranks)


def command(words: list[str], seconds: float, cwd: Path, **env: str) -> tuple[int, str]:
    """The exit code and the end of what a command printed, all of its processes ended behind it; 124 where it took too long."""
    path = os.pathsep.join(filter(None, [str(BENCH), os.environ.get("PYTHONPATH")]))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = {**os.environ, "PYTHONPATH": path, **env}
    process = subprocess.Popen(words, cwd=cwd, env=environment, start_new_session=True, **pipes)
    try:
        output, _ = process.communicate(timeout=seconds)
        code = process.returncode
    except subprocess.TimeoutExpired:
        code, output = 124, ""
    finally:
        with suppress(ProcessLookupError):  # what it has left behind
            os.killpg(process.pid, signal.SIGKILL)
    if code == 124:
        output, _ = process.communicate()
    return code, output[-3000:]


def validate(
    planned: ib.Plan, *options: str, ranks: int = 1, seconds: float = 300.0, device: str = "auto"
) -> dict[str, Any]:
    """`isobatch validate`: its exit code, seconds, and the report; the end of its output where there is none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planned.save(folder / "plan.json")
        words = [sys.executable, "-m", "isobatch", "validate", "plan.json", "-o", "report.json"]
        words += ["--nproc-per-node", str(ranks), "--device", device]
        begun = time.perf_counter()
        code, output = command([*words, *options], seconds, folder)
        found: dict[str, Any] = {"exit_code": code, "command_seconds": time.perf_counter() - begun}
        file = folder / "report.json"
        return found | ({"report": json.loads(file.read_text())} if file.exists() else {"output": output})


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    """By proof; nothing where there is no report."""
    return {proof["name"]: proof["verdict"] for proof in found.get("report", {}).get("proofs", [])}


def bad(found: dict[str, Any]) -> list[str]:
    """What failed of a validation, in words. A CPU's ranks may be slow because others use it."""
    if "report" not in found:
        return [f"no report: exit code {found['exit_code']}: {found['output'][-500:]}"]
    return [
        f"{proof['name']}: {proof['text']}"
        for proof in found["report"]["proofs"]
        if proof["verdict"] == "fail"
    ]


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process only, over the backend that its device has."""
    with tempfile.NamedTemporaryFile() as file:
        if CUDA:
            torch.cuda.set_device(DEVICE)
        dist.init_process_group(
            "nccl" if CUDA else "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


def sync() -> None:
    """Waits for the device."""
    if CUDA:
        torch.cuda.synchronize(DEVICE)


def free_running(workload: Workload, micro_batch: int, precision: str | None, steps: int) -> dict[str, Any]:
    """A bare DDP loop of one rank as a user writes it, no clock between its steps: seconds of a step, peak memory in bytes."""
    model = DistributedDataParallel(workload.model.to(DEVICE), device_ids=[0] if CUDA else None)
    optimizer, dtype = workload.optimizer(model.parameters()), AUTOCAST[precision]
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype == torch.float16)
    batches = [workload.batch(micro_batch, torch.Generator().manual_seed(n), DEVICE) for n in range(2)]

    def step(n: int) -> None:
        with torch.autocast(DEVICE.type, dtype, enabled=dtype is not None):
            loss = workload.loss(model, batches[n % 2])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    with float32_as("tf32") if precision == "tf32" else nullcontext():
        for n in range(5):
            step(n)
        if CUDA:
            torch.cuda.reset_peak_memory_stats(DEVICE)
        sync()
        begun = time.perf_counter()
        for n in range(steps):
            step(n)
        sync()
        took = time.perf_counter() - begun
    peak = torch.cuda.max_memory_allocated(DEVICE) if CUDA else None
    return {"step_seconds": took / steps, "steps": steps, "peak_memory_bytes": peak}


def machine() -> dict[str, Any]:
    """What figures of a GPU mean nothing without: driver, clocks, power, MIG, other processes. On a CPU only that it is one."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(DEVICE) if CUDA else "cpu",
    }
    if not CUDA:
        return found
    torch.zeros(1, device=DEVICE)
    try:
        import pynvml
    except ImportError:
        return found | {"nvml": gpu.INSTALL}
    board = gpu.board_at(pynvml, gpu.bus_id(torch.cuda.get_device_properties(DEVICE)))
    if isinstance(board, str):
        return found | {"nvml": board}
    state = gpu.state(board, 0, int(torch.cuda.memory_reserved(DEVICE)), 1)
    clock, most = (board.ask(name, pynvml.NVML_CLOCK_SM) for name in ("GetClockInfo", "GetMaxClockInfo"))
    milliwatts = board.ask("GetPowerUsage")
    driver = pynvml.nvmlSystemGetDriverVersion()
    return found | {
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "clocks": {"sm_mhz": clock, "sm_max_mhz": most},
        "power": {"now_w": milliwatts and milliwatts / 1e3, "limit_w": state.power_limit_w},
        "mig": state.mig,
        "other_processes": state.other_processes,
        "state": msgspec.to_builtins(state),
    }
