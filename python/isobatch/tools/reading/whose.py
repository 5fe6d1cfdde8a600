"""Whose file it is, by the names that only one tool has; a file whose names are everybody's is nobody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.reading.meaning import as_recipe
from isobatch.tools.reading.ours import is_plan, is_recipe
from isobatch.tools.reading.page import Found, Page
from isobatch.tools.reading.readers import READERS, reader

_EVERYBODYS = frozenset(
    (
        "_BASE_",
        "_base_",
        "adapter",
        "bf16",
        "datasets",
        "fp16",
        "global_batch_size",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "hidden_size",
        "learning_rate",
        "lr_decay_iters",
        "lr_scheduler",
        "lr_scheduler.warmup_steps",
        "max_grad_norm",
        "micro_batch_size",
        "mixed_precision",
        "model.class_path",
        "model_name_or_path",
        "num_epochs",
        "num_layers",
        "num_processes",
        "num_machines",
        "optim",
        "optimizer",
        "optimizer.name",
        "output_dir",
        "seq_length",
        "sequence_len",
        "stage",
        "template",
        "train_batch_size",
        "train_dataloader",
        "train_loader",
        "trainer.max_epochs",
        "trainer.max_steps",
        "trainer.precision",
        "trainer.strategy",
        "training.batch_size",
        "training.global_batch_size",
        "training.seq_len",
        "training.steps",
        "warmup_epochs",
        "warmup_ratio",
    )
)
"""Names of a tool that many people's own scripts have, too: alone they are no evidence."""

_ENOUGH = 5
"""Of such names together."""

_FEW = 3
"""Names of a tool by which a recipe that cannot be read is said to be its."""


def whose(settings: Mapping[str, Any], file: str) -> str:
    """The tool that most of a file's names belong to.

    Raises:
        InputError: it is a recipe or a plan of isobatch, or no tool's clearly; the message says what to do.
    """
    refuse_ours(settings, file)
    scores = _scores(settings)
    best = max(scores.values(), default=0)
    names = [name for name, score in scores.items() if score == best]
    # Of a tool and one that adds names to it the first, where none of those is there.
    names = [n for n in names if not any(set(reader(m).SIGNS) < set(reader(n).SIGNS) for m in names)]
    if not names:
        raise nobodys(settings, file)
    if len(names) > 1:
        raise InputError(
            f"may be of {' or of '.join(names)}: say which by --tool (in Python: tool=)",
            file=file,
            field="tool",
        )
    return names[0]


def looks_like(settings: Mapping[str, Any]) -> str | None:
    """The title of the tool whose names a file has, as people write it; None where they are not clearly one's.

    >>> looks_like({"per_device_train_batch_size": 8, "num_train_epochs": 3, "lr_scheduler_type": "cosine"})
    'transformers TrainingArguments'
    >>> looks_like({"effective_batch": 256, "lr": 0.1})
    """
    try:
        module = reader(whose(settings, ""))
    except InputError:
        return None
    return module.TITLE if len(_signs(settings, module.SIGNS)) >= _FEW else None


def refuse_ours(settings: Mapping[str, Any], file: str) -> None:
    """Refuses a file of isobatch's own in the place of another tool's.

    Raises:
        InputError: it is a recipe, or a saved plan.
    """
    if is_plan(settings):
        raise InputError(
            "is a plan of isobatch, not another tool's file: isobatch plan --to writes it for a tool, isobatch replan moves its run",
            file=file,
        )
    if is_recipe(settings):
        raise InputError(
            f"is a recipe of isobatch, not another tool's file: isobatch plan {file} --gpus N (in Python: Recipe.load)",
            file=file,
        )


def _scores(settings: Mapping[str, Any]) -> dict[str, int]:
    """How many names each tool has in a file, of those that have one of their own there, or many."""
    scores = {}
    for name in READERS:
        signs = _signs(settings, reader(name).SIGNS)
        if len(signs) >= _ENOUGH or any(sign not in _EVERYBODYS for sign in signs):
            scores[name] = len(signs)
    return scores


def _signs(settings: Mapping[str, Any], signs: tuple[str, ...]) -> list[str]:
    page = Page(settings, Found("", "", "", {}))
    return [sign for sign in signs if page.raw(sign) is not None]


def nobodys(settings: Mapping[str, Any], file: str) -> InputError:
    """A file that no tool clearly owns, and what it may mean."""
    near = [name for name in READERS if _signs(settings, reader(name).SIGNS)]
    hint = f" (some names are also of {', '.join(near)})" if near else ""
    lines = "\n".join(f"  --set {line}" for line in as_recipe(settings))
    return InputError(
        f"no tool is recognized by these settings{hint}. Either\n"
        f"- name its tool with --tool (in Python: tool=), one of {', '.join(READERS)}\n"
        "- or give the run as a recipe, in a file or by isobatch plan --gpus N and, where right (in Python: ib.Recipe(...)):\n"
        f"{lines}",
        file=file,
        field="tool",
    )
