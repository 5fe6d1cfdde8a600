"""Starts the ranks of a validation on this host, by torchrun's own API."""

import gc
import importlib
import logging
import os
import pickle
import signal
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.laws import Cause
from isobatch.errors import InputError, missing, must_be
from isobatch.files.whole import write_whole
from isobatch.planning.plan import Plan
from isobatch.system import require_posix
from isobatch.validate.options import Options
from isobatch.validate.ranks import network
from isobatch.validate.report import Draft, Report, Verdict, judge_claim

RENDEZVOUS_SECONDS = 30.0
REPORT, REFUSED = "report.json", "refused.pickle"
"""Files in the folder shared by the ranks and the process that started them."""


@contextmanager
def gc_frozen() -> Iterator[None]:
    """Freezes the imports' objects, for the garbage collector not to look through torch's million."""
    gc.freeze()  # it takes a third of a second each time; a forked rank would copy its parent's memory
    try:
        yield
    finally:
        gc.unfreeze()  # or C++ libraries report leaks at the end of the process


def work(plan_json: str, options: Options, folder: str, factory: Callable[[], Any] | None) -> None:
    """Runs one rank; the first InputError goes into the folder, since a traceback would hide it."""
    import torch

    from isobatch.validate.worker import run

    if factory is not None:
        torch.set_num_threads(1)  # a notebook has used its OpenMP threads, which a fork does not have
    plan, path, refused = Plan.from_json(plan_json), Path(folder) / REPORT, Path(folder) / REFUSED
    try:
        with gc_frozen():
            report = run(plan, options, factory=factory, publish=lambda report: report.save(path))
        if os.environ["LOCAL_RANK"] == "0":  # also on the hosts that rank 0 is not on
            report.save(path)
    except InputError as error:
        if not refused.exists():
            write_whole(refused, pickle.dumps(error))


def launch(
    plan: Plan | str | os.PathLike[str],
    nproc_per_node: int = 2,
    *,
    options: Options | None = None,
    workload: str | Callable[[], Any] | None = None,
    nnodes: int = 1,
    node_rank: int = 0,
    rendezvous: str | None = None,
    _fork: bool = False,
) -> Report:
    """Validates a plan in processes of its own; also from a notebook.

    Args:
        plan: a plan, or the path of one.
        nproc_per_node: ranks on this host.
        options: how to validate.
        workload: as in the options; or a factory, which may live in the notebook itself: the ranks are then
            forked, and CUDA must not have been used here.
        nnodes, node_rank, rendezvous: hosts, which of them this is, and "host:port" of host 0, where the same
            call is made on several.

    Returns:
        The report, the same on all hosts; a failed one if a rank dies.

    Raises:
        InputError: an argument is out of range, the rendezvous cannot be reached, or CUDA is in use.
    """
    require_posix("the validator")
    if not isinstance(plan, Plan):
        plan = Plan.load(plan)
    options = options or Options()
    if isinstance(workload, str):
        options = msgspec.structs.replace(options, workload=workload)
    factory = workload if callable(workload) else None
    for name, value in (("nproc_per_node", nproc_per_node), ("nnodes", nnodes)):
        if value < 1:
            raise must_be("at least 1", value, field=name)
    if nnodes > 1 and rendezvous is None:
        raise missing("rendezvous", "several hosts need host:port of host 0")
    if not 0 <= node_rank < nnodes:
        raise must_be(f"0 to {nnodes - 1}", node_rank, field="node_rank")
    plan.require()
    with tempfile.TemporaryDirectory(prefix="isobatch-") as folder:
        draft = Draft(plan, options)
        fork = True if factory is not None else None if _fork else False
        config = _config(nproc_per_node, nnodes, node_rank, rendezvous, fork=fork)
        lost = _run_ranks(config, plan.to_json(), options, folder, factory)
        path, refused = Path(folder) / REPORT, Path(folder) / REFUSED
        if path.exists():
            return Report.load(path)
        if refused.exists():
            raise pickle.loads(refused.read_bytes())
        # A rank died before rank 0 could write anything.
        text = lost or "no rank reported anything"
        draft.add(judge_claim("ranks_alive", Verdict.FAIL, text, Cause.DEAD_RANK.likely()))
        return draft.report()


def _config(nproc: int, nnodes: int, node_rank: int, rendezvous: str | None, *, fork: bool | None) -> Any:
    """Returns torchrun's configuration: ranks are forked, spawned, or as this host allows."""
    # Each rank would else take all cores; OpenMP reads it when torch is first imported.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // nproc)))
    if fork or fork is None:
        _preload()
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    # The report says all that it would log.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    from isobatch.validate.ranks import rendezvous as meeting

    where: dict[str, Any] = {"rdzv_backend": meeting.register(), "local_addr": meeting.HOST}
    run_id = uuid.uuid4().hex
    if nnodes > 1:
        run_id = "isobatch"
        host, _, port = (rendezvous or "").rpartition(":")
        if not host or not port.isdigit():
            raise must_be("host:port", rendezvous, field="rendezvous")
        if node_rank == 0:
            network.allow_connections(nnodes * nproc)
        else:
            network.probe(host, int(port), RENDEZVOUS_SECONDS)
        where = {
            "rdzv_backend": "static",
            "rdzv_endpoint": rendezvous,
            "rdzv_configs": {"rank": node_rank, "timeout": RENDEZVOUS_SECONDS},
        }
    gpus = meeting.has_gpus()
    if fork is None:  # forked ranks need not import torch again, but a GPU host's had better be spawned
        fork = not gpus
    with meeting.asking_nvml():
        config = LaunchConfig(
            min_nodes=nnodes,
            max_nodes=nnodes,
            nproc_per_node=nproc,
            run_id=run_id,
            max_restarts=0,
            start_method="fork" if fork else "spawn",
            logs_specs=DefaultLogsSpecs(),
            **where,
        )
    if fork and gpus and meeting.is_cuda_used():
        raise InputError(
            "CUDA was used in this process, so that ranks forked from it cannot use it: restart the kernel "
            "and launch first, or put the factory in a module and name it",
            field="workload",
        )
    return config


def _preload() -> None:
    """Imports the slow modules once, for all ranks, without the garbage collector: a sixth faster."""
    gc.disable()
    try:
        importlib.import_module("torch._dynamo")  # DDP needs it, and it is the slowest of all
        importlib.import_module("isobatch.validate.worker")
    finally:
        gc.enable()


def _run_ranks(config: Any, *arguments: Any) -> str | None:
    """Runs `work` in ranks of this host; names lost ones, None where all came to an end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    try:
        elastic_launch(config, work)(*arguments)
    except ChildFailedError as error:
        texts = []
        for rank, failure in sorted(error.failures.items()):
            code = failure.exitcode
            # The agent ends the others with SIGTERM.
            if code != -signal.SIGTERM or len(error.failures) == 1:
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                texts.append(f"rank {rank} (host {socket.gethostname()}) died with {how}")
        return "; ".join(texts)
    return None
