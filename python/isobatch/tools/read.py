"""Reads files of other tools as the fields of a recipe, and asks for the rest."""

import math
import operator
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from isobatch.errors import InputError, missing, must_be, raise_all, together
from isobatch.files.limits import refuse_large
from isobatch.files.whole import read_whole
from isobatch.recipes.recipe import Recipe, with_notes
from isobatch.tools.beside import is_default, is_said, merge, note_named
from isobatch.tools.detect import TOOLS, detect, no_tool_error, reader, refuse_slime
from isobatch.tools.installed import plain
from isobatch.tools.launched import ask_for_flags, read_launch, without_parsers
from isobatch.tools.map import read_settings
from isobatch.tools.page import Joined, Reading, SettingsPage, Unknown, value_at
from isobatch.tools.parse import SHELLS, Aside, parse
from isobatch.tools.tool import Tool
from isobatch.tools.unread import guess_field, note_unread

_Kind = TypeVar("_Kind", bound=Recipe)
_BATCHES = ("batch_per_gpu", "micro_batch", "effective_batch")
_ENOUGH = {
    "effective_batch": ("batch_per_gpu", "micro_batch"),
    "batch_per_gpu": ("effective_batch",),
    "accumulation": ("effective_batch",),
}
"""Other fields that mend the fault of a field, if given by hand."""
_IN_PYTHON = ("torchtitan",)
"""Tools with configurations in Python."""
_TRAINERS = ("transformers", "trl")
_START = (
    "Give each with --set (in Python as a keyword), or have all of it read exactly by starting the script: "
    "isobatch doctor -- {}"
)
BINARY = (".bin", ".pt", ".pth", ".ckpt", ".safetensors")


def read_file(path: Any, tool: str | None = None, flags: dict[str, Any] | None = None) -> Reading:
    """Reads one file of a tool.

    Args:
        path: a file, a folder with a checkpoint of transformers' Trainer, or `registry.py:llama3_8b`; or the
            settings themselves: a dict, or an object with `to_dict`, such as TrainingArguments.
        tool: of the file; None: the tool is detected.
        flags: of the command that starts a Python script; those that it declares are taken out.
    """
    if tool is not None:
        reader(tool)
    if not isinstance(path, str | os.PathLike):
        return _read_settings(path, tool)
    file = os.fspath(path)
    if Path(path).is_dir():
        from isobatch.tools.checkpoint import read_folder

        folder, how = read_folder(Path(path)), reader("checkpoint").reader
        assert how is not None
        note_unread(SettingsPage(folder.settings, folder), how)
        return folder
    if Path(path).name == "training_args.bin" and Path(path).is_file():
        from isobatch.tools.pickles import attributes

        return _found(attributes(Path(path)), tool or "transformers", file, ".json")
    place, name = _split_name(file)
    if place.suffix.lower() in BINARY:
        raise InputError(
            "has weights, which do not describe the run: name the checkpoint folder of "
            "transformers' Trainer that it is in, or the configuration",
            file=file,
        )
    aside = Aside(flags={} if flags is None else flags)
    suffix, text = place.suffix.lower(), read_whole(place)
    settings = parse(text, file=str(place), suffix=suffix, aside=aside, name=name)
    if suffix == ".py" and tool is not None:
        _refuse_script(reader(tool), aside.tool, file)
    reading = _found(settings, tool, file, suffix, aside.tool)
    reading.notes += aside.notes
    reading.job = aside.job
    return reading


def _read_settings(settings: Any, tool: str | None) -> Reading:
    """Reads settings from memory."""
    name = "the settings" if isinstance(settings, Mapping) else type(settings).__name__
    if not isinstance(settings, Mapping) and hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    if not isinstance(settings, Mapping):
        raise must_be(
            "a path, a dict of settings, or an object with to_dict such as TrainingArguments",
            settings,
            field="path",
        )
    refuse_large(dict(settings), name)
    return _found(dict(settings), tool, name, ".json")


def _split_name(file: str) -> tuple[Path, str]:
    """Splits `registry.py:llama3_8b` into file and function, `train.sh:12` into file and line."""
    place, colon, name = file.rpartition(":")
    is_name = name.isidentifier() and place.endswith(".py")
    if colon and (is_name or name.isdecimal()) and Path(place).is_file() and not Path(file).exists():
        return Path(place), name
    return Path(file), ""


