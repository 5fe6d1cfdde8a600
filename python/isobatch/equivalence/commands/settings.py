"""Settings of a known tool in a command: read from its flags, overrides and file, and written anew for a
split."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec

from isobatch.equivalence.split import Split
from isobatch.errors import InputError, needs_extra, unreadable
from isobatch.files.whole import read_whole, write_folder
from isobatch.launch.words import given_settings
from isobatch.planning.handed import value_text
from isobatch.tools.detect import keys
from isobatch.tools.page import Reading, value_at
from isobatch.tools.read import complete, read_file

TOOLS = ("transformers", "trl", "llama_factory", "ms_swift", "axolotl", "torchtune", "deepspeed", "lightning")
"""Tools whose settings can be written for a split, and that train on a CPU."""
STARTS_ITSELF = "lightning"
"""The tool whose Trainer starts its ranks itself, from `python`."""
_SUFFIXES = (".yaml", ".yml", ".json")
_FILE_FLAGS = ("config", "config_file", "cfg", "deepspeed_config")
"""Flags that name the file of a run's settings."""
_OF_A_STEP = {"axolotl": ("batch_size",)}
"""By tool, another name for a step's samples, which the tool refuses beside an accumulation."""
_SWITCHES = ("bf16", "fp16", "tf32", "bfloat16", "float16")
_ON_CPU: dict[str, dict[str, Any]] = {
    "torchtune": {"device": "cpu", "dtype": "fp32"},
    "lightning": {"trainer.accelerator": "cpu", "trainer.precision": "32-true"},
}
"""By tool, values without which it asks for a GPU; trainers built on transformers refuse the switches of
reduced precision."""
_OFF = ("false", "no", "off", "0", "none")
_DEEPSPEED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_BATCH = ("batch_per_gpu", "micro_batch", "accumulation", "effective_batch")
_MAX_FILE_BYTES = 16 << 20


class ToolSettings(msgspec.Struct, frozen=True):
    """The settings of a known tool's command."""

    tool: str
    """Its name among the readers."""
    file: str | None
    """As typed; None where the words have all settings."""
    typed: dict[str, Any]
    """The file's settings with those of the words over them."""
    fields: dict[str, Any]
    """A recipe's fields, of the batch `batch_per_gpu`, `accumulation`, `effective_batch` and `gpus`."""
    keys: dict[str, str]
    """The tool's names of the fields."""

    def split(self, ranks: int) -> Split:
        """Returns the settings' split on a number of ranks."""
        try:
            return _split_of(self.fields, ranks)
        except InputError as error:
            raise error.at(file=self.file or "the command") from None

    def ranks(self) -> int | None:
        """The number of processes by the settings or by the batch of all ranks; None if unknown."""
        named = {name: self.fields[name] for name in (*_BATCH, "gpus") if self.fields.get(name) is not None}
        ranks = complete(named).get("gpus")
        return ranks if isinstance(ranks, int) else None


def read_source(program: Sequence[str], tool: str | None) -> ToolSettings | None:
    """Reads the settings in a program's words and their file; None if no tool is recognized."""
    words = {setting.name: setting.value for setting in given_settings(program)}  # the last value counts
    if tool is None:
        detected = _read(_merged({}, words)) if words else None
        tool, files = _recognize(None if detected is None else detected.tool, program)
        if tool is None:
            return None
    else:
        files = _files(program, _FILE_FLAGS)
    if len(files) > 1:
        raise InputError(
            f"cannot be split: {' and '.join(files)} may each have the settings of {tool}; use braces"
        )
    if tool == "torchtune" and not files:
        name = words.get("config", "RECIPE_CONFIG")
        raise InputError(
            f"cannot be split: the settings of {name} are inside torchtune; copy them by tune cp {name} "
            "config.yaml, and name the copy"
        )
    file = files[0] if files else None
    typed = _merged({} if file is None else _content(file), words)
    reading = read_file(typed, tool)
    for field, fault in reading.faults:
        if field in _BATCH:
            raise fault.at(file=file or "the command")
    if reading.tool not in TOOLS:
        raise InputError(
            f"cannot be split by the settings of {reading.title}: write where the numbers go, in braces"
        )
    parallel = reading.fields.get("model_parallel") or 1
    if parallel > 1:
        key = reading.keys.get("model_parallel")
        raise InputError(
            f"cannot be split: {key} puts a model on {parallel} GPUs; set it to 1 for the comparison"
        )
    keys = {**reading.absent, **reading.keys}
    return ToolSettings(reading.tool, file, typed, dict(reading.fields), keys)


