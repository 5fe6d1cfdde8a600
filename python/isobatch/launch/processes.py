"""Counts of processes by the environment and the command, and the rank of this process."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from isobatch.errors import InputError, missing, must_be
from isobatch.launch.launcher import Launcher, read_launcher

_MOST = 2**31
_RANKS = (
    ("WORLD_SIZE", "RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
)
"""The variables of each launcher, innermost first: torchrun and Ray inside mpirun inside Slurm."""
_AGENTS = ("TORCHELASTIC_RUN_ID", "LOCAL_WORLD_SIZE", "LOCAL_SIZE")
"""Variables of a launcher that starts ranks from one process a node; a script's own export has none."""
_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_BEHIND = "put exec behind the launcher (torchrun … --no-python isobatch exec FILE -- python train.py)"


class ProcessCount(NamedTuple):
    """A number of processes, and who says it.

    Attributes:
        number: None where a launcher leaves it open.
        nests: whether outer launchers may count otherwise: their tasks are this one's nodes.
        starts: whether the processes are still to be started.
        each: GPUs of a process by the environment; None: as many as `several` leaves open.
        several: who gives a process several GPUs, or may; empty where each has one.
    """

    name: str
    number: int | None
    rank: int | None = None
    nests: bool = False
    starts: bool = False
    each: int | None = 1
    several: str = ""


def read_counts(environment: Mapping[str, str], command: Sequence[str]) -> list[ProcessCount]:
    """Lists who says a number of processes, innermost first.

    >>> read_counts({"WORLD_SIZE": "4", "RANK": "1"}, ["python", "train.py"])[0].number
    4
    """
    counts = []
    if launcher := read_launcher(command, environment):
        kind = "tasks" if launcher.starts_tasks else "processes"
        count = ProcessCount(f"{launcher.name}'s number of {kind}", launcher.number, nests=True)
        counts.append(_with_gpus(count, environment, launcher) if launcher.starts_tasks else count)
    for size, rank in _RANKS:
        if not environment.get(size) or (size == "SLURM_NTASKS" and environment.get("SLURM_STEP_NUM_TASKS")):
            continue
        has_agent = size == "WORLD_SIZE" and any(name in environment for name in _AGENTS)
        nests = has_agent or not size.startswith(("SLURM", "WORLD"))
        is_job = bool(environment.get("SLURM_JOB_ID")) and not environment.get("SLURM_STEP_ID")
        starts = size == "SLURM_NTASKS" and is_job
        count = ProcessCount(size, _number(environment, size), _rank(environment, rank), nests, starts)
        counts.append(count if has_agent else _with_gpus(count, environment))
    if environment.get("PET_NNODES"):
        counts.append(_of_kubeflow(environment))
        script = counts[0]
        is_script = len(counts) == 2 and script.name == "WORLD_SIZE" and not script.nests
        if is_script and counts[1].number is None and counts[1].each != 1:
            text = f"PET_NPROC_PER_NODE is {environment['PET_NPROC_PER_NODE']}"
            counts[0] = script._replace(each=counts[1].each, several=text)
    return counts


def _of_kubeflow(environment: Mapping[str, str]) -> ProcessCount:
    """Reads Kubeflow's nodes and the ranks of each; both are open where one is a range or `auto`."""
    names = ("PET_NNODES", "PET_NPROC_PER_NODE")
    nodes, each = (
        _number(environment, name) if environment.get(name, "1").isdecimal() else None for name in names
    )
    name, rank = " × ".join(names), _rank(environment, "PET_NODE_RANK")
    return (
        ProcessCount(name, nodes * each, rank)
        if nodes and each
        else ProcessCount(name, None, rank, each=each)
    )


def count_gpus(counts: Sequence[ProcessCount], typed: int | None, each: int | None = None) -> int:
    """Returns the number of GPUs: the innermost launcher's processes, each with `each` GPUs.

    Args:
        typed: `--gpus`, which must agree with processes that are there.
        each: `--gpus-per-process`; None: one, unless the environment has more for it.
    """
    inner = counts[0] if counts else None
    for first, outer in pairwise(counts):
        if first.nests:
            break
        if None not in (first.number, outer.number) and first.number != outer.number:
            raise InputError(
                f"{first.name} is {first.number}, and {outer.name} is {outer.number}: two counts of "
                "processes disagree. Unset the one that is not this run's (env -u NAME isobatch exec …)"
            )
    if typed is not None:
        if inner is not None and inner.number and not inner.starts and not _agrees(inner, typed, each):
            raise InputError(
                f"--gpus is {typed}, and {inner.name} is {inner.number}: two counts of processes disagree. "
                "Leave --gpus out, or give --gpus-per-process where a process drives several"
            )
        return typed
    if inner is None:
        raise missing(
            "the number of processes",
            "no launcher has set WORLD_SIZE, SLURM_NTASKS, PET_NNODES or MPI's: pass --gpus N, or start "
            "isobatch exec by the launcher",
        )
    if inner.number is None:
        raise InputError(f"{inner.name} is open: pass --gpus N, or {_BEHIND}")
    if inner.starts and inner.number > 1:
        raise InputError(
            f"{inner.name} is {inner.number}, but no srun has started them here: write srun isobatch "
            "exec …, or -- srun COMMAND, or pass --gpus N"
        )
    if each is None and inner.several:
        raise InputError(
            f"{inner.name} is {inner.number}, and {inner.several}: pass --gpus-per-process N, the GPUs that "
            "a process drives, or name the launcher of its ranks in the command"
        )
    return inner.number * (each or 1)


def _agrees(count: ProcessCount, gpus: int, each: int | None) -> bool:
    """Tells whether a number of GPUs is one of these processes, each with its GPUs."""
    assert count.number is not None
    if each is None and count.each is None:
        return gpus % count.number == 0
    return gpus in (count.number * (each or 1), count.number * (each or count.each or 1))


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "1").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= _MOST):
        raise must_be("a whole number of processes from 1", text, field=name)
    return int(text)


def _rank(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def _with_gpus(
    count: ProcessCount, environment: Mapping[str, str], launcher: Launcher | None = None
) -> ProcessCount:
    """Adds the GPUs of each task to a count: Slurm's, or those that MPI's process sees."""
    if not count.number:
        return count
    of_task, nodes = (launcher.gpus, launcher.nodes) if launcher else (None, None)
    typed = environment.get("SLURM_GPUS_PER_TASK", "").rpartition(":")[2]
    on_node = environment.get("SLURM_GPUS_ON_NODE", "")
    local = _first(environment, _LOCAL_SIZES)
    if of_task or typed.isdecimal():
        each, who = of_task or int(typed), "--gpus-per-task"
    elif on_node.isdecimal():
        allocated = _first(environment, _NODES) or str(count.number)
        each = int(on_node) * (nodes or (int(allocated) if allocated.isdecimal() else 1)) // count.number
        who = "SLURM_GPUS_ON_NODE"
    elif local.isdecimal() and int(local) and launcher is None:
        visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        each, who = len(visible) // int(local), "CUDA_VISIBLE_DEVICES"
    else:
        return count
    return count._replace(each=each, several=f"{who} gives each {each} GPUs") if each > 1 else count


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
