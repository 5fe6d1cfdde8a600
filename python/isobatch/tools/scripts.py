"""Python training scripts, read as their tools' own files would be.

The settings are the arguments of `TrainingArguments(…)`, Lightning's `Trainer(…)` and the like.
"""

import ast
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.calls import Configuring, Script
from isobatch.tools.names import last_part
from isobatch.tools.page import Unknown
from isobatch.tools.run_schedules import Multiple
from isobatch.tools.signatures import OPTIMIZERS, OTHERS, TRL, is_trainers
from isobatch.words import few

_OF_OPTIMIZERS = ("learning_rate", "optim", "weight_decay", "adam_beta1", "adam_epsilon", "lr_scheduler_type")
_GROUPS = {"GRPOConfig": 8, "RLOOConfig": 2}
"""TRL's own num_generations."""
_IN_BATCH = (
    "MultipleNegativesRankingLoss MultipleNegativesSymmetricRankingLoss CachedMultipleNegativesRankingLoss "
    "CachedMultipleNegativesSymmetricRankingLoss GISTEmbedLoss CachedGISTEmbedLoss MegaBatchMarginLoss "
    "NTXentLoss ClipLoss SigLipLoss"
)
"""Losses with the rest of a micro-batch as negatives.

They are of sentence-transformers, open_clip and pytorch-metric-learning.
"""
Calls = list[Configuring]


def is_script(text: str) -> bool:
    """Tells whether a Python file may configure a training."""
    names = ("TrainingArguments", "Config(", "Trainer(", "Accelerator(", "DataLoader(", "HfArgumentParser(")
    return any(name in text for name in names)


def script_settings(
    text: str, file: str, name: str, notes: list[str], flags: dict[str, Any] | None = None
) -> tuple[dict[str, Any], str]:
    """Reads the settings of a script, as in a file of its tool.

    Args:
        text: of the script.
        file: its name, for messages.
        name: the line of the call, where there are several.
        notes: filled with what was assumed.
        flags: the settings of the command line that starts the script; those that it declares are taken out.

    Returns:
        The settings, and the tool; an empty text if the script makes no known call.

    Raises:
        InputError: there are several configurations; the message has their lines.

    >>> text = "B = 4\\nargs = TrainingArguments('out', per_device_train_batch_size=B * 2)"
    >>> script_settings(text, "t.py", "", [])
    ({'output_dir': 'out', 'per_device_train_batch_size': 8}, 'transformers')
    """
    # It refuses more than ast.parse does, such as a return outside of a function.
    compile(text, file, "exec", dont_inherit=True)
    script = Script(ast.parse(text, file), flags)
    for flag in script.declared:
        flags.pop(flag, None) if flags else None
    calls = list(script.configuring.values())
    trainers = [call for call in calls if is_trainers(call.name)]
    tool = "transformers" if trainers else "lightning"
    trainers = trainers or [call for call in calls if call.name == "Trainer"]
    if not trainers and parses_all(text):
        how = "name the shell script, or the configuration, that it is started with"
        raise InputError(f"takes its arguments from the command line: {how}", file=file)
    if script.defaults:
        defaults = [
            f"{key}={value}" for key, value in script.defaults.items() if not isinstance(value, Unknown)
        ]
        notes.append(f"the script's own defaults, unless its command line gives others: {few(defaults)}")
    if not trainers:
        is_loop = any(call.name == "Accelerator" for call in calls)
        return _loop(calls, script), "accelerate" if is_loop else ""
    trainer = _chosen(trainers, file, name)
    if tool == "lightning":
        return _lightning(trainer, calls, script.intervals), tool
    settings: dict[str, Any] = {}
    if TRL.fullmatch(trainer.name):
        tool, settings["trl_config"] = "trl", trainer.name
    if trainer.name in _GROUPS:
        settings["num_generations"] = _GROUPS[trainer.name]
    losses = {last_part(call.func) for call in script.calls}
    if couplings := sorted(losses.intersection(_IN_BATCH.split())):
        settings["loss_class"] = couplings[0]
    settings |= trainer.settings
    if any(word.arg == "optimizers" for call in script.calls for word in call.keywords):
        lost = Unknown(why="is not the Trainer's: it is given optimizers=(…)")
        settings |= dict.fromkeys(_OF_OPTIMIZERS, lost)
    return settings, tool


def parses_all(text: str) -> bool:
    """Tells whether a script parses its settings into dataclasses."""
    return any(parser in text for parser in ("HfArgumentParser(", "TrlParser("))


