"""Launchers in a training command: srun and mpirun, a launcher of ranks inside, the text of a shell."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import NamedTuple

from isobatch.errors import InputError
from isobatch.launch.command_line import LAUNCHERS, PYTHON, TORCHRUN_MODULES, read_launch

_TASKS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun")
"""Launchers that start what Slurm has allocated, or as many as their own option says."""
_RANKS = (*LAUNCHERS, "accelerate-launch")
_UNREAD = ("horovodrun", "colossalai", "composer", "jsrun", "aprun", "ibrun", "flux")
"""Launchers whose options nobody reads here: they leave the number open."""
_WRAPPERS = (
    *("env", "exec", "command", "nohup", "time", "nice", "numactl", "taskset", "stdbuf", "timeout", "setsid"),
    *("uv", "poetry", "pdm", "pixi", "conda", "mamba", "micromamba", "hatch", "rye", "sudo", "nsys", "ncu"),
    *("singularity", "apptainer", "docker", "podman", "enroot", "xvfb-run", "tini", "dumb-init"),
)
_MODULES = (
    *(*TORCHRUN_MODULES, "deepspeed", "deepspeed.launcher.runner"),
    *("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
)
"""Launchers that python starts by -m."""
_SRUN_SWITCHES = """
exclusive overlap exact label unbuffered verbose quiet pty kill-on-bad-exit no-kill multi-prog
disable-status hold immediate no-allocate overcommit oversubscribe preserve-env propagate reboot share
spread-job test-only async nice use-min-nodes whole contiguous interactive external-launcher get-user-env
resv-ports bcast send-libs compress x11 container-mount-home no-container-mount-home container-remap-root
no-container-remap-root container-writable container-readonly container-entrypoint no-container-entrypoint
help usage version
"""
_SRUN_LETTERS = "EHIKklOQsuvXZhV"
_MPI_SWITCHES = """
allow-run-as-root oversubscribe nooversubscribe report-bindings tag-output timestamp-output q quiet v
verbose V version display-map display-allocation display-topo bynode bycore byslot bysocket bind-to-core
bind-to-socket l h use-hwthread-cpus merge-stderr-to-stdout genvall envall genvnone envnone enable-recovery
disable-recovery nw help continuous do-not-launch debug-devel debug-daemons d debug nolocal novm
no-ready-msg xterm prepend-rank
"""
"""Options without a value; any else takes one."""
_MPI_PAIRS = ("mca", "gmca", "prtemca", "pmixmca", "genv", "env")
_PER_NODE = ("N", "nodes", "ntasks-per", "npernode", "npersocket", "ppn", "perhost", "map-by", "rankfile")
"""How options begin that give tasks to each node."""


class Launcher(NamedTuple):
    """A launcher in a command.

    Attributes:
        number: of processes; None where it leaves the number open.
        program: place of the first word behind it.
        tool: of a command that is a training tool's own.
        starts_tasks: whether the processes are tasks, each perhaps with several GPUs.
        nodes: that it takes, where its options say so; likewise the `gpus` of each task.
    """

    name: str
    number: int | None
    program: int
    tool: str | None = None
    starts_tasks: bool = False
    nodes: int | None = None
    gpus: int | None = None


def read_launcher(words: Sequence[str], environment: Mapping[str, str], first: int = 0) -> Launcher | None:
    """Finds the innermost launcher in front of a script; None where the command starts by itself.

    >>> words = "srun --mpi=pmix torchrun --nnodes 8 --nproc-per-node 8 t.py".split()
    >>> launcher = read_launcher(words, {"SLURM_NTASKS": "8"})
    >>> launcher.name, launcher.number
    ('torchrun', 64)
    """
    for place in range(first, len(words)):
        word = words[place]
        name = PurePath(word).name
        launcher = None
        if len(word.split()) > 1:  # the text of a shell
            launcher = _in_text(word, len(words), environment)
        elif PYTHON.fullmatch(name) is not None:
            return _of_ranks(words, place, environment)
        elif name.endswith(".py"):  # its arguments may have a launcher's name
            return None
        elif not _is_command(word, words[first:place]):
            continue
        elif name in _TASKS:
            tasks = _of_tasks(words, place, environment)
            return read_launcher(words, environment, tasks.program) or tasks
        elif name in _UNREAD:
            return Launcher(name, None, len(words))
        elif name in _RANKS:
            try:
                launcher = _of_ranks(words, place, environment)
            except InputError:
                if place == first:
                    raise
        if launcher is not None:
            return launcher
    return None


def _is_command(word: str, before: Sequence[str]) -> bool:
    """Tells whether a word behind others is a command: behind a program's own option it is a value."""
    if word.startswith("-") or "=" in word:
        return False
    has_wrapper = any(PurePath(name).name in _WRAPPERS for name in before)
    return has_wrapper or not before or not before[-1].startswith("-") or before[-1] == "--"


