"""Python files, read as their tools' own files would be.

Of a training script, the arguments of `TrainingArguments(…)`, Lightning's `Trainer(…)` and the like; else a
function's configuration, or what the file assigns.
"""

import ast
import re
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.tools.calls import Configuring, Script
from isobatch.tools.constructs import constructs
from isobatch.tools.names import constant_of, last_part
from isobatch.tools.page import UNKNOWN, Unknown
from isobatch.tools.run_schedules import Multiple
from isobatch.tools.signatures import OPTIMIZERS, OTHERS, TRL, is_trainers
from isobatch.words import few

_OF_OPTIMIZERS = ("learning_rate", "optim", "weight_decay", "adam_beta1", "adam_epsilon", "lr_scheduler_type")
_GIVEN = ("optimizers", "optimizer_cls_and_kwargs")
"""Arguments of the Trainer with an optimizer of the script's own."""
_GROUPS = {"GRPOConfig": 8, "RLOOConfig": 2}
"""TRL's own num_generations."""
_IN_BATCH = (
    "MultipleNegativesRankingLoss MultipleNegativesSymmetricRankingLoss CachedMultipleNegativesRankingLoss "
    "CachedMultipleNegativesSymmetricRankingLoss GISTEmbedLoss CachedGISTEmbedLoss MegaBatchMarginLoss "
    "NTXentLoss ClipLoss SigLipLoss"
)
"""Losses of sentence-transformers, open_clip and pytorch-metric-learning with the rest of a micro-batch as
negatives.
"""
_MAKERS = ("TrainingArguments", "Config(", "Trainer(", "Accelerator(", "DataLoader(")
_PARSERS = ("HfArgumentParser(", "TrlParser(")
_RETURNS = re.compile(r"^def \w+\([^)]*\)\s*->\s*[\w.]*Config\s*:", re.MULTILINE)
"""Functions that return a configuration: `def llama3_8b() -> Trainer.Config:`."""
_SETTING = {
    "accumulation": {
        "accelerate": "Accelerator.gradient_accumulation_steps",
        "lightning": "trainer.accumulate_grad_batches",
        "transformers": "gradient_accumulation_steps",
    },
    "batch_per_gpu": {
        "accelerate": "DataLoader.batch_size",
        "lightning": "data.batch_size",
        "transformers": "per_device_train_batch_size",
    },
    "lr": {
        "lightning": "optimizer.init_args.lr",
        "transformers": "learning_rate",
    },
    "schedule": {
        "accelerate": "scheduler",
        "lightning": "lr_scheduler.class_path",
        "transformers": "lr_scheduler_type",
    },
}
"""The setting of each field that a construct moves, as the readers of scripts know it."""
Calls = list[Configuring]


