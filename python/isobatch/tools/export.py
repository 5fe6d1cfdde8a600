"""Writes a plan as the file of a tool."""

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.files.texts import commented, json_text, scalar_text, toml_text, yaml_text
from isobatch.planning.export import Export
from isobatch.tools.detect import writer
from isobatch.tools.map import wordless, write_settings
from isobatch.tools.page import leaves, value_at
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import Tool, Writer
from isobatch.words import count, counted, few, number_of

_KEEP = "only what the plan decides: set these in your own file and keep its other settings"

_SWITCHES = re.compile(r"clip|grad_norm|weight.decay")
"""Settings that 0 switches off."""
_LENGTHS_AND_BATCH = ("batch_per_gpu", "micro_batch", "accumulation", "duration", "warmup")
"""Fields of a recipe that a writer may say by another setting than the file."""
_SUFFIXES = {f".{form}": form for form in ("yaml", "json", "toml", "sh", "py")}
_SUFFIXES |= {".yml": "yaml", ".sbatch": "sh"}


def form_of(tool: str, path: str | os.PathLike[str] | None) -> str:
    """Returns the format of a tool's file by its name."""
    known = writer(tool)
    how, suffix = _writing(known), Path(path or "").suffix
    form = _SUFFIXES.get(suffix.lower(), how.forms[0])
    if form not in how.forms:
        legal = ", ".join(suffix for suffix, form in _SUFFIXES.items() if form in how.forms)
        raise InputError(f"{known.title} has no {suffix} files: use {legal}", file=os.fspath(path or ""))
    return form


def _writing(tool: Tool) -> Writer:
    assert tool.writer is not None
    return tool.writer


def export(
    plan: Planned, tool: str, *, was: Planned | None = None, form: str | None = None, job: Job | None = None
) -> Export:
    """Writes a plan as a tool's file, with a remark on each value other than the tuned run's (`was`)."""
    known = writer(tool)
    how = _writing(known)
    job, form = job or Job(), form or how.forms[0]
    if form not in how.forms:
        raise unknown("form", form, how.forms, field="form")
    factors = (plan.micro_batch, plan.accumulation, plan.data_parallel)
    product, samples = " × ".join(map(str, factors)), math.prod(factor or 0 for factor in factors)
    is_even = samples == plan.effective_batch
    if not is_even and not how.runs_ragged:
        raise InputError(
            f"{known.title} gives every replica the same micro-batches: {product} replicas would be "
            f"{count(samples)} samples a step, not {count(plan.effective_batch or 0)}; plan with "
            "batch_tolerance in the place of split, or train with ElasticRun (docs/elastic.md)"
        )
    if job.elastic and how.is_part:
        raise InputError(f"{known.title} starts no script: elastic is for launchers", field="elastic")
    sheet = _sheet(known, how, plan, job)
    before = {} if was is None else leaves(_sheet(known, how, was, job).settings)
    now = leaves(sheet.settings)
    for at, value in leaves(job.own).items() if before else ():
        if at in now and isinstance(value, str | int | float):
            before[at] = now[at] if _is_same(value, now[at]) else value
    moved = [at for at in now if before and before.get(at) != now[at] and not at.endswith("_port")]
    remarks = {at: f"was {_value_text(before[at]) if at in before else 'not set'}" for at in moved}
    gone = _replaced(known, job.own, now)
    flags = [f"--{key.replace('_', '-')}" if form == "sh" else key for key in gone]
    comments = [*([_KEEP] if how.is_part else []), *job.elsewhere]
    comments += [*([f"remove {', '.join(flags)}"] if flags else []), *sheet.comments]
    off = [at for at, value in now.items() if value == 0 and value is not False and _SWITCHES.search(at)]
    if off and not job.own:  # a file of the same tool has said so
        comments.append(
            f"{few(off)}: 0, since the recipe has none; the default of {known.title} may be another"
        )
    if plan.recipe.ramp and not how.runs_ramps:
        comments.append(f"{known.title} has no batch ramp: it trains with the full batch from the start")
    weights = " (some micro-batches are smaller or fewer: weight each loss by plan.loss_weights(rank))"
    split = (
        f"{counted(plan.world_size, 'GPU')}, {plan.effective_batch} samples a step "
        f"{'=' if is_even else 'in'} {product} {'replica' if plan.data_parallel == 1 else 'replicas'}"
        f"{'' if is_even else weights}"
    )
    top = "".join(f"{commented(comment)}\n" for comment in (f"isobatch: {split}", *comments))
    if form == "json":
        text = json_text(sheet.settings)
    elif form in ("yaml", "toml"):
        text = top + (yaml_text if form == "yaml" else toml_text)(sheet.settings, remarks)
    else:
        assert how.render is not None
        text = how.render(sheet, remarks, top, job)
    if form == "json" and not is_even:
        comments.insert(0, split)  # which the other formats have above their comments
    changes = [f"{at}: {remarks[at].removeprefix('was ')} → {_value_text(now[at])}" for at in remarks]
    return Export(known.name, how.file, text, (*comments, *changes), sheet.settings, (_KEEP, *sheet.of_file))


def _sheet(tool: Tool, how: Writer, plan: Planned, job: Job) -> SettingsSheet:
    """Writes the settings of a plan: by the tool's own code, or by its map alone."""
    if how.write is not None:
        return how.write(plan, job)
    return SettingsSheet(write_settings(plan, tool.settings), [*wordless(plan, tool.settings)])


def _replaced(tool: Tool, own: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lists a file's own settings of batch, length and warmup, written by other names now."""
    from isobatch.tools.read import read_file

    if tool.reader is None or not own:
        return []
    places = {place.rpartition(".")[0] for place in now}
    keys = [read_file(own, tool.name).keys.get(field, "") for field in _LENGTHS_AND_BATCH]
    gone = [key for key in keys if key not in now and value_at(own, key) is not None]
    return [key for key in dict.fromkeys(gone) if key.rpartition(".")[0] in places]


def _is_same(value: Any, now: Any) -> bool:
    """Tells whether two texts, numbers or flags are one: 2e-5 and 2.0e-05, True and true."""
    texts = str(value).lower(), str(now).lower()
    return texts[0] == texts[1] or None is not number_of(texts[0]) == number_of(texts[1])


def _value_text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else scalar_text(value)
