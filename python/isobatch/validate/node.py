"""Checks one node by itself, in under a minute: no plan and no other node. For a Slurm prolog, an init container, or before torchrun.

Each check runs in a process of its own, which is ended when its time is over: a driver that hangs does not hold the job's start.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import select
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import torch

from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.validate.figures import AllReduceRow
from isobatch.validate.host import checks, gpu, system
from isobatch.validate.host.node_report import NodeOptions, NodeReport, node_name, strongest
from isobatch.validate.host.system import Action, CheckResult, HostFault
from isobatch.validate.options import Options
from isobatch.validate.proofs.all_reduce import Size, judge_sums, measure_size
from isobatch.validate.proofs.machine import Product
from isobatch.validate.ranks.group import Group, clock
from isobatch.validate.report import Proof, Verdict, judge_claim, skip_claim
from isobatch.validate.workload import first_line
from isobatch.words import figure

PRODUCT_SECONDS, REDUCE_SECONDS, REDUCE_BYTES = 2.0, 3.0, 1 << 28
LEAVE_SECONDS = 0.5  # for a process that is killed
_PR_SET_PDEATHSIG = 1


class NodeCheck(NamedTuple):
    """A check's proof, and what to do where it does not pass."""

    proof: Proof
    action: Action


def _missing(name: str, options: NodeOptions, why: str) -> list[NodeCheck]:
    """Fails a node that ought to have GPUs; one without any is left unchecked."""
    devices = len(
        [*Path("/dev").glob("nvidia[0-9]*")]
    )  # the driver's: also of one that has since fallen off the bus
    if options.device == "cpu":
        return [NodeCheck(skip_claim(name, "left out by --device cpu"), "look")]
    if options.device == "cuda" or devices:
        text = f"{why}; the driver has made {devices} devices"
        return [NodeCheck(judge_claim(name, Verdict.FAIL, text, Cause.GPU_ILL.likely()), "reboot")]
    return [NodeCheck(skip_claim(name, why), "look")]


def _gpu(options: NodeOptions) -> list[NodeCheck]:
    """Asks NVML for the state of each GPU, without a CUDA context."""
    try:
        boards = gpu.visible_boards(importlib.import_module("pynvml"))
    except ImportError:
        return [NodeCheck(skip_claim("gpu", gpu.INSTALL), "look")]
    if isinstance(boards, str) or not boards or options.device == "cpu":
        return _missing("gpu", options, boards if isinstance(boards, str) else "NVML finds no GPU")
    states = [gpu.state(board, index, 0, 0) for index, board in enumerate(boards)]
    answers = checks.uneven(states, [gpu.check(one) for one in states])
    results = {f"GPU {one.rank} ({one.serial})": answer for one, answer in zip(states, answers, strict=True)}
    wanted = options.thresholds.get("host", {}).get("gpus", 0)
    if len(states) < wanted:
        text = f"{len(states)} GPUs, {wanted:g} are asked for"
        results["node"] = CheckResult(findings=(HostFault(text, Cause.GPU_ILL, True, "reboot"),))
    proof = checks.judge("gpu", results)
    values = {"gpus": [msgspec.to_builtins(one) for one in states]}
    action = strongest(fault.action for result in results.values() for fault in result.findings)
    return [NodeCheck(msgspec.structs.replace(proof, values=values), action)]


def _gpu_errors(options: NodeOptions) -> list[NodeCheck]:
    """Looks for errors of GPUs in the kernel's log."""
    result = checks.ON_A_CPU if options.device == "cpu" else system.check_log(system.kernel_log()).short()
    action = strongest(fault.action for fault in result.findings)
    return [NodeCheck(checks.judge("gpu_errors", {"node": result}), action)]


def _gpus(options: NodeOptions) -> list[str]:
    """Lists the models of the GPUs that CUDA finds."""
    count = torch.cuda.device_count() if options.device != "cpu" else 0
    return [torch.cuda.get_device_name(index) for index in range(count)]


def _matmul(options: NodeOptions) -> list[NodeCheck]:
    """Multiplies matrices on each GPU in turn, by their own clocks."""
    models = _gpus(options)
    if not models:
        return _missing("matmul", options, "torch finds no CUDA device")
    works = [Product(torch.device("cuda", index), torch.bfloat16) for index in range(len(models))]
    times: list[list[float]] = [[] for _ in works]
    begun = time.monotonic()
    while not times[0] or time.monotonic() - begun < PRODUCT_SECONDS:
        for index, work in enumerate(works):
            torch.cuda.set_device(index)
            times[index].append(clock(work, cuda=True))
    return judge_matmul(
        options, models, [works[0].operations / statistics.median(took) / 1e12 for took in times]
    )


def judge_matmul(options: NodeOptions, models: Sequence[str], speeds: Sequence[float]) -> list[NodeCheck]:
    """Judges the slowest GPU by its threshold, the baseline, and the node's other GPUs."""
    slowest = min(range(len(speeds)), key=speeds.__getitem__)
    text = f"{figure(speeds[slowest])} TFLOP/s in bf16 on the slowest, GPU {slowest}"
    verdict, text = options.judge(text, speeds[slowest], models[slowest], "matmul_tflops")
    median = statistics.median(speeds)
    if speeds[slowest] < (1 - options.caution) * median and verdict is not Verdict.FAIL:
        verdict, text = Verdict.CAUTION, f"{text}; the node's median is {figure(median)}"
    likely = Cause.GPU_THROTTLED.likely(f"GPU {slowest}")
    values: dict[str, Any] = {"matmul_tflops": speeds[slowest], "tflops": speeds, "model": models[slowest]}
    return [NodeCheck(judge_claim("matmul", verdict, text, likely, **values), "drain")]


