"""Writes a plan as the file of a tool."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.files.texts import commented, json_text, scalar_text, toml_text, yaml_text
from isobatch.files.whole import write_whole
from isobatch.tools.detect import writer
from isobatch.tools.page import leaves
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import Tool, Writer
from isobatch.words import count, counted

_KEEP = "only what the plan decides: set these in your own file and keep its other settings"

_SUFFIXES = {f".{form}": form for form in ("yaml", "json", "toml", "sh", "py")} | {
    ".yml": "yaml",
    ".sbatch": "sh",
}


@dataclass(frozen=True)
class Export:
    """A file for a tool.

    Attributes:
        tool, file: the tool, and the usual name of such a file.
        text: the whole file.
        notes: what the tool cannot say or does differently, and what changed from the tuned run.
        settings: the values in it.
    """

    tool: str
    file: str
    text: str
    notes: tuple[str, ...]
    settings: Mapping[str, Any]

    def __str__(self) -> str:
        return self.text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file, whole or not at all."""
        write_whole(path, self.text.encode())


def form_of(tool: str, path: str | os.PathLike[str] | None) -> str:
    """Returns the format of a tool's file by its name."""
    known, how = _writer(tool)
    if path is None or Path(path).suffix.lower() not in _SUFFIXES:
        return how.forms[0]
    form = _SUFFIXES[Path(path).suffix.lower()]
    if form not in how.forms:
        legal = ", ".join(suffix for suffix, form in _SUFFIXES.items() if form in how.forms)
        raise InputError(f"{known.title} has no {Path(path).suffix} files: use {legal}", file=os.fspath(path))
    return form


def export(
    plan: Planned, tool: str, *, was: Planned | None = None, form: str | None = None, job: Job | None = None
) -> Export:
    """Writes a plan as a tool's file.

    Args:
        plan: a feasible plan.
        tool: that has a writer.
        was: the tuned run, planned where it was tuned: a value that differs from it has a remark.
        form: one of the tool's; None: the usual one.
        job: for launchers.

    Raises:
        InputError: the tool or form is not known, the plan has no end, or the tool cannot run the plan at
            all.
    """
    known, how = _writer(tool)
    job, form = job or Job(), form or how.forms[0]
    if form not in how.forms:
        raise unknown("form", form, how.forms, field="form")
    if not _is_even(plan) and not how.runs_ragged:
        raise InputError(
            f"{known.title} gives every replica the same micro-batches: {_product(plan)} replicas would be "
            f"{count(_even_samples(plan))} samples a step, not {count(plan.effective_batch or 0)}; plan with "
            "batch_tolerance in the place of split, or train with ElasticRun (docs/elastic.md)"
        )
    if job.elastic and how.is_part:
        raise InputError(f"{known.title} starts no script: elastic is for launchers", field="elastic")
    sheet = how.write(plan, job)
    # Only the settings: the tuned run's curve is compared with nothing.
    before = {} if was is None else leaves(how.write(was, job).settings)
    now = leaves(sheet.settings)
    moved = [at for at in now if before and before.get(at) != now[at]]
    remarks = {at: f"was {_value_text(before[at]) if at in before else 'not set'}" for at in moved}
    comments = [_KEEP] if how.is_part else []
    comments += sheet.comments
    if plan.recipe.ramp and not how.runs_ramps:
        comments.append(f"{known.title} has no batch ramp: it trains with the full batch from the start")
    text = _text(how, form, sheet, remarks, [f"isobatch: {_split(plan)}", *comments], job)
    if form == "json" and not _is_even(plan):
        comments.insert(0, _split(plan))  # which the other formats have above their comments
    changes = [f"{at}: {remarks[at].removeprefix('was ')} → {_value_text(now[at])}" for at in remarks]
    return Export(known.name, how.file, text, (*comments, *changes), sheet.settings)


def _writer(tool: str) -> tuple[Tool, Writer]:
    known = writer(tool)
    assert known.writer is not None
    return known, known.writer


def _value_text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else scalar_text(value)


def _split(plan: Planned) -> str:
    even = _is_even(plan)
    weights = " (some micro-batches are smaller or fewer: weight each loss by plan.loss_weights(rank))"
    return (
        f"{counted(plan.world_size, 'GPU')}, {plan.effective_batch} samples a step {'=' if even else 'in'} "
        f"{_product(plan)} {'replica' if plan.data_parallel == 1 else 'replicas'}{'' if even else weights}"
    )


def _product(plan: Planned) -> str:
    return f"{plan.micro_batch} × {plan.accumulation} × {plan.data_parallel}"


def _is_even(plan: Planned) -> bool:
    return bool(_even_samples(plan) == plan.effective_batch)


def _even_samples(plan: Planned) -> int:
    """Counts the samples of a step with equal micro-batches on every replica."""
    return (plan.micro_batch or 0) * (plan.accumulation or 0) * (plan.data_parallel or 0)


def _text(
    how: Writer, form: str, sheet: SettingsSheet, remarks: Mapping[str, str], header: list[str], job: Job
) -> str:
    if form == "json":
        return json_text(sheet.settings)
    top = "\n".join(map(commented, header)) + "\n"
    if form in ("yaml", "toml"):
        return top + (yaml_text if form == "yaml" else toml_text)(sheet.settings, remarks)
    assert how.render is not None
    return how.render(sheet, remarks, top, job)
