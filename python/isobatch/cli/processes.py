"""Counts of processes by the environment and the command, and the rank of this process."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import NamedTuple

from isobatch.errors import InputError, missing, must_be

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
_TASKS = ("srun", "mpirun", "mpiexec", "orterun", "prun")
"""Launchers that start what Slurm has allocated, or as many as their own option says."""
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "tune", "axolotl", "llamafactory-cli", "swift", "trl")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
_BEHIND = "put exec behind the launcher (torchrun … --no-python isobatch exec FILE -- python train.py)"


class ProcessCount(NamedTuple):
    """A number of processes, and who says it.

    Attributes:
        name: the variables or the option.
        number: of them; None where a launcher leaves it open.
        rank: of this process; None if unknown.
        nests: whether outer launchers may count otherwise: their tasks are this one's nodes.
        starts: whether the processes are still to be started.
    """

    name: str
    number: int | None
    rank: int | None = None
    nests: bool = False
    starts: bool = False


def read_counts(environment: Mapping[str, str], command: Sequence[str]) -> list[ProcessCount]:
    """Lists who says a number of processes, innermost first.

    Raises:
        InputError: a variable is no number.

    >>> read_counts({"WORLD_SIZE": "4", "RANK": "1"}, ["python", "train.py"])[0].number
    4
    """
    counts = []
    if (started := _started(command, environment)) is not None:
        counts.append(started)
    for size, rank in _RANKS:
        if not environment.get(size) or (size == "SLURM_NTASKS" and environment.get("SLURM_STEP_NUM_TASKS")):
            continue
        is_task = not size.startswith("SLURM")
        nests = is_task and (size != "WORLD_SIZE" or any(name in environment for name in _AGENTS))
        starts = size == "SLURM_NTASKS" and bool(environment.get("SLURM_JOB_ID"))
        counts.append(ProcessCount(size, _number(environment, size), _rank(environment, rank), nests, starts))
    if environment.get("PET_NNODES"):
        names = ("PET_NNODES", "PET_NPROC_PER_NODE")
        nodes, each = (
            _number(environment, name) if environment.get(name, "1").isdecimal() else None for name in names
        )
        count = nodes * each if nodes and each else None
        counts.append(ProcessCount(" × ".join(names), count, _rank(environment, "PET_NODE_RANK")))
    return counts


def count_gpus(counts: Sequence[ProcessCount], typed: int | None, each: int = 1) -> int:
    """Returns the number of GPUs: the innermost launcher's processes, each with `each` GPUs.

    Args:
        counts: as `read_counts` lists them.
        typed: `--gpus`, which must agree with processes that are there.
        each: GPUs of a process.

    Raises:
        InputError: there is no number, or two disagree; both are named.
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
        if inner is not None and inner.number and not inner.starts and inner.number * each != typed:
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
    return inner.number * each


def rank_of(counts: Sequence[ProcessCount]) -> int:
    """Returns this process's rank, 0 where nobody numbers it."""
    return next((count.rank for count in counts if count.rank is not None), 0)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "1").strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= _MOST):
        raise must_be("a whole number of processes from 1", text, field=name)
    return int(text)


def _rank(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else None


def _started(command: Sequence[str], environment: Mapping[str, str]) -> ProcessCount | None:
    """Returns the count of a launcher in the command; None where the command starts by itself."""
    names = [PurePath(word).name for word in command[:8]]
    if names[0] in _TASKS:
        return _of_tasks(names[0], command, environment)
    if not any(name in _LAUNCHERS or name in _MODULES for name in names):
        return None
    from isobatch.equivalence.launchers import read_launch

    words = [*command]
    at = next(at for at, name in enumerate(names) if name in _LAUNCHERS or name in _MODULES)
    if names[at] in ("torchrun", *_MODULES[:2]):  # it takes the defaults of its options from PET_*
        for option in ("--nproc-per-node", "--nnodes"):
            if value := environment.get(f"PET_{option[2:].replace('-', '_').upper()}"):
                words[at + 1 : at + 1] = [option, value]
    launch = read_launch(words)
    if launch.name in ("", "python"):
        return None
    return ProcessCount(f"{launch.name}'s number of processes", launch.ranks, nests=True)


def _of_tasks(name: str, command: Sequence[str], environment: Mapping[str, str]) -> ProcessCount | None:
    """Returns the tasks of srun or mpirun by its own option, else by the allocation."""
    options = []
    for before, word in pairwise(command):
        if not word.startswith("-") and not before.startswith("-"):
            break
        options.append(word)
    text = "\0".join(options)
    typed = re.search(r"(?:^|\0)(?:-n|-np|--ntasks|--np)[=\0]?(\d+)(?:\0|$)", text)
    is_open = re.search(r"(?:^|\0)(?:-N|--nodes|--ntasks-per|--npernode|--map-by)", text)
    if typed or is_open:
        return ProcessCount(f"{name}'s number of tasks", int(typed[1]) if typed else None, nests=True)
    if not environment.get("SLURM_NTASKS") or environment.get("SLURM_STEP_NUM_TASKS"):
        return None
    return ProcessCount("SLURM_NTASKS", _number(environment, "SLURM_NTASKS"), nests=True)
