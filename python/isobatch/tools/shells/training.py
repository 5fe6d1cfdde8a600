"""The training command of a shell script, and its flags."""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.page import Unknown
from isobatch.tools.shells.execution import Execution
from isobatch.tools.shells.launches import Launch
from isobatch.tools.shells.state import Marks, Shell, Value, is_known, is_mark
from isobatch.tools.unread import guess_field
from isobatch.words import few

_BATCHES = ("batch", "batch_per_gpu", "effective_batch")
_TRAINING = {"lr", "duration", "accumulation", "warmup", "schedule"}
_LISTS = {"rampup_batch_size", "step_batch_size_schedule", "betas", "adam_betas", "adam_beta", "milestones"}
"""Flags of several values, one of which may be a variable's."""
_SWITCHES = {"bf16", "fp16", "tf32"}
"""Flags that may stand without a value: a variable behind one is a word of its own."""
_SBATCH = re.compile(
    r"(?<=\s)(--(?:nodes|ntasks|ntasks-per-node|gpus-per-node|cpus-per-task)(?==|\s)|--gres(?=[=\s]gpu)|-[Nnc])[=\s]?\s*(\S+)"
)
_SLURM = {
    "nodes": "SLURM_NNODES SLURM_JOB_NUM_NODES",
    "ntasks": "SLURM_NTASKS SLURM_NPROCS",
    "ntasks-per-node": "SLURM_NTASKS_PER_NODE",
    "gpus-per-node": "SLURM_GPUS_ON_NODE",
    "cpus-per-task": "SLURM_CPUS_PER_TASK",
}
"""Variables of a job by the option of sbatch that sets them."""
_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "gres": "gpus-per-node"}
SWIFT = "swift"
"""Of ms-swift's command, what it does: its flags are TRL's, under other defaults."""
_SWIFT = ("pt", "sft", "rlhf")
_SWIFT_FILE = re.compile(r"swift/cli/(pt|sft|rlhf)\.py$")
_FLAG = re.compile(r"--[A-Za-z]")
_ERREXIT = re.compile(r"#!.*sh(?:[ \t]+-\w*)*[ \t]+-\w*e")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=")
"""Hydra's: `trainer.nnodes=2`, with `+` for a name that is new."""


def arguments(text: str, *, line: int | None = None, notes: list[str] | None = None) -> dict[str, Any]:
    """Each `--flag` of a script's training command, with underscores for dashes: its value, a list of several, or True where it has
    none. Of a flag that comes twice the last counts, as for argparse.

    The values are those that bash would give the command; nothing is run. What only the run knows, such as `$SLURM_NNODES`, is an
    `Unknown`, which says why.

    Args:
        line: of the training command, where there are several.
        notes: filled with what the script leaves open.

    Raises:
        InputError: the script cannot be read, or has several trainings; the message has the lines.

    >>> arguments("B=8\\ntorchrun t.py --micro-batch-size $B --bf16 --split 1,2 --adam-beta1=0.9\\nB=16")
    {'micro_batch_size': '8', 'bf16': True, 'split': '1,2', 'adam_beta1': '0.9'}
    """
    slurm = _of_slurm(text)
    execution, shell = Execution(), Shell(dict(slurm), set(slurm), errexit=_ERREXIT.match(text) is not None)
    execution.run(text, shell)
    said = notes if notes is not None else []
    launches = trainings(execution, line)
    if not launches:
        return _held_flags(execution, shell, said)
    found = _together([_settings(it, execution.marks, said) for it in launches], launches[0].line)
    said += execution.unread
    if when := "; ".join(launches[0].when):
        said.append(f"line {launches[0].line}: the training runs only under a condition: {when}")
    if used := [f"{name}={slurm[name]}" for name in slurm if name in execution.expansion.read]:
        said.append(f"as its #SBATCH lines ask, where sbatch is told nothing else: {few(used)}")
    if execution.expansion.defaults:
        taken = [f"{name}={value}" for name, value in execution.expansion.defaults.items() if is_known(value)]
        said.append(f"the script's own values, where the environment has no other: {few(taken)}")
    return found