def _recognize(detected: str | None, program: Sequence[str]) -> tuple[str | None, list[str]]:
    """Returns the tool by a program's flags, else by its files, and its files."""
    if detected is not None:  # a file may be the script's own
        files = {file: _read(file) for file in _files(program, _FILE_FLAGS)}
        return detected, [
            file for file, reading in files.items() if reading and _base(reading.tool) == _base(detected)
        ]
    readings = [reading for file in _files(program, None) if (reading := _read(file)) is not None]
    readings = [
        reading
        for reading in readings
        if {"batch_per_gpu", "micro_batch", "effective_batch"} & reading.fields.keys()
    ]
    if len({reading.tool for reading in readings}) > 1:
        listed = " and ".join(f"{reading.file} ({reading.title})" for reading in readings)
        raise InputError(f"cannot be split: {listed} both have settings of a tool; name one with --tool")
    return (readings[0].tool if readings else None), [reading.file for reading in readings]


def _read(settings: str | Mapping[str, Any]) -> Reading | None:
    """Reads settings or their file as some tool's; None where no tool has them."""
    try:
        return read_file(settings)
    except InputError:
        return None


def _files(program: Sequence[str], flags: Sequence[str] | None) -> list[str]:
    """Lists the files among a program's words: without a flag, or with one of these flags (None: any)."""
    settings = given_settings(program)
    values = {setting.at + (0 if setting.joined else 1) for setting in settings if setting.value is not True}
    named = [str(setting.value) for setting in settings if flags is None or setting.name in flags]
    alone = [word for at, word in enumerate(program[1:], 1) if at not in values]
    files = [name for name in (*named, *alone) if Path(name).suffix.lower() in _SUFFIXES]
    return [name for name in dict.fromkeys(files) if Path(name).is_file()]


def _base(tool: str) -> str:
    """Returns the tool at the bottom of others built on it."""
    below = keys()[tool].extends
    return _base(below) if below else tool


def _content(file: str) -> dict[str, Any]:
    """Loads a file as trainers do: YAML 1.1, so that it can be written again with the same values."""
    text = read_whole(file, _MAX_FILE_BYTES)
    try:
        content = json.loads(text) if file.lower().endswith(".json") else _yaml(file).safe_load(text)
    except ValueError as error:
        raise unreadable(error, file) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise unreadable(error, file) from None
    if not isinstance(content, dict):
        raise InputError("must be a table of settings", file=file)
    return content