def read_python(
    text: str, file: str, name: str, notes: list[str], flags: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Reads a training script, a function's configuration, or all assigned values; with the tool."""
    if (name and not name.isdecimal()) or _RETURNS.search(text):
        return configuration(text, file, name), ""
    if any(maker in text for maker in (*_MAKERS, *_PARSERS)):
        settings, tool = script_settings(text, file, name, notes, flags)
        if settings:
            return settings, tool
    return python_literals(text, file), ""


def parses_all(text: str) -> bool:
    """Tells whether a script parses its settings into dataclasses."""
    return any(parser in text for parser in _PARSERS)


def script_settings(
    text: str, file: str, name: str, notes: list[str], flags: dict[str, Any] | None = None
) -> tuple[dict[str, Any], str]:
    """Reads the settings of a script as in a file of its tool, and the tool; an empty text for no known call.

    Args:
        name: the line of the call, where there are several.
        notes: filled with what was assumed.
        flags: of the command line that starts the script; those that it declares are taken out.

    >>> text = "B = 4\\nargs = TrainingArguments('out', per_device_train_batch_size=B * 2)"
    >>> script_settings(text, "t.py", "", [])
    ({'output_dir': 'out', 'per_device_train_batch_size': 8}, 'transformers')
    """
    # It refuses more than ast.parse does, such as a return outside of a function.
    compile(text, file, "exec", dont_inherit=True)
    flags = {} if flags is None else flags
    script = Script(ast.parse(text, file), dict(flags))
    for flag in script.declared & flags.keys():
        del flags[flag]
    calls = list(script.configuring.values())
    trainers = [call for call in calls if is_trainers(call.name)]
    lightnings = [call for call in calls if call.name == "Trainer"]
    if not (trainers or lightnings) and parses_all(text):
        how = "name the shell script, or the configuration, that it is started with"
        raise InputError(f"takes its arguments from the command line: {how}", file=file)
    defaults = [f"{key}={value}" for key, value in script.defaults.items() if not isinstance(value, Unknown)]
    if script.defaults:
        notes.append(f"the script's own defaults, unless its command line gives others: {few(defaults)}")
    if trainers:
        settings, tool = _trainer(_chosen(trainers, file, name), script)
    elif lightnings:
        settings, tool = _lightning(_chosen(lightnings, file, name), calls, script), "lightning"
    else:
        is_accelerate = any(call.name == "Accelerator" for call in calls)
        settings, tool = _loop(calls, script), "accelerate" if is_accelerate else ""
    if tool:
        _ask_for_constructs(settings, tool, script)
    return settings, tool


def _ask_for_constructs(settings: dict[str, Any], tool: str, script: Script) -> None:
    """Leaves open the settings moved in code: their reader asks for them."""
    for field, why in constructs(script):
        if field == "lr" and tool == "accelerate":
            for name in settings.keys() & {*OPTIMIZERS}:
                settings[name]["lr"] = Unknown(why=why)
            continue
        *path, last = _SETTING[field].get(tool, _SETTING[field]["transformers"]).split(".")
        table = settings
        for part in path:
            table = table.setdefault(part, {})
        if isinstance(table, dict):
            table[last] = Unknown(why=why)


def _chosen(trainers: Calls, file: str, name: str) -> Configuring:
    lines = {call.line: call for call in trainers}
    listed = ", ".join(f"line {call.line} ({call.name})" for call in lines.values())
    if name and int(name) not in lines:
        raise InputError(f"has no configuration in line {name}: {listed}", file=file)
    if not name and len(lines) > 1:
        text = f"has {len(lines)} configurations: {listed}. Name one by its line, as in {file}:{min(lines)}"
        raise InputError(text, file=file)
    return lines[int(name)] if name else trainers[-1]


def _trainer(trainer: Configuring, script: Script) -> tuple[dict[str, Any], str]:
    """Returns the settings of transformers' Trainer or of one of TRL's, and the tool."""
    settings: dict[str, Any] = {}
    is_trl = TRL.fullmatch(trainer.name) is not None
    if is_trl:
        settings["trl_config"] = trainer.name
    if trainer.name in _GROUPS:
        settings["num_generations"] = _GROUPS[trainer.name]
    losses = {last_part(call.func) for call in script.calls}
    if couplings := sorted(losses.intersection(_IN_BATCH.split())):
        settings["loss_class"] = couplings[0]
    settings |= trainer.settings
    words = {word.arg for call in script.calls for word in call.keywords}
    for name in words.intersection(_GIVEN):
        lost = Unknown(why=f"is not the Trainer's: it is given {name}=(…)")
        settings |= dict.fromkeys(_OF_OPTIMIZERS, lost)
    return settings, "trl" if is_trl else "transformers"


def _schedulers(calls: Calls) -> Calls:
    excluded = (*OPTIMIZERS, *OTHERS, "Trainer")
    return [call for call in calls if call.name not in excluded and not is_trainers(call.name)]


def _lightning(trainer: Configuring, calls: Calls, script: Script) -> dict[str, Any]:
    """Returns the settings as LightningCLI's file has them: the Trainer's, the loader's, the optimizer's."""
    settings: dict[str, Any] = {"trainer": trainer.settings}
    if loader := _loader(calls):
        settings["data"] = loader
    optimizers, schedulers = [call for call in calls if call.name in OPTIMIZERS], _schedulers(calls)
    if len(optimizers) == 1:
        arguments = dict(optimizers[0].settings)
        if schedulers and "max_lr" in schedulers[0].settings:
            arguments["lr"] = schedulers[0].settings["max_lr"]  # OneCycleLR's
        settings["optimizer"] = {"class_path": f"torch.optim.{optimizers[0].name}", "init_args": arguments}
    only = schedulers[0] if len(schedulers) == 1 else Configuring(0, "several schedulers", {})
    is_stepped = _is_stepped(script, only)
    if is_stepped:
        steps, arguments = trainer.settings.get("max_steps"), dict(only.settings)
        for key, value in arguments.items():
            if isinstance(value, Multiple) and type(steps) is int and steps > 0:
                arguments[key] = int(value.number * steps)  # of the run's steps, as the Trainer counts them
        settings["lr_scheduler"] = {"class_path": only.name, "init_args": arguments, "interval": "step"}
    elif schedulers or is_stepped is False:
        named = f"{schedulers[0].name} (line {schedulers[0].line})" if schedulers else "another function's"
        settings["lr_scheduler"] = {"class_path": Unknown(why=f"is {named}, whose steps the script decides")}
    return settings


def _is_stepped(script: Script, scheduler: Configuring) -> bool | None:
    """Tells whether Lightning steps this scheduler alone, at each step; None if it is given none."""
    answers = []
    for node in script.nodes:
        if isinstance(node, ast.Dict):
            table = dict(zip(map(constant_of, node.keys), node.values, strict=True))
            if "scheduler" in table:
                is_own = script.value(table["scheduler"]) is scheduler.settings
                answers.append(is_own and constant_of(table.get("interval")) == "step")
            elif "lr_scheduler" in table:
                value = script.value(table["lr_scheduler"])
                answers += [False] if isinstance(value, Unknown) or value is scheduler.settings else []
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            lists = [item.elts for item in node.value.elts if isinstance(item, ast.List)]
            is_all = len(lists) == len(node.value.elts)
            # Optimizers and schedulers; a table has an answer of its own.
            answers += [False for item in lists[-1] if not isinstance(item, ast.Dict)] if is_all else []
    return all(answers) if answers else None


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
    """Returns the settings of a loop of your own, by class; an argument with several values is Unknown."""
    loader = _loader(calls)
    settings: dict[str, Any] = {"DataLoader": loader} if loader else {}
    for call in calls:
        if call.name == "DataLoader":
            continue
        table = settings.setdefault(call.name, dict(call.settings))
        for key in table | call.settings:
            if repr(table.get(key)) != repr(call.settings.get(key)):
                table[key] = Unknown(why=f"has another value in each {call.name}")
    if "Accelerator" in settings:
        settings["Accelerator"]["prepare"] = _prepares_scheduler(script)
    return settings


def _prepares_scheduler(script: Script) -> Any:
    """Tells whether `accelerator.prepare` gets the scheduler; Unknown if its arguments are starred."""
    prepares = [call for call in script.calls if last_part(call.func) in ("prepare", "prepare_scheduler")]
    prepared = [ast.unparse(item) for call in prepares for item in call.args]
    lines = {call.line for call in _schedulers(list(script.configuring.values()))}
    assignments = [
        node for node in script.nodes if isinstance(node, ast.Assign) and node.value.lineno in lines
    ]
    names = {ast.unparse(target) for node in assignments for target in node.targets}
    if any(text in names or "sched" in text.rpartition(".")[2].lower() for text in prepared):
        return True
    return Unknown() if any(text.startswith("*") for text in prepared) else False


def python_literals(text: str, file: str) -> dict[str, Any]:
    """Reads the literals assigned in a file.

    >>> python_literals("base = 4\\ntrain = dict(batch=base, lr=0.1 * 2)\\nx = open('a')", "a.py")
    {'base': 4, 'train': {'batch': 4, 'lr': 0.2}, 'x': <is x (line 3), which cannot be read from the script>}
    """
    script = Script(ast.parse(text, file))
    nodes = [node for node in script.nodes if isinstance(node, ast.Name) and node.id in script.bindings]
    lines = {node.id: node.lineno for node in nodes}
    return {name: script.text_value(ast.Name(name, ast.Load(), lineno=line)) for name, line in lines.items()}


def configuration(text: str, file: str, name: str = "") -> dict[str, Any]:
    """Reads the literals returned by the function of a name, or by the only one.

    >>> text = "def run() -> Trainer.Config:\\n    return Trainer.Config(training=Training(steps=10 * 2))"
    >>> configuration(text, "a.py")
    {'training': {'steps': 20}}
    """
    functions = {node.name: node for node in ast.parse(text, file).body if isinstance(node, ast.FunctionDef)}
    legal = [
        key
        for key, function in functions.items()
        if function.returns and ast.unparse(function.returns).endswith("Config")
    ]
    if name and name not in legal:
        raise unknown("configuration", name, legal, field="configuration").at(file=file)
    if not name and len(legal) > 1:
        listed = f"{', '.join(legal)}. Name one after a colon: {file}:{legal[0]}"
        raise InputError(f"has {len(legal)} configurations: {listed}", file=file)
    function = functions[name or legal[0]]
    body = _Function(ast.Module(function.body, []))
    returns = [node.value for node in body.nodes if isinstance(node, ast.Return)]
    table = body.value(returns[0]) if len(returns) == 1 and returns[0] else None
    if not isinstance(table, dict):
        how = "give the run as a recipe, or the file that it is saved as"
        raise InputError(f"{function.name} computes its configuration: {how}", file=file)
    return table


class _Function(Script):
    """The body of a function: a call with named fields alone is a table of them."""

    def call(self, node: ast.Call) -> Any:
        """Returns the fields of a call; torchtitan's default_adamw(lr) is a table with its learning rate."""
        fields = self.keywords(node, "")
        if last_part(node.func) == "default_adamw" and len(node.args) == 1:
            return {"lr": self.text_value(node.args[0]), **fields}
        return UNKNOWN if node.args or not fields else fields
