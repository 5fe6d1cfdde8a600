"""The training command of a shell script, and its flags."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.page import Unknown
from isobatch.tools.shells.configs import SWIFT, configured, swift_command
from isobatch.tools.shells.directives import group_of, job_components, job_variables
from isobatch.tools.shells.execution import Execution
from isobatch.tools.shells.launches import DEVICES, LAUNCHERS, Launch
from isobatch.tools.shells.state import Marks, Shell, is_known, is_mark
from isobatch.tools.unread import guess_field
from isobatch.words import few

_BATCHES = ("batch", "batch_per_gpu", "effective_batch")
_TRAINING = {"lr", "duration", "accumulation", "warmup", "schedule"}
_LISTS = {"rampup_batch_size", "step_batch_size_schedule", "betas", "adam_betas", "adam_beta", "milestones"}
"""Flags of several values, one of which may be a variable's."""
_SWITCHES = {"bf16", "fp16", "tf32"}
"""Flags that may stand without a value: a variable behind one is a word of its own."""
_FLAG = re.compile(r"--[A-Za-z]")
_PROCESSES = ("nnodes", "nproc_per_node", "num_processes")
_EACH_NODES = frozenset({"nproc_per_node", "num_gpus"})
_NODES = frozenset({"nnodes", "num_nodes", "num_machines"})
_PLAIN_OVERRIDE = re.compile(r"[A-Za-z_]\w*=")
_LAST_BACKSLASH = re.compile(r"(?<!\\)((?:\\\\)*)\\\Z")
"""Bash drops a backslash at the very end of a file."""
_ERREXIT = re.compile(r"#!.*sh(?:[ \t]+-\w*)*[ \t]+-\w*e")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=")
"""Hydra's: `trainer.nnodes=2`, with `+` for a name that is new."""


class FileNamedError(InputError):
    """A launch line with its settings in a file: the file is to be named."""


def arguments(
    text: str, *, line: int | None = None, notes: list[str] | None = None, beside: Sequence[str] = ()
) -> dict[str, Any]:
    """Each `--flag` of a script's training command, with underscores for dashes: its value, a list of
    several, or True where it has none. Of a flag that comes twice the last counts, as for argparse.

    The values are those that bash would give the command; nothing is run. What only the run knows, such as
    `$SLURM_NNODES`, is an `Unknown`, which says why.

    Args:
        line: of the training command, where there are several.
        notes: filled with what the script leaves open.
        beside: the names of files that are read too.

    Raises:
        InputError: the script cannot be read, or has several trainings; the message has the lines.

    >>> arguments("B=8\\ntorchrun t.py --micro-batch-size $B --bf16 --split 1,2 --adam-beta1=0.9\\nB=16")
    {'micro_batch_size': '8', 'bf16': True, 'split': '1,2', 'adam_beta1': '0.9'}
    """
    text = _LAST_BACKSLASH.sub(r"\1", text)
    components = job_components(text)
    slurm = job_variables(components)
    execution, shell, launches = _launches(text, slurm, line)
    groups = {group_of(" ".join(launch.words)) for launch in launches}
    if len(components) > 1 and not any(map(_names_group, launches)) and group_of(text) != 0:
        # A shell inside of srun sees the variables of its own component, and srun's words are not with it.
        slurm = {name: value for name, value in slurm.items() if "_HET_GROUP_" in name}
        execution, shell, launches = _launches(text, slurm, line)
    notes = notes if notes is not None else []
    if not launches:
        return _variables_flags(execution, shell, notes, beside)
    settings = _together(
        [_settings(launch, execution.marks, notes, beside) for launch in launches], launches[0].line
    )
    group = groups.pop() if len(groups) == 1 else None
    component = components[group] if group is not None and group < len(components) else {}
    _count_processes(settings, launches[0], component)
    notes += execution.unread
    if when := "; ".join(launches[0].when):
        notes.append(f"line {launches[0].line}: the training runs only under a condition: {when}")
    if used := [f"{name}={slurm[name]}" for name in slurm if name in execution.expansion.read]:
        is_first = len(components) > 1 and not any("_HET_GROUP_" in name for name in used)
        first = " (first component)" if is_first else ""
        notes.append(f"from its #SBATCH lines{first}, unless sbatch is given others: {few(used)}")
    if execution.expansion.defaults:
        defaults = [
            f"{name}={value}" for name, value in execution.expansion.defaults.items() if is_known(value)
        ]
        notes.append(f"the script's own values, unless the environment has others: {few(defaults)}")
    return settings


