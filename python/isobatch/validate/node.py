"""Checks one node by itself, in under a minute: no plan and no other node. For a Slurm prolog, an init container, or before torchrun.

Each check runs in a process of its own, which is ended when its time is over: a driver that hangs does not hold the job's start.
"""

import ctypes
import importlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch

from isobatch.diagnosis.causes import Cause
from isobatch.errors import InputError
from isobatch.files.whole import write_whole
from isobatch.validate.figures import AllReduceRow
from isobatch.validate.host import checks, gpu, system
from isobatch.validate.host.node_report import Gates, NodeReport, node_name
from isobatch.validate.host.system import Action, CheckResult, HostFault, strongest
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


def _missing(name: str, gates: Gates, why: str) -> Proof:
    """Fails a node that ought to have GPUs; one without any is left unchecked."""
    # The driver's: also of one that has since fallen off the bus.
    devices = len([*Path("/dev").glob("nvidia[0-9]*")])
    if not gates.gpus and not devices:
        return skip_claim(name, why)
    text = f"{why}; the driver has made {devices} devices"
    return judge_claim(name, Verdict.FAIL, text, Cause.GPU_ILL.likely(), action="reboot")


def _gpu(gates: Gates) -> list[Proof]:
    """Asks NVML for the state of each GPU, without a CUDA context."""
    try:
        boards = gpu.visible_boards(importlib.import_module("pynvml"))
    except ImportError:
        return [skip_claim("gpu", gpu.INSTALL)]
    if isinstance(boards, str) or not boards:
        return [_missing("gpu", gates, boards if isinstance(boards, str) else "NVML finds no GPU")]
    states = [gpu.state(board, index, 0, 0) for index, board in enumerate(boards)]
    answers = checks.compare(states, [0] * len(states), [gpu.check(one) for one in states])
    results = {f"GPU {one.rank} ({one.serial})": answer for one, answer in zip(states, answers, strict=True)}
    if len(states) < gates.gpus:
        text = f"{len(states)} GPUs, {gates.gpus:g} are asked for"
        results["node"] = CheckResult(findings=(HostFault(text, Cause.GPU_ILL, True, "reboot"),))
    proof = checks.judge("gpu", results)
    values = {**proof.values, "gpus": [msgspec.to_builtins(one) for one in states]}
    return [msgspec.structs.replace(proof, values=values)]


def _models() -> list[str]:
    """Lists the models of the GPUs that CUDA finds."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _matmul(gates: Gates) -> list[Proof]:
    """Multiplies matrices on each GPU in turn, by their own clocks."""
    models = _models()
    if not models:
        return [_missing("matmul", gates, "torch finds no CUDA device")]
    works = [Product(torch.device("cuda", index), torch.bfloat16) for index in range(len(models))]
    times: list[list[float]] = [[] for _ in works]
    begun = time.monotonic()
    while not times[0] or time.monotonic() - begun < PRODUCT_SECONDS:
        for index, work in enumerate(works):
            torch.cuda.set_device(index)
            times[index].append(clock(work, cuda=True))
    speeds = [works[0].operations / statistics.median(took) / 1e12 for took in times]
    return [judge_matmul(gates, models, speeds)]


def judge_matmul(gates: Gates, models: Sequence[str], speeds: Sequence[float]) -> Proof:
    """Judges the slowest GPU by its threshold, the baseline, and the node's other GPUs."""
    slowest = min(range(len(speeds)), key=speeds.__getitem__)
    text = f"{figure(speeds[slowest])} TFLOP/s in bf16 on the slowest, GPU {slowest}"
    verdict, text = gates.judge(text, speeds[slowest], models[slowest], "matmul_tflops")
    median = statistics.median(speeds)
    if speeds[slowest] < (1 - Options().caution) * median and verdict is not Verdict.FAIL:
        verdict, text = Verdict.CAUTION, f"{text}; the node's median is {figure(median)}"
    likely = Cause.GPU_THROTTLED.likely(f"GPU {slowest}")
    values: dict[str, Any] = {"matmul_tflops": speeds[slowest], "tflops": speeds, "model": models[slowest]}
    return judge_claim("matmul", verdict, text, likely, **values)