def _settings(launch: Launch, marks: Marks, notes: list[str]) -> dict[str, Any]:
    """The flags of a launch; of ms-swift, which starts its processes by variables, these too, as its YAML files have them.

    Raises:
        InputError: it is ms-swift's Megatron, which has Megatron's names and defaults of its own; or a file has its settings.
    """
    found, command = flags(launch.words, marks, notes), _swift(launch)
    if command is None:
        return found
    if command[0] == "megatron":
        raise InputError(
            f"line {launch.line} runs `megatron {command[1]}` of ms-swift, whose defaults are not Megatron-LM's: give the run as a recipe"
        )
    if (file := _swift_settings(launch.words, found)) is not None:
        given = sorted(found.keys() - {"config"})
        also = f"; give what the command says beside it ({few(given)}) by --set" if given else ""
        raise InputError(
            f"line {launch.line} runs `{SWIFT} {command[1]}` with the settings of {file}: name that file instead{also}, and the processes by "
            "--set gpus=N where it has no ENV"
        )
    environment = {name: _value(value, marks) for name, value in launch.environment}
    return {**found, SWIFT: command[1], "ENV": environment}


def _swift(launch: Launch) -> tuple[str, str] | None:
    """ms-swift's command and what it does: ("swift", "rlhf"); None of another program."""
    for word, behind in pairwise((*launch.words, "")):
        name = PurePosixPath(word).name
        if name in (SWIFT, "megatron") and behind in _SWIFT:
            return name, behind
        if file := _SWIFT_FILE.search(word):
            return SWIFT, file[1]
    return None


def _swift_settings(words: Sequence[str], found: dict[str, Any]) -> str | None:
    """The file from which ms-swift takes its settings, the value of --config or the word behind the command; None where flags have them."""
    if "config" in found:
        return str(found["config"])
    behind = (after for word, after in pairwise(words) if word in _SWIFT or _SWIFT_FILE.search(word))
    return next((word for word in behind if PurePosixPath(word).suffix in (".yaml", ".yml", ".json")), None)


def _of_slurm(text: str) -> dict[str, Value]:
    """The variables that Slurm sets after the script's own #SBATCH lines, those before its first command; a range of nodes sets none.

    >>> _of_slurm("#!/bin/bash\\n#SBATCH --nodes=4 --gres=gpu:a100:8\\n#SBATCH -N 1-2\\nls\\n#SBATCH -n 3")
    {'SLURM_GPUS_ON_NODE': '8'}
    """
    asked: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            for option in _SBATCH.finditer(line.partition(" #")[0]):
                name = option[1].strip("-")
                asked[_SHORT.get(name, name)] = option[2]
    numbers = {name: value.rpartition(":")[2] for name, value in asked.items()}
    numbers = {name: value for name, value in numbers.items() if value.isdecimal()}
    if "ntasks" not in numbers and {"nodes", "ntasks-per-node"} <= numbers.keys():
        numbers["ntasks"] = str(int(numbers["nodes"]) * int(numbers["ntasks-per-node"]))
    found = {name: variables.split() for name, variables in _SLURM.items() if name in numbers}
    return {variable: numbers[name] for name, variables in found.items() for variable in variables}


def trainings(execution: Execution, line: int | None) -> list[Launch]:
    """The launches of one line, the training's."""
    likely = candidates(execution)
    lines = sorted({it.line for it in likely})
    if line is not None and line in lines:
        lines = [line]
    elif line is not None:
        raise InputError(f"has no training command in line {line}{': ' + _listed(likely) if likely else ''}")
    if len(lines) > 1:
        raise InputError(
            f"starts {len(lines)} trainings: {_listed(likely)}. Name one by its line, as in script.sh:{lines[0]}"
        )
    return [it for it in dict.fromkeys(likely) if it.line in lines]


def candidates(execution: Execution) -> list[Launch]:
    """The commands that train; where none seems to, those with a setting of a training at all."""
    launches = execution.launches
    return [it for it in launches if is_training(it)] or [it for it in launches if kinds(it)]