def _names_group(launch: Launch) -> bool:
    """Tells whether a launch names its component of a heterogeneous job."""
    return any(word.startswith(("--het-group", "--pack-group")) for word in launch.words)


def _launches(text: str, slurm: dict[str, str], line: int | None) -> tuple[Execution, Shell, list[Launch]]:
    """Follows the script, and finds its training."""
    execution = Execution()
    shell = Shell(dict(slurm), set(slurm), errexit=_ERREXIT.match(text) is not None)
    execution.run(text, shell)
    return execution, shell, trainings(execution, line)


def _count_processes(settings: dict[str, Any], launch: Launch, component: dict[str, str]) -> None:
    """Replaces torchrun's `gpu` and `auto` by the GPUs of a node, as the script has them."""
    value = settings.get("nproc_per_node")
    word, *behind = value if isinstance(value, list) else [value]
    if word not in ("gpu", "auto"):
        return
    devices = dict(launch.environment).get(DEVICES)
    processes: Any = Unknown(why=f"is {word}, one for each GPU of a node")
    if devices is not None and is_known(devices):
        processes = str(len(devices.split(",")))
    elif "gpus-per-node" in component:
        processes = component["gpus-per-node"]
    settings["nproc_per_node"] = [processes, *behind] if behind else processes


def _settings(launch: Launch, marks: Marks, notes: list[str], beside: Sequence[str]) -> dict[str, Any]:
    """Returns the flags of a launch; for ms-swift also its variables for processes, as in its YAML files."""
    settings, command = flags(launch.words, marks, notes), swift_command(launch.words)
    if command is not None and command[0] == "megatron":
        raise FileNamedError(
            f"line {launch.line} runs `megatron {command[1]}` of ms-swift, whose defaults are not "
            "Megatron-LM's: give the run as a recipe"
        )
    refuse_configured([launch], marks, beside)
    if command is None:
        return settings
    environment = {name: _value(value, marks) for name, value in launch.environment if name in LAUNCHERS}
    return {**settings, SWIFT: command[1], "ENV": environment}


def refuse_configured(launches: Sequence[Launch], marks: Marks, beside: Sequence[str]) -> None:
    """Raises an InputError naming the settings file of a command."""
    files = [(launch, configured(launch.words)) for launch in launches]
    files = [
        (launch, command)
        for launch, command in files
        if command and (command.is_tool or "batch" not in kinds(launch))
    ]
    for launch, command in sorted(files, key=lambda pair: pair[1] is None or not pair[1].is_tool):
        if command is None:
            continue
        settings = {name: _first(value) for name, value in flags(launch.words, marks, []).items()}
        names = [named[0] for word in command.arguments if (named := setting(word))]
        names = [name for name in names if name not in _PROCESSES]
        names += [word.partition("=")[0] for word in command.arguments if _PLAIN_OVERRIDE.match(word)]
        if PurePosixPath(command.file).name in beside and not names:
            continue
        fields = [f"{field} ({name})" for name in names if (field := _field_given(name))]
        also = f"; add {few(fields)} from the command by --set" if fields else ""
        processes = _processes(settings)
        launcher = settings.get("config_file")
        of_launcher = (
            f", and --from {launcher} for accelerate's processes"
            if isinstance(launcher, str) and launcher != command.file
            else f", and the processes by --set gpus={processes}"
        )
        raise InputError(
            f"line {launch.line} runs `{command.command}` with the settings of {marks.shown(command.file)}: "
            f"name that file instead{also}{of_launcher}"
        )


def _field_given(name: str) -> str | None:
    """The field of a recipe, as `--set` takes it, for a setting; None where no plan has one."""
    field = guess_field(name)
    return "batch_per_gpu" if field == "batch" else field


def _processes(settings: dict[str, Any]) -> str:
    """The processes of a launch line as a text; N where it does not say."""
    nodes, each, total = (settings.get(name) for name in _PROCESSES)
    nodes = "1" if nodes is None else nodes
    if isinstance(nodes, str) and isinstance(each, str) and nodes.isdecimal() and each.isdecimal():
        return str(int(nodes) * int(each))
    return total if isinstance(total, str) else "N"


def _first(value: Any) -> Any:
    """The first of several words behind a flag: the script's name may follow a launcher's last value."""
    return value[0] if isinstance(value, list) and value else value


def trainings(execution: Execution, line: int | None) -> list[Launch]:
    """The launches of one line, the training's."""
    likely = candidates(execution)
    lines = sorted({launch.line for launch in likely})
    if line is not None and line in lines:
        lines = [line]
    elif line is not None:
        raise InputError(f"has no training command in line {line}{': ' + _listed(likely) if likely else ''}")
    if len(lines) > 1:
        raise InputError(
            f"starts {len(lines)} trainings: {_listed(likely)}. Name one by its line, as in "
            f"script.sh:{lines[0]}"
        )
    return [launch for launch in dict.fromkeys(likely) if launch.line in lines]


