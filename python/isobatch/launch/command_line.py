"""Launchers of training commands: the program they start, and its start on ranks of this machine's CPU.

Whatever the launcher, several ranks are started by torchrun: `accelerate launch` starts one process on a CPU
whatever its options say, unless it hands the settings of DeepSpeed on, and the commands of axolotl,
LLaMA-Factory, TRL and ms-swift start a launcher of their own around one of their modules.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from isobatch.errors import InputError, missing
from isobatch.launch.words import given_settings

TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_SWITCHES = {
    "torchrun": "standalone m module no_python run_path virtual_local_rank h help",
    "accelerate": "q quiet cpu multi_gpu tpu ipex use_xpu enable_cpu_affinity dynamo_use_fullgraph "
    "dynamo_use_dynamic dynamo_use_regional_compilation use_deepspeed use_fsdp use_parallelism_config "
    "use_megatron_lm same_network m module no_python tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 "
    "fp8_use_autocast_during_eval debug h help",
    "deepspeed": "module no_python no_local_rank no_ssh no_ssh_check force_multi bind_cores_to_rank "
    "elastic_training h help",
}
"""Options that take no value, by launcher; every other option in front of the program takes one."""
_PLACES = ("standalone", "nnodes", "nproc_per_node", "node_rank", "local_addr", "master_addr", "master_port")
"""Options of torchrun that say where its processes run; those of a rendezvous begin with `rdzv`."""
_TOOLS = {
    "axolotl": ("axolotl", "train", "axolotl.cli.train"),
    "llamafactory-cli": ("llama_factory", "train", "llamafactory.launcher"),
    "llamafactory": ("llama_factory", "train", "llamafactory.launcher"),
    "trl": ("trl", "", "trl.scripts."),
    "swift": ("ms_swift", "", "swift.cli."),
}
"""By command: the tool, the action for training (empty: it ends the module's name), and its module."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "tune", *_TOOLS)
"""Commands that start ranks."""
_WRAPPERS = (
    *("uv", "poetry", "pdm", "pixi", "conda", "micromamba", "hatch", "rye"),
    *("nohup", "time", "nice", "numactl"),
)
PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?t?(\.exe)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
CPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_MIXED_PRECISION": "no",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""The environment of a start on the CPU; without it Accelerate does not take gloo."""


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A command line taken apart."""

    environment: Mapping[str, str] = {}
    """Assignments in front of the command."""
    name: str
    """The launcher's; empty for a program that starts by itself."""
    head: tuple[str, ...] = ()
    """Words in front of torchrun's options, for several ranks: `torchrun`, or `python -m …`."""
    options: tuple[str, ...] = ()
    """Options of the launcher that stay, as torchrun takes them."""
    program: tuple[str, ...]
    """The script or module and its arguments."""
    ranks: int | None
    """As typed; None where the command leaves the number to the machine, or does not say it as a number."""
    tool: str | None = None
    """The tool that the command belongs to."""
    needs_torchrun: bool = True
    """Whether one rank is started by torchrun too, since the program reads its variables."""
    alone: tuple[str, ...] = ()
    """Words in front of the program where one rank starts without torchrun."""
    hands_on: bool = False
    """Whether `head` is `accelerate launch` itself, since it tells the program how DeepSpeed is set."""
    notes: tuple[str, ...] = ()
    """On what a CPU starts otherwise than the command says."""

    def start(self, ranks: int, program: Sequence[str], *, itself: bool) -> list[str]:
        """Returns the words to start ranks of one node on a free port; `itself`: the program starts them."""
        if (ranks == 1 and not self.needs_torchrun) or (itself and self.name in ("", "python")):
            return [*self.alone, *program]
        if not self.head:
            raise missing("{gpus}", f"write it where {program[0]} takes its number of processes")
        if self.hands_on:  # of an option that is given twice, the last one counts
            counts = f"--num_processes {ranks} --num_machines 1 --main_process_port 0 --mixed_precision no"
            return [*self.head, *self.options, *counts.split(), *program]
        # Port 0: the rendezvous takes a free one itself, so that no other start can take it in between.
        place = ["--nnodes", "1", "--nproc-per-node", str(ranks), "--local-addr", "127.0.0.1"]
        place += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        return [*self.head, *place, *self.options, *program]


def read_launch(words: Sequence[str]) -> CommandLine:
    """Takes a command line apart; an InputError if it is empty, or names no program."""
    words, environment = [*words], {}
    while words:
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment is not None:
            environment[assignment[1]] = assignment[2]
        elif PurePosixPath(words[0]).name != "env":
            break
        del words[0]
    if not words:
        raise missing(
            "the command", "write it behind --, as in isobatch same -- torchrun --nproc-per-node 2 train.py"
        )
    names = [PurePosixPath(word).name for word in words]
    at = 0
    if names[0] in _WRAPPERS:
        places = (at for at, name in enumerate(names) if name in LAUNCHERS or PYTHON.fullmatch(name))
        at = next(places, 0)
    wrapper = tuple(words[:at])
    launch = _read_launcher(names[at], words[at:])
    ranks = launch.ranks
    if ranks is None and launch.tool is not None:  # LLaMA-Factory and ms-swift read it
        ranks = _product(environment.get("NNODES", "1"), environment.get("NPROC_PER_NODE"))
    return msgspec.structs.replace(
        launch,
        ranks=ranks,
        environment=environment,
        head=(*wrapper, *launch.head) if launch.head else (),
        alone=(*wrapper, *launch.alone),
    )


def require_command(words: Sequence[str]) -> None:
    """Refuses a missing program, in the words of a shell; PATH may stand in front of the command."""
    words, path = [*words], os.environ.get("PATH")
    while words and (PurePosixPath(words[0]).name == "env" or _ASSIGNMENT.fullmatch(words[0])):
        name, _, value = words.pop(0).partition("=")
        path = value if name == "PATH" else path
    names = [PurePosixPath(word).name for word in words]
    inner = []
    if names and names[0] in _WRAPPERS[-4:]:  # the others have an environment of their own
        inner = [word for word, name in zip(words, names, strict=True) if name == "torchrun"][:1]
    for word in [*words[:1], *inner]:
        if "{" in word or shutil.which(word, path=path) is not None:
            continue
        if "/" in word:
            reason = "permission denied" if Path(word).exists() else "no such file or directory"
            raise InputError(f"{word}: {reason}")
        hint = ": install torch first" if word == "torchrun" else ""
        raise InputError(f"{word}: command not found{hint}")


def _read_launcher(name: str, words: Sequence[str]) -> CommandLine:
    if PYTHON.fullmatch(name):
        return _read_python(words)
    if name == "torchrun":
        return _read_torchrun((words[0],), words[1:])
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _read_accelerate(words[:2], _beside(words[0]), words[2:])
    if name == "deepspeed":
        return _read_deepspeed(_beside(words[0]), words[1:])
    if name == "tune" and words[1:2] == ["run"]:
        # torchrun's options stand in front of the recipe; without them it starts one process.
        alone = tuple(words[:2])
        launch = _read_torchrun(alone, words[2:], tool="torchtune", name="tune", alone=alone)
        return msgspec.structs.replace(launch, needs_torchrun=words[2].startswith("-"))
    if name in _TOOLS:
        return _read_tool(name, words)
    if interpreter := interpreter_of(words[0]):
        return _read_python([interpreter, str(shutil.which(words[0])), *words[1:]])
    return CommandLine(name="", program=tuple(words), ranks=None, needs_torchrun=False)


def interpreter_of(command: str) -> str:
    """Returns the Python named by a command's file, as by an entry point; else nothing.

    pip has a shell start a Python whose path is too long for a first line.
    """
    path = shutil.which(command)
    if path is None:
        return ""
    with Path(path).open("rb") as file:
        first, _, second = file.read(2048).decode(errors="replace").partition("\n")
    line = second.partition("\n")[0] if first == "#!/bin/sh" else first
    if not line.startswith(("#!", "'''exec")):
        return ""
    words = [word.strip('"') for word in line.removeprefix("#!").split()]
    return next((word for word in words if PYTHON.fullmatch(PurePosixPath(word).name)), "")


def _beside(command: str) -> tuple[str, ...]:
    """Returns the torchrun of the command's own environment, perhaps not the first on the PATH."""
    place = Path(shutil.which(command) or command).parent
    if "/" not in command and Path(shutil.which("torchrun") or command).parent == place:
        return ("torchrun",)
    if (python := place / "python").exists() and not (place / "torchrun").exists():
        return (str(python), "-m", TORCHRUN_MODULES[0])
    return (str(place / "torchrun"),) if place != Path() else ("torchrun",)


def _read_python(words: Sequence[str]) -> CommandLine:
    """`python x.py`, `python -m package`, and a launcher's module."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in ("-X", "-W") else 1
    interpreter, program = tuple(words[:at]), words[at:]
    if not program:
        raise missing("the script", f"name it behind {words[0]}")
    module = program[1] if program[0] == "-m" and len(program) > 1 else ""
    torchrun = (words[0], "-m", TORCHRUN_MODULES[0])
    if module in TORCHRUN_MODULES:
        return _read_torchrun((*interpreter, "-m", TORCHRUN_MODULES[0]), program[2:])
    if module in ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"):
        at = 3 if module.endswith("cli") else 2
        return _read_accelerate([*interpreter, *program[:at]], torchrun, program[at:])
    if module in ("deepspeed.launcher.runner", "deepspeed"):
        return _read_deepspeed(torchrun, program[2:])
    return CommandLine(
        name="python",
        head=torchrun,
        options=("--no-python", *interpreter),  # torchrun starts the interpreter with its options as typed
        program=tuple(program),
        ranks=1,
        needs_torchrun=False,
        alone=interpreter,
    )


class _Option(NamedTuple):
    name: str
    value: str | None
    words: tuple[str, ...]


def _options(words: Sequence[str], launcher: str) -> tuple[list[_Option], tuple[str, ...]]:
    """Takes a launcher's options, and the program behind them."""
    switches, options, at = _SWITCHES[launcher].split(), list[_Option](), 0
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "--":
            at += 1
            break
        name, equals, value = words[at].partition("=")
        plain = name.lstrip("-").replace("-", "_")
        end = at + (1 if equals or plain in switches else 2)
        following = " ".join(words[at + 1 : end])
        own = None if plain in switches else following
        options.append(_Option(plain, value if equals else own, tuple(words[at:end])))
        at = end
    if at >= len(words):
        raise missing("the script", f"name it behind the options of {launcher}")
    return options, tuple(words[at:])


def _read_torchrun(
    head: tuple[str, ...],
    words: Sequence[str],
    *,
    tool: str | None = None,
    name: str = "torchrun",
    alone: tuple[str, ...] = (),
) -> CommandLine:
    options, program = _options(words, "torchrun")
    values = {option.name: option.value for option in options}
    ranks = _product(values.get("nnodes", "1"), values.get("nproc_per_node", "1"))
    remaining = [
        option for option in options if option.name not in _PLACES and not option.name.startswith("rdzv")
    ]
    return CommandLine(
        name=name,
        head=head,
        options=tuple(word for option in remaining for word in option.words),
        program=program,
        ranks=ranks,
        tool=tool,
        alone=alone,
    )


def _read_accelerate(own: Sequence[str], head: tuple[str, ...], words: Sequence[str]) -> CommandLine:
    """Reads `accelerate launch`, `own` words; its number of processes may be in its configuration file."""
    options, program = _options(words, "accelerate")
    values = {option.name: option.value for option in options}
    file = values.get("config_file")
    sharded: set[str] = {"use_fsdp", "use_deepspeed", "use_megatron_lm"} & values.keys()
    ranks = None
    if file is not None:
        from isobatch.tools.read import read_file

        reading = read_file(file, "accelerate")
        ranks = reading.fields.get("gpus")
        sharded |= {str(reading.settings.get("distributed_type"))} & {"FSDP", "DEEPSPEED", "MEGATRON_LM"}
    if "num_processes" in values:
        ranks = _product(values["num_processes"])
    if sharded & {"use_deepspeed", "DEEPSPEED"}:
        typed = tuple(word for option in options for word in option.words)
        return CommandLine(
            name="accelerate", head=(*own,), options=typed, program=program, ranks=ranks, hands_on=True
        )
    kinds = " and ".join(sorted(sharded))
    note = f"{kinds}: left out, since Accelerate shards on GPUs alone; started as plain ranks"
    return CommandLine(
        name="accelerate",
        head=head,
        options=_as_torchrun(values),
        program=program,
        ranks=ranks,
        notes=(note,) if sharded else (),
    )


def _as_torchrun(values: Mapping[str, str | None]) -> tuple[str, ...]:
    """Translates another launcher's options for naming a program into torchrun's."""
    module = ("-m",) if {"m", "module"} & values.keys() else ()
    return (*module, "--no-python") if "no_python" in values else module


def _read_deepspeed(head: tuple[str, ...], words: Sequence[str]) -> CommandLine:
    """Reads `deepspeed`; its program reads the local rank from the environment, without `--local_rank`."""
    options, program = _options(words, "deepspeed")
    values = {option.name: option.value for option in options}
    if "include" in values:
        from isobatch.tools.page import included_gpus

        ranks = included_gpus(values["include"] or "")
    else:
        nodes = None if "hostfile" in values else "1"  # all that the file lists
        ranks = _product(values.get("num_nodes", nodes), values.get("num_gpus"))
    return CommandLine(
        name="deepspeed", head=head, options=_as_torchrun(values), program=program, ranks=ranks
    )


def _read_tool(name: str, words: Sequence[str]) -> CommandLine:
    """Reads a tool's own command for training, as the module started by its launcher."""
    tool, action, module = _TOOLS[name]
    typed = words[1] if len(words) > 1 else ""
    if not typed or typed.startswith("-") or (action and typed != action):
        raise InputError(
            f"{words[0]} {typed}".strip()
            + f" does not train: write {words[0]} {action or 'sft'} with its settings"
        )
    program, launched = _axolotl_words(words[2:]) if tool == "axolotl" else ([*words[2:]], [])
    values = {setting.name: str(setting.value) for setting in given_settings(launched or program)}
    return CommandLine(
        name=name,
        head=_beside(words[0]),
        options=("-m",),
        program=(module if action else f"{module}{typed}", *program),
        ranks=_product(values.get("num_processes") or values.get("nproc_per_node")),
        tool=tool,
    )


def _axolotl_words(program: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates axolotl's words from its launcher's: options of the launcher, or words behind `--`."""
    at = program.index("--") if "--" in program else len(program)
    words, launched = [*program[:at]], [*program[at + 1 :]]
    for place in reversed(range(len(words))):
        name = words[place].partition("=")[0]
        if name in ("--launcher", "--num-processes", "--num_processes"):
            end = place + (1 if "=" in words[place] else 2)
            launched += words[place:end]
            del words[place:end]
        elif name in ("--accelerate", "--no-accelerate"):
            del words[place]
    return words, launched


def _product(*numbers: str | None) -> int | None:
    """Multiplies counts; None where one is no number, such as `gpu` or a brace."""
    if not all(number is not None and number.isdecimal() and int(number) > 0 for number in numbers):
        return None
    return prod(int(number or 0) for number in numbers)