def _refuse_script(tool: Tool, of: str, file: str) -> None:
    """Refuses a Python script without this tool, where every setting would be the tool's default."""
    if tool.name == of or (tool.name in _TRAINERS and of in _TRAINERS):
        return
    if of:
        raise InputError(
            f"configures {reader(of).title}, not {tool.title}: name that tool, or none",
            file=file,
            field="tool",
        )
    if tool.name in TOOLS and tool.name not in _IN_PYTHON:
        raise InputError(
            f"has no call that configures {tool.title}: what is read of a Python script are calls "
            "such as TrainingArguments(…), SFTConfig(…) and Lightning's Trainer(…). Name the file that has "
            "the settings, or give the run as a recipe",
            file=file,
        )


def _found(settings: dict[str, Any], tool: str | None, file: str, suffix: str, of: str = "") -> Reading:
    """Reads settings as those of a tool: the user's, or `of`, whose class a script makes, or the detected."""
    refuse_slime(settings, file)
    name = plain(tool or of or detect(settings, file))
    if suffix == ".py" and tool is None and not of and name in TOOLS and name not in _IN_PYTHON:
        raise no_tool_error(settings, file)  # of a loop's variables one may be named as a tool's setting
    known = reader(name)
    reading = Reading(name, known.title, file, settings, guessed=tool is None)
    is_flat = not any(isinstance(value, Mapping) for value in settings.values())
    in_flags = is_flat and suffix not in (".json", ".yaml", ".yml", ".toml", ".py")
    assert known.reader is not None
    page = SettingsPage(settings, reading, dashes=in_flags)
    raise_all(
        must_be("a table of settings", value, field=page.name(section), file=file)
        for section in known.reader.tables.split()
        if not isinstance(value := value_at(settings, section), Mapping | Unknown | None)
    )
    if known.reader.read is None:
        read_settings(page, known.settings)
    else:
        known.reader.read(page)
    note_named(page)
    unknown = note_unread(page, known.reader)
    if _has_another_batch(unknown, reading) and reading.guessed:
        raise no_tool_error(settings, file)
    _ask_for_batches(page, unknown)
    return reading


def _ask_for_batches(page: SettingsPage, unknown: Sequence[str]) -> None:
    """Asks for the batch, length or schedule of a file with an unknown name for it, beside a default."""
    reading = page.reading
    for key in unknown:
        kind = guess_field(key)
        has_batch = any(is_said(reading, field) for field in _BATCHES)
        text = f"{page.name(key)} {value_at(reading.settings, key)} is not a setting of {reading.title}"
        if kind in ("batch", "batch_per_gpu", "effective_batch") and not has_batch:
            for field in ("batch_per_gpu", "accumulation"):
                if not is_said(reading, field):
                    reading.fields.pop(field, None)
            page.ask("effective_batch", text, page.name(key))
        elif kind in ("accumulation", "effective_batch") and not is_said(reading, "accumulation"):
            reading.fields.pop("accumulation", None)
            page.ask("accumulation", text, page.name(key))
        elif kind == "duration" and "samples" not in key and is_default(reading, "duration"):
            del reading.fields["duration"]
            page.ask("duration", text, page.name(key))
        elif kind in ("schedule", "warmup") and not is_said(reading, kind):
            page.ask(kind, text, page.name(key))


def recipe_fields(
    paths: Sequence[Any], values: Mapping[str, Any], *, tool: str | None = None, ends: bool = False
) -> tuple[dict[str, Any], list[Reading]]:
    """Reads the fields of a recipe from the files of one run and values beside them, with the readings."""
    pages = _read_files(paths, tool)
    return joined_fields(pages, values, ends=ends), pages


