"""A configuration, looked at before it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from isobatch.doctor import general, tools
from isobatch.doctor.finding import Case, Finding
from isobatch.errors import InputError
from isobatch.planning.plan import Plan, plan
from isobatch.recipes.recipe import Recipe
from isobatch.tools.reading.batch import complete
from isobatch.tools.reading.batch import counted as counted_from_1
from isobatch.tools.reading.page import Found
from isobatch.tools.reading.read import read_file
from isobatch.words import count, counted


class Diagnosis(NamedTuple):
    """What was found.

    Attributes:
        batch: samples in a step on those GPUs, as the file is; None where it does not say.
        findings: what its author may not have meant, the most expensive first.
        text: all of it in words.
    """

    batch: int | None
    findings: tuple[Finding, ...]
    text: str


def examine(path: str | os.PathLike[str], gpus: int, *, tool: str | None = None, **given: Any) -> Diagnosis:
    """What a configuration will do on a given number of GPUs.

    Args:
        path: another tool's configuration, as for `Recipe.read`.
        gpus: where it is to run.
        tool: whose it is; None: found by what is in it.
        given: what the file does not say, as fields of a recipe; `gpus` of the tuned run are `tuned_gpus`.

    Raises:
        InputError: the file cannot be read, or contradicts itself.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "args.json"
    >>> _ = file.write_text('{"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100, "max_grad_norm": 1.0}')
    >>> examine(file, 64, tuned_gpus=8).findings[0].what
    'a step has 512 samples, 8 × the 64 that it was tuned with'
    """
    if type(gpus) is not int or gpus < 1:
        raise InputError(f"gpus must be a whole number from 1, got {gpus!r}", field="gpus")
    for name in ("tuned_gpus", "batch_per_gpu", "accumulation", "model_parallel", "effective_batch"):
        if given.get(name) is not None:
            given[name] = counted_from_1(name, given[name])
    found = read_file(path, tool)
    fields = {
        **found.fields,
        **{("gpus" if name == "tuned_gpus" else name): value for name, value in given.items()},
    }
    tuned, made = _tuned(fields, found, gpus)
    case = Case(found, fields, gpus, _batch(fields, gpus, tuned), tuned, made)
    findings = (*general.check(case), *tools.check(case))
    return Diagnosis(case.batch, findings, "\n".join(_lines(case, findings)))


def _batch(fields: Mapping[str, Any], gpus: int, tuned: int | None) -> int | None:
    """Samples in a step there: a batch of all stays where the tool works the accumulation out, a batch per GPU grows with them."""
    if fields.get("effective_batch") is not None and not {"batch_per_gpu", "accumulation"} <= fields.keys():
        return int(fields["effective_batch"])
    micro = fields.get("batch_per_gpu") or fields.get("micro_batch")
    replicas = gpus // (fields.get("model_parallel") or 1)
    if micro is None or not replicas:
        return tuned
    return int(micro) * int(fields.get("accumulation") or 1) * replicas


def _tuned(fields: Mapping[str, Any], found: Found, gpus: int) -> tuple[int | None, Plan | None]:
    """The batch of the tuned run, and the plan that keeps it there."""
    try:
        done = complete(fields, found.keys)
    except InputError as error:
        found.notes.append(error.message)
        return None, None
    batch = done.get("effective_batch")
    if batch is None or done.get("lr") is None:
        return batch, None
    recipe = _recipe(done, found)
    if recipe is None:
        return batch, None
    made = plan(recipe, gpus)
    return batch, None if made.status == "infeasible" else made


def _recipe(fields: Mapping[str, Any], found: Found) -> Recipe | None:
    """The recipe, if need be without what it cannot be planned with: a length in epochs without the dataset's size."""
    lengths = ("duration", "warmup", "schedule", "ramp")
    kept = {name: value for name, value in fields.items() if name not in lengths}
    for last, part in enumerate((fields, kept)):
        try:
            return Recipe(**part)
        except InputError as error:
            if last:
                found.notes.append(error.message)
    return None


def _split(case: Case, batch: int) -> str:
    """How the file's micro-batch makes the batch there; nothing where it does not."""
    micro = case.fields.get("batch_per_gpu")
    if type(micro) is not int or micro < 1 or not case.replicas or batch % (micro * case.replicas):
        return ""
    return f" = {micro} × {batch // (micro * case.replicas)} × {counted(case.replicas, 'replica')}"


def _lines(case: Case, findings: Sequence[Finding]) -> Any:
    yield f"{case.found.file}: {case.found.title}, on {counted(case.gpus, 'GPU')}"
    if case.batch is None:
        yield "The file does not say the batch: give --set batch_per_gpu=N or effective_batch=N."
    else:
        yield f"As it is, a step has {count(case.batch)} samples{_split(case, case.batch)}."
    if case.tuned is None:
        yield "The GPUs that it was tuned on are not known: --set gpus=N compares with them."
    elif case.growth == 1:
        yield "That is the batch that it was tuned with: the learning rate stays."
    yield from case.found.notes
    yield from (error.message for to, error in case.found.faults if to not in case.fields)
    for number, finding in enumerate(findings, start=1):
        yield f"{number}. {finding}"
    if not findings:
        yield "Nothing found."