def _all_reduce(gates: Gates) -> list[Proof]:
    """Reduces over all GPUs of the node: whether every sum is right, and how fast."""
    from isobatch.validate.launching import start_ranks

    models = _models()
    if not models:
        return [_missing("all_reduce", gates, "torch finds no CUDA device")]
    if len(models) == 1:
        return [skip_claim("all_reduce", "one GPU: nothing to reduce with")]
    with tempfile.TemporaryDirectory(prefix="isobatch-") as name:
        row, lost = Path(name) / "row.json", Path(name) / "lost.txt"
        text = start_ranks(_reduce, (name, gates.seconds / 4), len(models), fork=False)
        if not row.exists():
            return [_broken("all_reduce", lost.read_text() if lost.exists() else str(text), "reboot")]
        found = msgspec.json.decode(row.read_bytes(), type=AllReduceRow)
    text = f"bus bandwidth {figure(found.bus_bw_gb_s)} GB/s at {found.bytes} bytes over {len(models)} GPUs"
    verdict, text = gates.judge(text, found.bus_bw_gb_s, models[0], "bus_gb_s")
    values: dict[str, Any] = {"bus_gb_s": found.bus_bw_gb_s, "model": models[0], "gpus": len(models)}
    band = judge_claim("bandwidth", verdict.tentative, text, Cause.SLOW_LINK.likely(), **values)
    return [judge_sums([found], 0), band]


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


CHECKS: dict[str, Callable[[Gates], list[Proof]]] = {
    "gpu": _gpu,
    "gpu_errors": lambda _: [checks.judge("gpu_errors", {"node": system.check_log(system.kernel_log())})],
    "matmul": _matmul,
    "all_reduce": _all_reduce,
}
"""By name, in the order in which they run; `all_reduce` also gives `bandwidth`."""

ACTIONS: dict[str, Action] = {"matmul": "drain", "all_reduce": "drain"}
"""What to do about a proof that is not good, where it has no action among its own values; about any other, `look`."""


# ---- each in a process of its own ----


def run(gates: Gates, only: Sequence[str] = tuple(CHECKS)) -> NodeReport:
    """Runs checks in turn; one may take half of the seconds that are left, the last one all of them.

    Raises:
        InputError: a threshold or the baseline does not go with this node's GPUs.
    """
    started, begun = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    proofs: list[Proof] = []
    for name in only:
        left = gates.seconds - LEAVE_SECONDS - (time.monotonic() - begun)
        proofs += _limited(name, gates, left if name == only[-1] else left / 2)
    wrong = [proof for proof in proofs if proof.diagnosis is not None]
    actions = {proof.name: proof.values.get("action") or ACTIONS.get(proof.name, "look") for proof in wrong}
    return NodeReport(
        node=node_name(),
        started=started,
        wall_seconds=round(time.monotonic() - begun, 3),
        verdict=Verdict.of([proof.verdict for proof in proofs]),
        action=strongest(actions.values()) if actions else None,
        actions=actions,
        proofs=proofs,
    )


def _broken(name: str, text: str, action: Action) -> Proof:
    return judge_claim(name, Verdict.FAIL, text, Cause.HOST_HANGS.likely(), action=action)


def _limited(name: str, gates: Gates, seconds: float) -> list[Proof]:
    """Runs one check in a forked process, which is ended with all that it started when its time is over.

    Raises:
        InputError: the check has raised it.
    """
    receiving, sending = Pipe(duplex=False)
    child = os.fork()
    if not child:
        _answer(sending, name, gates)
    found: list[Proof] | InputError = [_broken(name, f"not done within {seconds:.3g} s", "reboot")]
    try:
        sending.close()
        if receiving.poll(max(0.0, seconds)):
            found = receiving.recv()
    except EOFError:
        found = [_broken(name, "the check's process died", "reboot")]
    except Exception as error:  # half a message: recv raises OSError, and what is unpickled anything
        found = [_broken(name, f"the check's process died in its answer: {first_line(error)}", "reboot")]
    finally:
        receiving.close()
        _end(child)
    if isinstance(found, InputError):
        raise found
    return found


def _end(child: int) -> None:
    """Kills a check's process with its group, and reaps it; one that waits in the driver does not die, and is left behind."""
    for kill in (os.killpg, os.kill):  # it may not have made its group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    gone = time.monotonic() + LEAVE_SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < gone:
        time.sleep(0.01)


def _answer(sending: Connection, name: str, gates: Gates) -> NoReturn:
    """Makes the check in this forked process, and sends what it found, or what it raised."""
    found: list[Proof] | InputError
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(2, 1)  # what libraries print is no part of the report
        found = CHECKS[name](gates)
    except InputError as error:
        found = error
    except BaseException as error:
        found = [_broken(name, first_line(error), "reset")]
    with suppress(OSError):
        sending.send(found)
    sys.stderr.flush()
    os._exit(0)