def joined_fields(
    pages: Sequence[Reading], values: Mapping[str, Any], *, ends: bool = False
) -> dict[str, Any]:
    """Joins the fields of the files of a run; values given beside them win.

    Args:
        values: fields of a recipe, or `batch_per_gpu`.
        ends: whether the run's length is needed.

    Raises:
        InputError: all that is wrong or missing, in one message.
    """
    file = pages[0].file
    by_hand = {name for name, value in values.items() if value is not None}
    faults = [
        error for page in pages for to, error in page.faults if by_hand.isdisjoint({to, *_ENOUGH.get(to, ())})
    ]
    run = merge(pages, values)
    faults += [conflict.error for conflict in run.conflicts]
    fields, keys = {**run.fields, **values}, run.keys
    answered = {to: None for page in pages for to, _ in page.faults} | fields
    needed = list(missing_fields(answered, keys))
    if ends and "duration" not in answered:
        needed.append(
            ("duration", "1000st", "the run: steps (st), epochs (ep), samples (sp) or tokens (tok)")
        )
    if faults:  # with what is missing beside them, so that nobody is asked twice
        texts = ((name, f"{why}; --set {name}={example}") for name, example, why in needed)
        fault = together([*faults, *(missing(name, text, file=file) for name, text in texts)])
        if start := _start_offered(pages):
            text, causes = f"{fault.message}\n{start}", fault.causes or (fault,)
            fault = InputError(text, file=fault.file, field=fault.field, causes=causes)
        raise fault
    try:
        joined = Joined(
            fields if needed else complete(fields, keys), run.owners, frozenset(page.tool for page in pages)
        )
        for page in pages:
            for step in page.later:
                step(joined)
    except InputError as error:
        raise error.at(file=file) from None
    if needed:
        raise _missing_error(needed, pages)
    return joined.fields


def _read_files(paths: Sequence[Any], tool: str | None) -> list[Reading]:
    """Reads the files of a run; the arguments on a launch line go to its script, if it declares them."""
    launch = read_launch(paths)
    if launch is None:
        paths = without_parsers(paths)
        return [read_file(path, tool if index == 0 else None) for index, path in enumerate(paths)]
    place, launcher, flags = launch
    rest = [path for index, path in enumerate(paths) if index != place]
    pages = [read_file(path, tool if index == 0 else None, flags) for index, path in enumerate(rest)]
    ask_for_flags(launcher, flags)
    return [*pages, launcher]


def read_recipe(
    kind: type[_Kind], path: Any, values: Mapping[str, Any], *, tool: str | None = None, ends: bool = False
) -> tuple[_Kind, list[Reading]]:
    """Reads a recipe of this class from the files of one run and values beside them, with the readings."""
    paths = list(path) if isinstance(path, list | tuple) else [path]
    if not paths:
        raise must_be("a path, or several", path, field="path")
    fields, pages = recipe_fields(paths, values, tool=tool, ends=ends)
    try:
        return with_notes(
            kind(**fields), (f"{page.file}: {note}" for page in pages for note in page.notes)
        ), pages
    except InputError as error:
        raise (error if error.field in values else error.at(file=pages[0].file)) from None


def missing_fields(fields: Mapping[str, Any], keys: Mapping[str, str]) -> Any:
    """Lists the needs of a plan not met by the files: (field, an example, why)."""
    if "lr" not in fields:
        yield "lr", "LR", "the peak learning rate"
    if "effective_batch" not in fields:
        if "batch_per_gpu" not in fields and "micro_batch" not in fields:
            yield "effective_batch", "N", "samples in an optimizer step"
        elif "gpus" not in fields:
            per = keys.get("batch_per_gpu") or keys.get("micro_batch") or "batch_per_gpu"
            yield "gpus", "N", f"the GPUs that it was tuned on ({per} counts per GPU)"
    units = {name: str(fields[name]) for name in ("duration", "warmup", "schedule") if name in fields}
    for unit, field, meaning in (
        ("ep", "dataset_size", "samples in an epoch"),
        ("tok", "seq_len", "tokens in a sample"),
    ):
        users = [name for name, text in units.items() if re.search(rf"\d{unit}[ )]*(?:[,=(]|$)", text)]
        if unit == "tok" and ":" in str(fields.get("ramp", "")):
            users.append("ramp")
        if users and field not in fields:
            yield field, "N", f"{meaning} ({keys.get(users[0]) or users[0]} is {fields[users[0]]})"


def _start_offered(pages: Sequence[Reading]) -> str:
    """Offers to start a script; empty where no file of a run is one."""
    files = [page.file.rpartition(":")[0] if ":" in Path(page.file).name else page.file for page in pages]
    shells = [file for file in files if Path(file).suffix.lower() in SHELLS]
    if shells:
        return _START.format(f"bash {shlex.quote(shells[0])}")
    return _START.format("COMMAND") if any(file.endswith(".py") for file in files) else ""