def _all_reduce(options: NodeOptions) -> list[NodeCheck]:
    """Reduces over all GPUs of the node: whether every sum is right, and how fast."""
    from isobatch.validate.launching import start_ranks

    models = _gpus(options)
    if not models:
        return _missing("all_reduce", options, "torch finds no CUDA device")
    if len(models) == 1:
        return [NodeCheck(skip_claim("all_reduce", "one GPU: nothing to reduce with"), "look")]
    with tempfile.TemporaryDirectory(prefix="isobatch-") as name:
        row, lost = Path(name) / "row.json", Path(name) / "lost.txt"
        text = start_ranks(_reduce, (name, options.seconds / 4), len(models), fork=False)
        if not row.exists():
            return _broken("all_reduce", lost.read_text() if lost.exists() else str(text), "reboot")
        found = msgspec.json.decode(row.read_bytes(), type=AllReduceRow)
    text = f"bus bandwidth {figure(found.bus_bw_gb_s)} GB/s at {found.bytes} bytes over {len(models)} GPUs"
    verdict, text = options.judge(text, found.bus_bw_gb_s, models[0], "bus_gb_s")
    values: dict[str, Any] = {"bus_gb_s": found.bus_bw_gb_s, "model": models[0], "gpus": len(models)}
    band = judge_claim("bandwidth", verdict.tentative, text, Cause.SLOW_LINK.likely(), **values)
    return [NodeCheck(judge_sums([found], 0), "drain"), NodeCheck(band, "look")]


def _reduce(name: str, seconds: float) -> None:
    """Runs one rank of the all-reduce; the first leaves its row in the folder, or who was lost."""
    group = Group(Options(device="cuda", phase_seconds=seconds))
    group.pulse.on_loss = lambda text: write_whole(Path(name) / "lost.txt", text.encode())
    try:
        with group.pulse.phase("connect"):
            group.connect()
        with group.pulse.phase("all-reduce"):
            row = measure_size(group, Size("float32", REDUCE_BYTES), REDUCE_SECONDS)
    except Exception as error:
        group.pulse.fail(first_line(error))
        raise
    if group.rank == 0:
        write_whole(Path(name) / "row.json", msgspec.json.encode(row))
    group.close()


CHECKS: dict[str, Callable[[NodeOptions], list[NodeCheck]]] = {
    "gpu": _gpu,
    "gpu_errors": _gpu_errors,
    "matmul": _matmul,
    "all_reduce": _all_reduce,
}
"""By name, in the order in which they run; `all_reduce` also gives `bandwidth`."""


# ---- each in a process of its own ----


def run(options: NodeOptions) -> NodeReport:
    """Runs the checks in turn; one may take half of the time that is left, the last one all of it.

    Raises:
        InputError: a threshold or the baseline does not go with this node's GPUs.
    """
    started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    answers: list[NodeCheck] = []
    names = options.only or tuple(CHECKS)
    for name in names:
        left = options.seconds - LEAVE_SECONDS - (time.monotonic() - begun)
        answers += _limited(name, options, left if name == names[-1] else left / 2)
    actions = {proof.name: action for proof, action in answers if proof.diagnosis is not None}
    return NodeReport(
        node=node_name(),
        started=started,
        wall_seconds=round(time.monotonic() - begun, 3),
        verdict=Verdict.of([proof.verdict for proof, _ in answers]),
        action=strongest(actions.values()) if actions else None,
        actions=actions,
        proofs=[proof for proof, _ in answers],
    )


def _broken(name: str, text: str, action: Action) -> list[NodeCheck]:
    return [NodeCheck(judge_claim(name, Verdict.FAIL, text, Cause.HOST_HANGS.likely()), action)]


def _limited(name: str, options: NodeOptions, seconds: float) -> list[NodeCheck]:
    """Runs one check in a forked process, which is ended with all that it started when its time is over.

    Raises:
        InputError: the check has raised it.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _answer(writing, name, options)
    os.close(writing)
    data, end, done = b"", time.monotonic() + seconds, False
    while not done and select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        data, done = data + part, not part
    os.close(reading)
    for kill in (os.killpg, os.kill):  # it may not have made its group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    gone = time.monotonic() + LEAVE_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < gone:
        time.sleep(0.01)  # one that waits in the driver does not die, and is left behind
    if not done:
        return _broken(name, f"not done within {seconds:.3g} s", "reboot")
    try:
        found: list[NodeCheck] | InputError | str = pickle.loads(data)
    except EOFError:
        return _broken(name, "the check's process died", "reboot")
    if isinstance(found, InputError):
        raise found
    return _broken(name, found, "reset") if isinstance(found, str) else found


def _answer(writing: int, name: str, options: NodeOptions) -> NoReturn:
    """Makes the check in this forked process, and sends what it found, or what it raised."""
    found: Any
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(2, 1)  # what libraries print is no part of the report
        found = CHECKS[name](options)
    except InputError as error:
        found = InputError(error.message, field=error.field, file=error.file)
    except BaseException as error:
        found = first_line(error)
    with suppress(OSError), os.fdopen(writing, "wb") as file:
        file.write(pickle.dumps(found))
    sys.stderr.flush()
    os._exit(0)