def _listed(launches: Iterable[Launch]) -> str:
    """Each training by its line, with what it differs in."""
    shown: dict[int, str] = {}
    for launch in launches:
        condition = f", if {launch.when[-1].removeprefix('if ')}" if launch.when else ""
        name = next((it for it in launch.words if it.endswith(".py") and is_known(it)), launch.words[0])
        name = name if is_known(name) else "a command"
        shown.setdefault(launch.line, f"line {launch.line} ({name}{condition})")
    return ", ".join(shown[line] for line in sorted(shown))


def kinds(launch: Launch) -> set[str]:
    """What its flags seem to be about: a batch, a learning rate, a length."""
    fields = {guess_field(found[0]) for word in launch.words if (found := setting(word))}
    return {"batch" if field in _BATCHES else field for field in fields if field is not None}


def is_training(launch: Launch) -> bool:
    """A learning rate beside a batch or a length, or ms-swift's own command; an evaluation has a batch alone."""
    return _swift(launch) is not None or len(kinds(launch) & (_TRAINING | {"batch"})) >= 2


def flags(words: Sequence[str], marks: Marks, notes: list[str]) -> dict[str, Any]:
    """The flags of a command; words up to the next flag are its values."""
    found: dict[str, list[Any]] = {}
    flag = ""
    for word in words:
        if (named := setting(word)) is not None:
            flag, value = named
            found[flag] = [] if value is None else [_value(value, marks)]
        elif word == "--":
            flag = ""
        elif word and all(map(is_mark, word)) and _stands_alone(flag, found):
            reason = marks.reason(word)
            notes.append(f"{reason.source}, {reason.why}: flags in it are not read" if reason else word)
            flag = ""
        elif flag and word:
            found[flag].append(_value(word, marks))
    return {
        name: True if not values else values[0] if len(values) == 1 else values
        for name, values in found.items()
    }


def setting(word: str) -> tuple[str, str | None] | None:
    """The name in a flag or in an override of Hydra's, and its value, None where that is no part of the word; None for another word.

    >>> setting("--micro-batch=8"), setting("--bf16"), setting("+data.train_batch_size=64"), setting("a=1")
    (('micro_batch', '8'), ('bf16', None), ('data.train_batch_size', '64'), None)
    """
    override, (name, equals, value) = _OVERRIDE.match(word), word.partition("=")
    if not is_known(name) or not (override or _FLAG.match(word)):
        return None
    return (override[1] if override else name[2:].replace("-", "_")), value if equals else None


def _stands_alone(flag: str, found: dict[str, list[Any]]) -> bool:
    """Whether a word that is not known is no value of the flag before it."""
    return not flag or flag in _SWITCHES or (bool(found[flag]) and flag not in _LISTS)


def _value(word: str, marks: Marks) -> Any:
    reason = marks.reason(word)
    if reason is not None:
        shown = marks.shown(word)
        inside = "" if shown == reason.source else f"{reason.source}, "
        return Unknown(why=f"is {shown}, {inside}{reason.why}")
    if word[:1] in ("{", "["):
        try:
            return json.loads(word)
        except ValueError:
            pass
    return word


def _together(runs: Sequence[dict[str, Any]], line: int) -> dict[str, Any]:
    """The flags of a command that runs several times, with other values each."""
    out = dict(runs[0])
    for name in {name for run in runs for name in run}:
        values = [run.get(name) for run in runs]
        if all(it == values[0] for it in values) or all(isinstance(it, Unknown) for it in values):
            continue
        first, *others = dict.fromkeys(str(run.get(name, "none")) for run in runs)
        out[name] = Unknown(why=f"is {first} in one run of line {line}, {few(others)} in others")
    return out


def _held_flags(execution: Execution, shell: Shell, notes: list[str]) -> dict[str, Any]:
    """The flags that variables hold, of a script that starts no training: a part of one."""
    words: list[str] = []
    names = [name for name in shell.variables if name not in execution.expansion.read]
    for name in names:
        value = shell.variables[name]
        listed = value.split() if isinstance(value, str) else value or ()
        if any(_FLAG.match(word) for word in listed):
            words += listed
            notes.append(f"no command in it trains: the flags that {name} holds are read")
    for launch in execution.launches:
        words += launch.words
    return flags(words, execution.marks, notes)
