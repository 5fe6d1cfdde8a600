"""Whose file it is, what it says, and what it cannot say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be, together
from isobatch.files.whole import read_whole
from isobatch.tools.reading.bases import Bases
from isobatch.tools.reading.batch import complete
from isobatch.tools.reading.bounds import check_size
from isobatch.tools.reading.inert import attributes
from isobatch.tools.reading.meaning import looks, unused
from isobatch.tools.reading.page import Found, Page
from isobatch.tools.reading.parse import parse
from isobatch.tools.reading.readers import reader
from isobatch.tools.reading.whose import nobodys, whose
from isobatch.words import few

_BINARY = (".bin", ".pt", ".pth", ".ckpt", ".safetensors")


def read_file(path: Any, tool: str | None = None) -> Found:
    """What one file of a tool says, as far as it goes.

    Args:
        path: a file, a folder with a checkpoint of transformers' Trainer, or a function of a Python file: `registry.py:llama3_8b`;
            or the settings themselves: a dict, or an object with `to_dict`, such as TrainingArguments.
        tool: whose it is; None: found by what is in it.

    Raises:
        InputError: it cannot be read, or is no tool's that is known here.
    """
    if tool is not None:
        reader(tool)
    if not isinstance(path, str | os.PathLike):
        return _given(path, tool)
    file = os.fspath(path)
    if Path(path).is_dir():
        found = Found("checkpoint", reader("checkpoint").TITLE, file, {})
        reader("checkpoint").read_folder(Path(path), found)
        return found
    if Path(path).name == "training_args.bin" and Path(path).is_file():
        return _found(attributes(Path(path)), tool or "transformers", file, ".json")
    place, name = _named(file)
    if place.suffix.lower() in _BINARY:
        raise InputError(
            "is a file of weights, which says nothing of the run: name the checkpoint folder of transformers' Trainer that it is in, or "
            "the configuration",
            file=file,
        )
    bases = Bases(place, _parse_base)
    settings = parse(read_whole(place), file=str(place), suffix=place.suffix.lower(), bases=bases, name=name)
    return _found({**settings, **bases.unread}, tool, file, place.suffix.lower())


def _given(settings: Any, tool: str | None) -> Found:
    """Settings that are in no file."""
    name = "the settings" if isinstance(settings, Mapping) else type(settings).__name__
    if not isinstance(settings, Mapping) and hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    if not isinstance(settings, Mapping):
        raise must_be(
            "a path, a dict of settings, or an object with to_dict such as TrainingArguments",
            settings,
            field="path",
        )
    check_size(dict(settings), name)
    return _found(dict(settings), tool, name, ".json")


def read_text(text: str, tool: str | None = None, *, file: str, suffix: str = "") -> Found:
    """Likewise, of a text; the files that it builds on are not read."""
    return _found(parse(text, file=file, suffix=suffix), tool, file, suffix)


def _named(file: str) -> tuple[Path, str]:
    """`registry.py:llama3_8b` is one function of a file."""
    place, colon, name = file.rpartition(":")
    if colon and place.endswith(".py") and name.isidentifier() and not Path(file).exists():
        return Path(place), name
    return Path(file), ""


def _parse_base(text: str, file: str, suffix: str, bases: Bases) -> dict[str, Any]:
    return parse(text, file=file, suffix=suffix, bases=bases)


def _found(settings: dict[str, Any], tool: str | None, file: str, suffix: str) -> Found:
    name = (tool or whose(settings, file)).lower().replace("-", "_")
    module = reader(name)
    found = Found(name, module.TITLE, file, settings, guessed=tool is None)
    module.read(
        Page(
            settings,
            found,
            dashes=suffix not in (".json", ".yaml", ".yml", ".toml", ".py") and _is_flat(settings),
        )
    )
    left = unused(settings, found.used)
    if found.guessed and _another_batch(left, found):
        raise nobodys(settings, file)
    if left:
        found.notes.append(f"not used: {few(left)}; {module.TITLE} is read without (--set overrides)")
    return found


def recipe_fields(
    paths: Sequence[Any],
    given: Mapping[str, Any],
    *,
    tool: str | None = None,
    ends: bool = False,
) -> tuple[dict[str, Any], list[Found]]:
    """The fields of a recipe from one or several files that describe the same run, and from what is given beside them.

    Args:
        paths: such as TrainingArguments and the Accelerate configuration that it was launched with.
        given: fields of a recipe, or `batch_per_gpu`; each wins over the files.
        tool: whose the first file is.
        ends: whether the run's length is needed too, as other tools' files need it.

    Returns:
        The fields, and what each file said.

    Raises:
        InputError: all that is wrong or missing, in one message.
    """
    pages = [read_file(path, tool if index == 0 else None) for index, path in enumerate(paths)]
    file = pages[0].file
    fields: dict[str, Any] = {}
    keys: dict[str, str] = {}
    faults = [error for page in pages for to, error in page.faults if to not in given]
    for page in pages:
        for name, value in page.fields.items():
            if name in given:
                continue
            if (
                name in fields
                and fields[name] != value
                and name in ("lr", "accumulation", "effective_batch", "gpus")
            ):
                faults.append(
                    InputError(
                        f"{value} in {page.file}, but {fields[name]} in {file}: give {name} a value",
                        field=name,
                    )
                )
            if name not in fields:
                fields[name], keys[name] = value, page.keys.get(name, name)
    if faults:
        raise together(faults)
    fields.update(given)
    missing = list(_missing(fields, keys))
    if ends and "duration" not in fields:
        missing.append(
            ("duration", "1000st", "the run: steps (st), epochs (ep), samples (sp) or tokens (tok)")
        )
    if missing:
        raise _asked(missing, pages)
    try:
        return complete(fields, keys), pages
    except InputError as error:
        raise error.at(file=file) from None


def _missing(fields: Mapping[str, Any], keys: Mapping[str, str]) -> Any:
    """What the files do not say and a plan needs: (field, an example, why)."""
    if "lr" not in fields:
        yield "lr", "LR", "the peak learning rate"
    if "effective_batch" not in fields:
        if "batch_per_gpu" not in fields and "micro_batch" not in fields:
            yield "effective_batch", "N", "samples in an optimizer step"
        elif "gpus" not in fields:
            per = keys.get("batch_per_gpu") or keys.get("micro_batch") or "batch_per_gpu"
            yield "gpus", "N", f"the GPUs that it was tuned on ({per} counts per GPU)"
    units = {name: str(fields[name]) for name in ("duration", "warmup", "schedule") if name in fields}
    for unit, field, what in (
        ("ep", "dataset_size", "samples in an epoch"),
        ("tok", "seq_len", "tokens in a sample"),
    ):
        users = [name for name, text in units.items() if _uses(text, unit)]
        if users and field not in fields:
            yield (
                field,
                "N",
                f"{what} ({keys.get(users[0]) or users[0]} is {units[users[0]]})",
            )


def _uses(text: str, unit: str) -> bool:
    return any(
        part.strip(" )").endswith(unit) and part.strip(" )")[: -len(unit)][-1:].isdigit()
        for part in text.replace("=", ",").replace("(", ",").split(",")
    )


def _asked(missing: Sequence[tuple[str, str, str]], pages: Sequence[Found]) -> InputError:
    file, title = pages[0].file, pages[0].title
    width = max(len(f"--set {field}={example}") for field, example, _ in missing)
    lines = [f"  {f'--set {field}={example}':<{width}}  {why}" for field, example, why in missing]
    notes = [f"  {page.file}: {note}" for page in pages for note in page.notes]
    text = "\n".join(
        (f"{title} does not say all that a plan needs. Add (in Python as keywords):", *lines, *notes)
    )
    causes = [InputError(f"missing: {why}", field=field) for field, _, why in missing]
    return InputError(text, file=file, field=missing[0][0] if len(missing) == 1 else None, causes=causes)


def _another_batch(left: Sequence[str], found: Found) -> bool:
    """Whether the file has a batch that was not read, and the one that was read is the tool's default."""
    if not any(looks(key) in ("batch", "batch_per_gpu", "effective_batch") for key in left):
        return False
    page = Page(found.settings, Found("", "", "", {}))
    batches = [
        key.removeprefix("--").replace("-", "_") if key.startswith("--") else key
        for field in ("batch_per_gpu", "micro_batch", "effective_batch")
        if (key := found.keys.get(field))
    ]
    return not any(page.has(key) for key in batches)


def _is_flat(settings: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, Mapping) for value in settings.values())