def _of_ranks(words: Sequence[str], place: int, environment: Mapping[str, str]) -> Launcher | None:
    """Reads a launcher of ranks at a place; None where python starts a script there."""
    name, behind = words[place], list(words[place + 1 :])
    if PurePath(name).name not in _RANKS and set(_MODULES).isdisjoint(behind):
        return None
    if PurePath(name).name == "accelerate-launch":
        name, behind = "accelerate", ["launch", *behind]
    modules = [at for at, word in enumerate(behind, 1) if word in TORCHRUN_MODULES]
    if modules or PurePath(name).name == "torchrun":  # it takes the defaults of its options from PET_*
        at = modules[0] if modules else 0
        for option in ("--nproc-per-node", "--nnodes"):
            if value := environment.get(f"PET_{option[2:].replace('-', '_').upper()}"):
                behind[at:at] = [option, value]
    counts = [f"{key}={environment[key]}" for key in ("NNODES", "NPROC_PER_NODE") if environment.get(key)]
    launch = read_launch([*counts, name, *behind])
    if launch.name in ("", "python"):
        return None
    program = len(words) - len(launch.program)
    if program <= place or tuple(words[program:]) != launch.program:
        program = place + 1  # a tool's own command, behind its name
    return Launcher(launch.name, launch.ranks, program, launch.tool)


def _of_tasks(words: Sequence[str], place: int, environment: Mapping[str, str]) -> Launcher:
    """Reads srun or mpirun at a place: the tasks by its own option, else by the allocation."""
    name = PurePath(words[place]).name
    is_srun = name == "srun"
    options, program = _options(words, place + 1, is_srun=is_srun)
    typed = options.keys() & ({"n", "ntasks"} if is_srun else {"n", "np", "c"})
    is_open = ":" in words[program:] or any(key.startswith(_PER_NODE) for key in options)
    if typed:
        number = _number(options[min(typed)]) if ":" not in words[program:] else None
    else:
        is_open = is_open or bool(environment.get("SLURM_STEP_NUM_TASKS"))
        number = None if is_open else _number(environment.get("SLURM_NTASKS"))
    nodes = _number(options.get("N", options.get("nodes"))) if is_srun else None
    gpus = _number(re.split("[:=]", options.get("gpus-per-task", ""))[-1])
    return Launcher(name, number, program, None, True, nodes, gpus)


def _options(words: Sequence[str], place: int, *, is_srun: bool) -> tuple[dict[str, str], int]:
    """Reads the options of srun or mpirun, and the place of the program behind them."""
    options: dict[str, str] = {}
    switches = (_SRUN_SWITCHES if is_srun else _MPI_SWITCHES).split()
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        place += 1
        name, equals, value = word.lstrip("-").partition("=")
        if word == "--":
            break
        if is_srun and not word.startswith("--"):
            letters = word[1:].lstrip(_SRUN_LETTERS)
            if not letters:
                continue
            name, value, equals = letters[0], letters[1:].removeprefix("="), letters[1:]
        elif name in switches:
            continue
        if name in _MPI_PAIRS and not is_srun:
            place += 2
        elif not equals and place < len(words) and not _starts(words[place]):
            value = words[place]
            place += 1
        options[name] = value
    return options, place


def _starts(word: str) -> bool:
    """Tells whether a word is a program, also behind an option of an unknown kind."""
    name = PurePath(word).name
    return (
        name in (*_TASKS, *_RANKS, *_UNREAD) or bool(PYTHON.fullmatch(name)) or word.startswith(("-", "./"))
    )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and 0 < int(text) < 2**31 else None


def _in_text(text: str, end: int, environment: Mapping[str, str]) -> Launcher | None:
    """Finds the last launcher in the text of a shell; where several start different numbers, it is open."""
    launchers: list[Launcher] = []
    for command in re.split(r"[;&|()\n]+", text.replace("\\\n", " ")):
        words = command.split()
        if words and not words[0].startswith(("#", "echo", "printf")):
            with suppress(InputError):  # a part of a line, such as one in front of $(…)
                launchers += filter(None, [read_launcher(words, environment)])
    if not launchers:
        return None
    numbers = {launcher.number for launcher in launchers}
    number = launchers[-1].number if len(numbers) == 1 else None
    return launchers[-1]._replace(program=end, tool=None, number=number)