def _yaml(file: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise needs_extra("YAML files", "fleet", file=file) from None
    return yaml


def _merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Puts values over a file's; a dotted name goes into its table."""
    merged = deepcopy(dict(settings))
    for name, value in changes.items():
        *path, last = name.split(".")
        table: Any = merged
        for part in path:
            table = table.setdefault(part, {}) if isinstance(table, dict) else None
        if isinstance(table, dict):
            table[last] = value
    return merged


def _split_of(fields: Mapping[str, Any], ranks: int) -> Split:
    named = {name: fields[name] for name in _BATCH if fields.get(name) is not None}
    whole = complete({**named, "gpus": ranks})
    if not whole.get("micro_batch"):
        raise InputError("cannot be split: the settings do not say the micro-batch; use braces")
    return Split(ranks, int(whole.get("accumulation") or 1), int(whole["micro_batch"]))


def write_values(
    source: ToolSettings, program: Sequence[str], values: Mapping[str, Any], split: Split, folder: Path
) -> list[str]:
    """Writes values by their dotted names into a program's words, and a copy of its file in `folder`.

    The result is read again by the tool's own reader: an InputError if it is another split.
    """
    removed = [name for name in _OF_A_STEP.get(source.tool, ()) if name in source.typed]
    if "warmup_steps" in values:  # the same length by another name would contradict the new one
        names = {source.keys.get("warmup"), source.keys.get("duration")} - values.keys()
        removed += [name for name in ("warmup_ratio", *names) if name in source.typed]
    expected = {name: value for name, value in _merged(source.typed, values).items() if name not in removed}
    reading = read_file(expected, source.tool)
    if _split_of({**reading.fields, "gpus": None}, split.ranks) != split:
        written = ", ".join(f"{name} {value}" for name, value in values.items())
        raise InputError(f"cannot be split: {written} is not {split} for {reading.title}; use braces")
    changes = {**values, **_deepspeed_change(source.typed.get("deepspeed"), folder)}
    return _written(source, program, changes, removed, folder)


def write_for_cpu(source: ToolSettings, program: Sequence[str], folder: Path) -> list[str]:
    """Writes the settings for a CPU into a program's words and a copy of its file."""
    changes = cpu_changes(source)
    return _written(source, program, changes, (), folder) if changes else [*program]


def _written(
    source: ToolSettings,
    program: Sequence[str],
    changes: Mapping[str, Any],
    removed: Sequence[str],
    folder: Path,
) -> list[str]:
    words = _write_words(program, changes, removed)
    named = {setting.name for setting in given_settings(program)}
    unnamed = {name: value for name, value in changes.items() if name not in named}
    if source.file is None:
        for name, value in unnamed.items():
            words += [f"--{name}", value_text(value)]
        return words
    content = _merged(_content(source.file), unnamed)
    content = {name: value for name, value in content.items() if name not in removed}
    copy = _write_copy(source.file, content, folder)
    return [
        word.removesuffix(source.file) + copy
        if word == source.file or word.endswith(f"={source.file}")
        else word
        for word in words
    ]


def split_changes(source: ToolSettings, split: Split) -> dict[str, Any]:
    """Names the settings changed by a split, as the tool names them."""
    keys = source.keys
    steps_key = keys.get("accumulation")
    if steps_key in _OF_A_STEP.get(source.tool, ()):
        steps_key = "gradient_accumulation_steps"
    changes = {
        keys.get("batch_per_gpu") or keys.get("micro_batch"): split.micro_batch,
        steps_key: split.accumulation,
    }
    if "effective_batch" in source.fields:
        changes[keys.get("effective_batch")] = split.effective_batch
    if "gpus" in keys and value_at(source.typed, keys["gpus"]) is not None:
        changes[keys["gpus"]] = split.ranks
    return {name: value for name, value in changes.items() if name}


def cpu_changes(source: ToolSettings) -> dict[str, Any]:
    """Names the settings for a GPU, with their values for a CPU."""
    switches = [name for name in _SWITCHES if str(source.typed.get(name, False)).lower() not in _OFF]
    return dict.fromkeys(switches, False) | _ON_CPU.get(source.tool, {})


def _deepspeed_change(file: Any, folder: Path) -> dict[str, str]:
    """Copies a Trainer's DeepSpeed configuration with the batch as `auto`, filled in by the Trainer."""
    if not isinstance(file, str) or Path(file).suffix != ".json" or not Path(file).is_file():
        return {}
    content = _content(file)
    content |= {name: "auto" for name in _DEEPSPEED if name in content}
    return {"deepspeed": _write_copy(file, content, folder)}


def _write_words(program: Sequence[str], changes: Mapping[str, Any], removed: Sequence[str]) -> list[str]:
    """Replaces values in the words; a switch turned off is left out, and so are removed settings."""
    words: list[str | None] = [*program]
    for setting in given_settings(program):
        at, has_value = setting.at, not setting.joined and setting.value is not True
        if setting.name in removed:
            words[at : at + 1 + has_value] = [None] * (1 + has_value)
        if setting.name not in changes:
            continue
        value = changes[setting.name]
        if setting.joined:
            words[at] = f"{program[at].partition('=')[0]}={value_text(value)}"
        elif has_value:
            words[at + 1] = value_text(value)
        elif value is not True:
            words[at] = None
    return [word for word in words if word is not None]


def _write_copy(file: str, content: Any, folder: Path) -> str:
    """Writes a file's copy; its keys keep their order."""
    name = Path(file).name
    if name.lower().endswith(".json"):
        text = json.dumps(content, indent=2)
    else:
        text = _yaml(file).safe_dump(content, sort_keys=False)
    write_folder(folder, {Path(name): text.encode()})
    return str(folder / name)