def _missing_error(missing: Sequence[tuple[str, str, str]], pages: Sequence[Reading]) -> InputError:
    file, title = pages[0].file, pages[0].title
    width = max(len(f"--set {field}={example}") for field, example, _ in missing)
    lines = [f"  {f'--set {field}={example}':<{width}}  {why}" for field, example, why in missing]
    notes = [f"  {page.file}: {note}" for page in pages for note in page.notes]
    if {"lr", "effective_batch"} & {field for field, _, _ in missing} and (start := _start_offered(pages)):
        notes.append(start)
    text = "\n".join(
        (f"{title} does not say all that a plan needs. Add (in Python as keywords):", *lines, *notes)
    )
    causes = [InputError(f"missing: {why}", field=field) for field, _, why in missing]
    return InputError(text, file=file, field=missing[0][0] if len(missing) == 1 else None, causes=causes)


def _has_another_batch(unknown: Sequence[str], reading: Reading) -> bool:
    """Tells whether a batch in the file was not read, and the tool's default was taken."""
    if not any(guess_field(key) in ("batch", "batch_per_gpu", "effective_batch") for key in unknown):
        return False
    return not any(is_said(reading, field) for field in _BATCHES)


def count_of(name: str, value: Any) -> int:
    """Reads a number of GPUs, samples or micro-batches; raises InputError for a text, a flag, 1.0.

    >>> count_of("gpus", 8)
    8
    """
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 < operator.index(value) < 2**63:
        raise must_be("a whole number from 1", value, field=name)
    return operator.index(value)


def complete(fields: Mapping[str, Any], keys: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the fields with `effective_batch` and, if they follow, micro-batch, accumulation and GPUs.

    Args:
        keys: what the file calls them, for messages.

    >>> complete({"batch_per_gpu": 8, "accumulation": 4, "gpus": 8, "lr": 0.1})
    {'accumulation': 4, 'gpus': 8, 'lr': 0.1, 'micro_batch': 8, 'effective_batch': 256}
    >>> complete({"effective_batch": 512, "micro_batch": 4, "accumulation": 2, "gpus": 8})
    Traceback (most recent call last):
    isobatch.errors.InputError: effective_batch is 512, but micro_batch 4 × accumulation 2 × 8 replicas is ...
    """
    completed = {name: value for name, value in fields.items() if name != "batch_per_gpu"}
    names = {
        name: (keys or {}).get(name) or name
        for name in ("effective_batch", "micro_batch", "accumulation", "gpus")
    }
    if "batch_per_gpu" in fields:
        completed["micro_batch"] = fields["batch_per_gpu"]
        names["micro_batch"] = (keys or {}).get("batch_per_gpu") or names["micro_batch"]
    for name in (
        "effective_batch",
        "micro_batch",
        "accumulation",
        "gpus",
        "model_parallel",
        "expert_parallel",
    ):
        if completed.get(name) is not None:
            completed[name] = count_of(names.get(name, name), completed[name])
    batch, micro, accumulation, gpus = map(
        completed.get, ("effective_batch", "micro_batch", "accumulation", "gpus")
    )
    parallel = completed.get("model_parallel") or 1
    for name in ("model_parallel", "expert_parallel"):
        if gpus is not None and gpus % (completed.get(name) or 1):
            raise InputError(
                f"{names['gpus']} {gpus} is not a multiple of {name} {completed[name]}", field="gpus"
            )
    replicas = None if gpus is None else gpus // parallel
    if batch is None and micro and replicas:
        completed["effective_batch"] = micro * (accumulation or 1) * replicas
        completed.setdefault("micro_batch", micro)
        return completed
    known = {names["micro_batch"]: micro, names["accumulation"]: accumulation, "replicas": replicas}
    unknown = [name for name, value in known.items() if value is None]
    product = math.prod(value or 1 for value in known.values())
    if batch and (batch % product or (not unknown and batch != product)):
        factors = " × ".join(
            f"{value} replicas" if name == "replicas" else f"{name} {value}"
            for name, value in known.items()
            if value
        )
        text = (
            f"but {factors} is {product}" if not unknown else f"which {factors} (= {product}) does not divide"
        )
        raise InputError(
            f"{names['effective_batch']} is {batch}, {text}: one of them is wrong", field="effective_batch"
        )
    if batch and len(unknown) == 1:
        rest = batch // product
        if accumulation is None:
            completed["accumulation"] = rest
        elif micro is None:
            completed["micro_batch"] = rest
        else:
            completed["gpus"] = rest * parallel
    return completed