def _chosen(trainers: Calls, file: str, name: str) -> Configuring:
    lines = {call.line: call for call in trainers}
    listed = ", ".join(f"line {call.line} ({call.name})" for call in lines.values())
    if name and int(name) not in lines:
        raise InputError(f"has no configuration in line {name}: {listed}", file=file)
    if not name and len(lines) > 1:
        text = f"has {len(lines)} configurations: {listed}. Name one by its line, as in {file}:{min(lines)}"
        raise InputError(text, file=file)
    return lines[int(name)] if name else trainers[-1]


def _schedulers(calls: Calls) -> Calls:
    excluded = (*OPTIMIZERS, *OTHERS, "Trainer")
    return [call for call in calls if call.name not in excluded and not is_trainers(call.name)]


def _lightning(trainer: Configuring, calls: Calls, intervals: Mapping[int, Any]) -> dict[str, Any]:
    """Returns the settings as LightningCLI's file has them: the Trainer's, the loader's, the optimizer's."""
    settings: dict[str, Any] = {"trainer": trainer.settings}
    if loader := _loader(calls):
        settings["data"] = loader
    optimizers = [call for call in calls if call.name in OPTIMIZERS]
    if len(optimizers) == 1:
        arguments = {key: value for key, value in optimizers[0].settings.items() if key != "params"}
        settings["optimizer"] = {"class_path": f"torch.optim.{optimizers[0].name}", "init_args": arguments}
    schedulers = _schedulers(calls)
    if schedulers and "optimizer" in settings and "max_lr" in schedulers[0].settings:
        settings["optimizer"]["init_args"]["lr"] = schedulers[0].settings["max_lr"]  # OneCycleLR's
    if len(schedulers) == 1 and intervals.get(id(schedulers[0].settings)) == "step":
        steps = trainer.settings.get("max_steps")
        arguments = {key: _resolved(value, steps) for key, value in schedulers[0].settings.items()}
        path = {"class_path": schedulers[0].name, "init_args": arguments, "interval": "step"}
        settings["lr_scheduler"] = path
    elif schedulers:
        why = f"is {schedulers[0].name} (line {schedulers[0].line}), whose steps the script decides"
        settings["lr_scheduler"] = {"class_path": Unknown(why=why)}
    return settings


def _resolved(value: Any, steps: Any) -> Any:
    """Computes a multiple of Lightning's own count of the run's steps, if the Trainer has one."""
    is_known = isinstance(value, Multiple) and type(steps) is int and steps > 0
    return int(value.number * steps) if is_known else value


def _loader(calls: Calls) -> dict[str, Any]:
    """Returns the batch of the shuffling loader, or of any loader if none shuffles."""
    loaders = [call for call in calls if call.name == "DataLoader"]
    loaders = [call for call in loaders if call.settings.get("shuffle") is True] or loaders
    sizes = {repr(call.settings.get("batch_size", 1)): call for call in loaders}
    if len(sizes) > 1:
        lines = ", ".join(f"line {call.line}" for call in sizes.values())
        return {"batch_size": Unknown(why=f"has another value in each DataLoader: {lines}")}
    return {"batch_size": loaders[0].settings.get("batch_size", 1)} if loaders else {}


def _loop(calls: Calls, script: Script) -> dict[str, Any]:
    """Returns the settings of a training loop of your own, each class's arguments under its name.

    An argument with several values is not known.
    """
    loader = _loader(calls)
    settings: dict[str, Any] = {"DataLoader": loader} if loader else {}
    names = dict.fromkeys(call.name for call in calls if call.name != "DataLoader")
    for name in names:
        tables = [call.settings for call in calls if call.name == name]
        keys = sorted({key for table in tables for key in table} - {"params", "parameters", "optimizer"})
        unknown = Unknown(why=f"has another value in each {name}")
        settings[name] = {
            key: tables[0].get(key) if len({repr(table.get(key)) for table in tables}) == 1 else unknown
            for key in keys
        }
    if "Accelerator" in settings:
        settings["Accelerator"]["prepare"] = _prepares_scheduler(script)
    return settings


def _prepares_scheduler(script: Script) -> Any:
    """Tells whether the scheduler is an argument of `accelerator.prepare`.

    Unknown if the arguments are starred.
    """
    prepared = [
        ast.unparse(item)
        for call in script.calls
        if last_part(call.func) in ("prepare", "prepare_scheduler")
        for item in call.args
    ]
    schedulers = {call.line for call in _schedulers(list(script.configuring.values()))}
    targets = [
        node for node in script.nodes if isinstance(node, ast.Assign) and node.value.lineno in schedulers
    ]
    names = {ast.unparse(target) for node in targets for target in node.targets}
    if any(text in names or "sched" in text.rpartition(".")[2].lower() for text in prepared):
        return True
    return Unknown() if any(text.startswith("*") for text in prepared) else False
