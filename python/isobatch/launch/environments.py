"""The processes of a run by the variables of its launcher: torchrun, or Slurm's srun."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from isobatch.errors import InputError, must_be

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COUNTS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # The variables of srun: an sbatch script has SLURM_NTASKS too, but is a single process.
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
)
"""Of each launcher the rank, the ranks, and those of a node."""
_FIRST_HOST = re.compile(r"((?:[\w.-]|\[\d[\d,-]*\])+)(?:,|$)")
"""Of a Slurm node list such as `gpu[01-03,7],login`."""


def rank_variables(env: Mapping[str, str]) -> dict[str, str] | None:
    """Returns torchrun's variables for this process, or srun's by the same names; None without a launcher.

    >>> srun = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "7",
    ...         "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"}
    >>> variables = rank_variables(srun)
    >>> variables["RANK"], variables["MASTER_ADDR"], variables["LOCAL_WORLD_SIZE"]
    ('3', 'n1', '2')

    A batch script without srun has the job's number of tasks, and is one process:

    >>> rank_variables({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n1"}) is None
    True

    Raises:
        InputError: only a part of the variables is there.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        if missing := [name for name in TORCHRUN if name not in env]:
            raise InputError(f"RANK is set, but not {', '.join(missing)}: start with torchrun, or unset it")
        return {name: env[name] for name in TORCHRUN}
    if "SLURM_PROCID" not in env or int(env.get("SLURM_STEP_NUM_TASKS", "1")) < 2:
        return None
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", env.get("SLURM_TASKS_PER_NODE", "1"))
    per_node: list[str] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):
        per_node += [count] * int(times or 1)
    nodes = env.get("SLURM_STEP_NODELIST", env.get("SLURM_JOB_NODELIST", ""))
    if not nodes:
        raise InputError("SLURM_PROCID is set, but no SLURM_JOB_NODELIST")
    if (host := _FIRST_HOST.match(nodes)) is None:
        raise must_be("a list such as gpu[01-03,7],login", nodes, field="SLURM_JOB_NODELIST")
    return {
        "RANK": env["SLURM_PROCID"],
        "WORLD_SIZE": env["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": env["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": per_node[min(int(env.get("SLURM_NODEID", "0")), len(per_node) - 1)],
        "MASTER_ADDR": env.get("MASTER_ADDR", re.sub(r"\[(\d+)[^]]*]", r"\1", host[1])),
        # Below the ports that Linux hands out (32768 and up): the same on all hosts, another for each job.
        "MASTER_PORT": env.get("MASTER_PORT", str(15000 + int(env.get("SLURM_JOB_ID", "0")) % 15000)),
    }


class World(NamedTuple):
    """The processes of a run: this process's `rank`, their number `size`, and how many run on each node,
    `per_node` (None: unknown, or not the same on all nodes)."""

    rank: int
    size: int
    per_node: int | None


def read_world(env: Mapping[str, str]) -> World:
    """Counts the processes by torchrun's variables, else by srun's; without any this process is alone.

    >>> read_world({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"})
    World(rank=1, size=4, per_node=2)

    Raises:
        InputError: a variable is no whole number.
    """
    for launcher, *names in _COUNTS:
        if all(name in env for name in names[:2]):
            rank, size = (_number(launcher, name, env[name]) for name in names[:2])
            local = env.get(names[2], "")
            return World(rank, size, int(local) if _divides(local, size) else None)
    return World(0, 1, None)


def _divides(local: str, size: int) -> bool:
    return local.isdigit() and int(local) > 0 and size % int(local) == 0


def _number(launcher: str, name: str, text: str) -> int:
    if not text.isdigit():
        raise InputError(f"{launcher}'s {name} must be a whole number, got {text!r}", field=name)
    return int(text)
