"""A plan as the file of a tool."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.files.whole import write_whole
from isobatch.tools.reading.readers import READERS
from isobatch.tools.writing import forms
from isobatch.tools.writing.planned import Job, Planned, Sheet, leaves
from isobatch.words import count, counted

WRITERS = (
    "torchrun",
    "transformers",
    "accelerate",
    "deepspeed",
    "lightning",
    "megatron",
    "torchtitan",
    "slurm",
    "ray_train",
    "kubeflow",
    "skypilot",
    "torchx",
)
"""A file each in this folder."""

ALIKE = ("transformers", "lightning", "deepspeed", "megatron", "torchtitan")
"""Those whose own loop gives every replica the same micro-batches; the others start a loop that may weight its losses."""

PARTS = (*ALIKE, "accelerate")
"""Those whose file is a part of the user's own, which has the model, the data and the rest."""

_KEEP = "only what the plan decides: set these in your own file and keep its other settings"

_TAKEN_BY = {"axolotl": "transformers", "llama_factory": "transformers", "checkpoint": "transformers"}
"""Tools that are read only, and whose names their values are written in."""

_SUFFIXES = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sh": "sh",
    ".sbatch": "sh",
    ".py": "py",
}


@dataclass(frozen=True)
class Export:
    """A file for a tool.

    Attributes:
        tool, file: whose it is, and the name that such a file usually has.
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


def writer(name: str) -> ModuleType:
    """The writer of a tool.

    Raises:
        InputError: there is none of that name.
    """
    plain = name.lower().replace("-", "_")
    if plain in _TAKEN_BY:
        raise InputError(f"{name} is read, not written: use {_TAKEN_BY[plain]}", field="tool")
    if plain not in WRITERS:
        known = [tool.replace("_", "-") for tool in WRITERS]
        if plain in READERS:
            raise InputError(
                f"{name} is a tool whose files are read, not written: plans are written for {', '.join(known)}"
            )
        raise unknown("tool", name, known)  # what was typed is --to, and no option --tool
    return import_module(f"isobatch.tools.writing.{plain}")


def form_of(tool: str, path: str | os.PathLike[str] | None) -> str:
    """The format of a tool's file that is to have this name.

    Raises:
        InputError: the tool has no such files.
    """
    every: tuple[str, ...] = writer(tool).FORMS
    if path is None or Path(path).suffix.lower() not in _SUFFIXES:
        return every[0]
    form = _SUFFIXES[Path(path).suffix.lower()]
    if form not in every:
        legal = ", ".join(suffix for suffix, form in _SUFFIXES.items() if form in every)
        raise InputError(
            f"{writer(tool).TITLE} has no {Path(path).suffix} files: use {legal}", file=os.fspath(path)
        )
    return form


def export(
    plan: Planned, tool: str, *, was: Planned | None = None, form: str | None = None, job: Job | None = None
) -> Export:
    """The plan as a tool's file.

    Args:
        plan: a feasible plan.
        tool: one of WRITERS.
        was: the tuned run, planned where it was tuned: what differs from it is said beside each value.
        form: one of the tool's FORMS; None: the first.
        job: for launchers.

    Raises:
        InputError: the tool or form is not known, the plan has no end, or the tool cannot run the plan at all.
    """
    module, job = writer(tool), job or Job()
    form = form or module.FORMS[0]
    if form not in module.FORMS:
        raise unknown("form", form, module.FORMS, field="form")
    if _would_be(plan) != plan.effective_batch and module.NAME in ALIKE:
        raise InputError(
            f"{module.TITLE} gives every replica the same micro-batches: {_by(plan)} replicas would be {count(_would_be(plan))} "
            f"samples a step, not {count(plan.effective_batch or 0)}; plan with batch_tolerance in the place of split, or "
            "train with ElasticRun (docs/elastic.md)"
        )
    sheet = module.write(plan, job)
    before = {} if was is None else leaves(module.write(was, job).settings)
    now = leaves(sheet.settings)
    remarks = {
        at: f"was {_shown(before[at]) if at in before else 'not set'}"
        for at in now
        if before and before.get(at) != now[at]
    }
    comments = [*((_KEEP,) if module.NAME in PARTS else ()), *sheet.comments]
    header = [_split(plan), *comments]
    text = _render(module, sheet, remarks, header, form, job)
    changes = [f"{at}: {remarks[at].removeprefix('was ')} → {_shown(now[at])}" for at in remarks]
    return Export(module.NAME, module.FILE, text, (*comments, *changes), sheet.settings)


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return " ".join(value)
    return value if isinstance(value, str) else forms.scalar(value)


def _split(plan: Planned) -> str:
    gpus, same = counted(plan.world_size, "GPU"), _would_be(plan) == plan.effective_batch
    uneven = (
        ""
        if same
        else " (some micro-batches are smaller or fewer: weight each loss by plan.loss_weights(rank))"
    )
    noun = "replica" if plan.data_parallel == 1 else "replicas"
    return f"isobatch: {gpus}, {plan.effective_batch} samples a step {'=' if same else 'in'} {_by(plan)} {noun}{uneven}"


def _by(plan: Planned) -> str:
    return f"{plan.micro_batch} × {plan.accumulation} × {plan.data_parallel}"


def _would_be(plan: Planned) -> int:
    """Samples in a step where every replica takes as many micro-batches of the same size."""
    return (plan.micro_batch or 0) * (plan.accumulation or 0) * (plan.data_parallel or 0)


def _render(
    module: ModuleType, sheet: Sheet, remarks: Mapping[str, str], header: list[str], form: str, job: Job
) -> str:
    if form == "json":
        return forms.json_text(sheet.settings)
    top = "\n".join(forms.commented(line) for line in header) + "\n"
    if hasattr(module, "render") and form not in ("yaml", "toml"):
        text: str = module.render(sheet, remarks, top, job)
        return text
    if form == "yaml":
        return top + forms.yaml(sheet.settings, remarks)
    if form == "toml":
        return top + forms.toml(sheet.settings, remarks)
    said = "".join(forms.commented(f"{at}: {remark}") + "\n" for at, remark in remarks.items())
    dashes = getattr(module, "DASHES", False)
    command = getattr(module, "COMMAND", None)
    parts = [[*(command or ()), *job.command]] if command is not None else []
    return top + said + forms.shell([*parts, *forms.words(sheet.settings, dashes=dashes)]) + "\n"