def candidates(execution: Execution) -> list[Launch]:
    """Lists the training commands; where none is clear, any with a setting of a training."""
    launches = execution.launches
    return [launch for launch in launches if is_training(launch)] or [
        launch for launch in launches if kinds(launch)
    ]


def _listed(launches: Iterable[Launch]) -> str:
    """Lists trainings by line, script and condition."""
    shown: dict[int, str] = {}
    for launch in launches:
        condition = f", if {launch.when[-1].removeprefix('if ')}" if launch.when else ""
        name = next(
            (word for word in launch.words if word.endswith(".py") and is_known(word)), launch.words[0]
        )
        name = name if is_known(name) else "a command"
        shown.setdefault(launch.line, f"line {launch.line} ({name}{condition})")
    return ", ".join(shown[line] for line in sorted(shown))


def kinds(launch: Launch) -> set[str]:
    """Guesses the subjects of a launch's flags: a batch, a learning rate, a length."""
    fields = {guess_field(named[0]) for word in launch.words if (named := setting(word))}
    return {"batch" if field in _BATCHES else field for field in fields if field is not None}


def is_training(launch: Launch) -> bool:
    """A learning rate beside a batch or a length, or ms-swift's own command; a batch alone is no training."""
    return swift_command(launch.words) is not None or len(kinds(launch) & (_TRAINING | {"batch"})) >= 2


def flags(words: Sequence[str], marks: Marks, notes: list[str]) -> dict[str, Any]:
    """The flags of a command; words up to the next flag are its values."""
    settings: dict[str, list[Any]] = {}
    flag, nodes = "", None  # what may hold the nodes: unread flags in front of the script
    is_launcher = True
    for word in words:
        is_launcher = is_launcher and word != "-m" and not word.endswith(".py")
        if (named := setting(word)) is not None:
            flag, value = named
            settings[flag] = [] if value is None else [_value(value, marks)]
        elif word == "--":
            flag = ""
        elif word and all(map(is_mark, word)) and _stands_alone(flag, settings):
            reason = marks.reason(word)
            notes.append(f"{reason.source}, {reason.why}: flags in it are not read" if reason else word)
            flag, nodes = "", word if is_launcher else nodes
        elif flag and word:
            settings[flag].append(_value(word, marks))
    if nodes and _EACH_NODES.intersection(settings) and _NODES.isdisjoint(settings):
        settings["nnodes"] = [_value(nodes, marks)]
    return {
        name: True if not values else values[0] if len(values) == 1 else values
        for name, values in settings.items()
    }


def setting(word: str) -> tuple[str, str | None] | None:
    """Returns the name and value of a flag or a Hydra override (value None if separate); None for another
    word.

    >>> setting("--micro-batch=8"), setting("--bf16"), setting("+data.train_batch_size=64"), setting("a=1")
    (('micro_batch', '8'), ('bf16', None), ('data.train_batch_size', '64'), None)
    """
    override, (name, equals, value) = _OVERRIDE.match(word), word.partition("=")
    if not is_known(name) or not (override or _FLAG.match(word)):
        return None
    return (override[1] if override else name[2:].replace("-", "_")), value if equals else None


def _stands_alone(flag: str, settings: dict[str, list[Any]]) -> bool:
    """Tells whether an unknown word is no value of the flag before it."""
    return not flag or flag in _SWITCHES or (bool(settings[flag]) and flag not in _LISTS)


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
    """Merges the flags of a command run several times with different values."""
    out = dict(runs[0])
    for name in {name for run in runs for name in run}:
        values = [run.get(name) for run in runs]
        if all(value == values[0] for value in values) or all(isinstance(value, Unknown) for value in values):
            continue
        first, *rest = dict.fromkeys(str(run.get(name, "none")) for run in runs)
        out[name] = Unknown(why=f"is {first} in one run of line {line}, {few(rest)} in others")
    return out


def _variables_flags(
    execution: Execution, shell: Shell, notes: list[str], beside: Sequence[str]
) -> dict[str, Any]:
    """Returns the flags held by variables, for a part of a script without a training."""
    refuse_configured(execution.launches, execution.marks, beside)
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
    settings = flags(words, execution.marks, notes)
    if not settings and not beside:
        raise InputError(
            "has no command with settings of a training: name the script that starts it, or its configuration"
        )
    return settings
