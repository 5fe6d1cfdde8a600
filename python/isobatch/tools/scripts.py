"""Python training scripts: the literals of `TrainingArguments(…)`, `SFTConfig(…)`, Lightning's `Trainer(…)` and their like, as the file
of their tool would have them. What is computed is said, with its line.
"""

import ast
from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.calls import Script
from isobatch.tools.names import Made
from isobatch.tools.page import Unknown
from isobatch.tools.signatures import OPTIMIZERS, TRAINER, TRL
from isobatch.words import few

_OF_OPTIMIZERS = ("learning_rate", "optim", "weight_decay", "adam_beta1", "adam_epsilon", "lr_scheduler_type")
_GROUPS = {"GRPOConfig": 8, "RLOOConfig": 2}
"""TRL's own num_generations."""


def is_script(text: str) -> bool:
    """Whether a Python file may make what is looked for; a configuration of mmengine does not."""
    names = (*TRAINER, *TRL, "Trainer", "Accelerator", "DataLoader", "HfArgumentParser")
    return any(f"{name}(" in text for name in names)


def script_settings(text: str, file: str, name: str, notes: list[str]) -> tuple[dict[str, Any], str]:
    """Reads the settings of a script, as the file of its tool would have them.

    Args:
        name: the line of the call, where there are several.
        notes: filled with what was taken for granted.

    Returns:
        The settings, and the tool; an empty text where the script makes nothing that is known.

    Raises:
        InputError: there are several configurations; the message has their lines.

    >>> script_settings("B = 4\\nargs = TrainingArguments('out', per_device_train_batch_size=B * 2)", "t.py", "", [])
    ({'output_dir': 'out', 'per_device_train_batch_size': 8}, 'transformers')
    """
    compile(
        text, file, "exec", dont_inherit=True
    )  # refuses more than ast.parse: a return outside of a function
    script = Script(ast.parse(text, file))
    made = list(script.made.values())
    found = [it for it in made if it.name in (*TRAINER, *TRL)]
    tool = "transformers"
    if not found:
        found, tool = [it for it in made if it.name == "Trainer"], "lightning"
    if not found:
        _refuse_command_line(text, file)
        return _loop(made), "accelerate" if any(it.name == "Accelerator" for it in made) else ""
    one = _chosen(found, file, name)
    if script.defaults:
        taken = [f"{key}={value}" for key, value in script.defaults.items() if not isinstance(value, Unknown)]
        notes.append(f"the script's own defaults, where its command line gives no other: {few(taken)}")
    if one.when:
        notes.append(f"line {one.line}: {one.name} is made only if {one.when}")
    if tool == "lightning":
        return _lightning(one, made, script.intervals), tool
    own: dict[str, Any] = {"num_generations": _GROUPS[one.name]} if one.name in _GROUPS else {}
    if one.name in TRL:
        own["trl_config"] = one.name
    lost = Unknown(why="is not the Trainer's: it is given optimizers=(…)")
    given = (
        dict.fromkeys(_OF_OPTIMIZERS, lost)
        if any(word.arg == "optimizers" for call in script.calls for word in call.keywords)
        else {}
    )
    return {**own, **one.settings, **given}, "trl" if one.name in TRL else tool


def _chosen(found: list[Made], file: str, name: str) -> Made:
    lines = {it.line: it for it in found}
    listed = ", ".join(
        f"line {it.line} ({it.name}{', if ' + it.when if it.when else ''})" for it in lines.values()
    )
    if name and int(name) not in lines:
        raise InputError(f"has no configuration in line {name}: {listed}", file=file)
    if not name and len(lines) > 1:
        raise InputError(
            f"has {len(lines)} configurations: {listed}. Name one by its line, as in {file}:{min(lines)}",
            file=file,
        )
    return lines[int(name)] if name else found[-1]


def _schedulers(made: list[Made]) -> list[Made]:
    others = (*OPTIMIZERS, *TRAINER, *TRL, "DataLoader", "Trainer", "Accelerator", "clip_grad_norm_")
    return [it for it in made if it.name not in others]


def _lightning(trainer: Made, made: list[Made], intervals: Mapping[int, Any]) -> dict[str, Any]:
    """The settings as LightningCLI's file has them: the Trainer's, the loader's and the optimizer's."""
    settings: dict[str, Any] = {"trainer": trainer.settings}
    loader = _loader(made)
    if loader:
        settings["data"] = loader
    optimizers = [it for it in made if it.name in OPTIMIZERS]
    if len(optimizers) == 1:
        arguments = {key: value for key, value in optimizers[0].settings.items() if key != "params"}
        settings["optimizer"] = {"class_path": f"torch.optim.{optimizers[0].name}", "init_args": arguments}
    schedulers = _schedulers(made)
    if schedulers and "optimizer" in settings and "max_lr" in schedulers[0].settings:
        settings["optimizer"]["init_args"]["lr"] = schedulers[0].settings["max_lr"]  # OneCycleLR's
    if len(schedulers) == 1 and intervals.get(id(schedulers[0].settings)) == "step":
        arguments = {key: _steps_of(value, trainer) for key, value in schedulers[0].settings.items()}
        settings["lr_scheduler"] = {
            "class_path": schedulers[0].name,
            "init_args": arguments,
            "interval": "step",
        }
    elif schedulers:
        why = f"is {schedulers[0].name} (line {schedulers[0].line}), whose steps the script decides"
        settings["lr_scheduler"] = {"class_path": Unknown(why=why)}
    return settings


def _steps_of(value: Any, trainer: Made) -> Any:
    """Lightning's own count of the run's steps, where the Trainer has one."""
    steps = trainer.settings.get("max_steps")
    is_count = isinstance(value, Unknown) and value.why.startswith(
        "is self.trainer.estimated_stepping_batches "
    )
    return steps if is_count and type(steps) is int and steps > 0 else value


def _loader(made: list[Made]) -> dict[str, Any]:
    """The batch of the loader that shuffles; of one that does not where none does."""
    loaders = [it for it in made if it.name == "DataLoader"]
    loaders = [it for it in loaders if it.settings.get("shuffle") is True] or loaders
    sizes = {repr(it.settings.get("batch_size", 1)): it for it in loaders}
    if len(sizes) > 1:
        lines = ", ".join(f"line {it.line}" for it in sizes.values())
        return {"batch_size": Unknown(why=f"has another value in each DataLoader: {lines}")}
    return {"batch_size": loaders[0].settings.get("batch_size", 1)} if loaders else {}


def _loop(made: list[Made]) -> dict[str, Any]:
    """A training loop of one's own: the arguments of each class by its name; those that differ between its calls are not known."""
    by_name: dict[str, list[Made]] = {}
    for it in made:
        by_name.setdefault(it.name, []).append(it)
    loader = _loader(by_name.pop("DataLoader", []))
    settings: dict[str, Any] = {"DataLoader": loader} if loader else {}
    for name, calls in by_name.items():
        lines = ", ".join(f"line {it.line}" for it in calls)
        keys = {key for it in calls for key in it.settings} - {"params", "parameters", "optimizer"}
        settings[name] = {
            key: calls[0].settings.get(key)
            if len({repr(it.settings.get(key)) for it in calls}) == 1
            else Unknown(why=f"has another value in each {name}: {lines}")
            for key in sorted(keys)
        }
    return settings


def _refuse_command_line(text: str, file: str) -> None:
    if "HfArgumentParser(" in text or "TrlParser(" in text:
        raise InputError(
            "takes its arguments from the command line: name the shell script, or the configuration, that it is started with",
            file=file,
        )
