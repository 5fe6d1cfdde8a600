"""Asks one head: builds it tiny, takes its steps, and says the verdict in one record."""

import functools
import inspect
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Trainer

import isobatch as ib
from census import rows, tiny
from census.heads import ROUTED, Head

SPLITS = ("1x4x2", "1x2x4")
FAILURES = 8
"""Builds of one head that are tried."""


def ask_head(head: Head, *, routed: bool = False) -> dict[str, Any]:
    """Asks a class of transformers under its Trainer, its balance loss of experts on if `routed`."""
    record: dict[str, Any] = {"head": head.name + (ROUTED if routed else "")}
    model_class = head.load()
    model, batch, reasons = build_head(model_class, routed=routed)
    if model is None:
        return {**record, "asked": "not built", "why": reasons[-1] if reasons else "no build was tried"}
    collating = functools.partial(Trainer, data_collator=rows.collate)
    arguments = {"remove_unused_columns": False, "learning_rate": 1e-3}
    record |= answer(model, batch, trainer=collating, arguments=arguments)
    record["router"] = tiny.has_router(model.config)
    return record


def answer(model: Any, batch: Any, **keywords: Any) -> dict[str, Any]:
    """Asks a model, also by ranks where these can be asked."""
    try:
        same = ib.same_model(model, batch, splits=SPLITS, **keywords)
    except ib.InputError as error:
        if "ranks=1 asks" not in str(error):
            return {"asked": "not built", "why": f"not asked: {error}"[:200]}
        same = ib.same_model(model, batch, splits=SPLITS, ranks=1, **keywords)
    by_ranks = {True: [], False: []}
    for split in same.splits:
        by_ranks[split.split.startswith("2")].append(split)
    causes = {ranks: cause_text(splits) for ranks, splits in by_ranks.items()}
    return {
        "asked": "run",
        "split": " ".join(split.split for split in same.splits),
        "verdict": "the same" if same.same else "not the same",
        "cause": causes[False],
        "ranks": causes[True] if by_ranks[True] else "not asked",
        "weights": {split.split: short_weights(split.weights) for split in same.splits if split.causes},
    }


def cause_text(splits: list[Any]) -> str:
    """Joins the causes of splits, each with the law of its factor where it has one."""
    names: dict[str, None] = {}
    for split in splits:
        for cause in split.causes:
            law = re.search(r"\((× [^)]*|1/[^)]*)\)|(× [^:]*) for a term", cause.text)
            names[cause.name + (f", {law[1] or law[2]}" if law else "")] = None
    return "; ".join(names)


def short_weights(weights: list[float]) -> Any:
    """Shortens weights: one number where they are alike."""
    if not weights:
        return []
    short = [float(f"{weight:.3g}") for weight in weights]
    return short[0] if np.ptp(weights) < 2e-3 * max(map(abs, weights)) else short


def build_head(model_class: Any, *, routed: bool = False) -> tuple[Any, Any, list[str]]:
    """Builds a model and rows with which a backward pass succeeds; else says what each try met."""
    arguments = set(inspect.signature(model_class.forward).parameters)
    reasons: list[str] = []
    for layers, divisor in _sizes(model_class):
        for variant in rows.VARIANTS:
            is_final = any("not implemented" in reason.lower() for reason in reasons)
            if is_final or len(reasons) >= FAILURES or max(map(reasons.count, reasons), default=0) > 2:
                return None, None, reasons
            stage = "build"
            try:
                model, config = tiny.build(model_class, divisor, layers, routed=routed)
                stage = "rows"
                batch = rows.rows_of(model_class, config, arguments, variant)
                stage = "forward"
                _check_loss(model.train(), batch)
            except Exception as error:  # a model raises what it likes
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                reason = f"{stage}: {type(error).__name__}: {str(error)[:120]} ({where})"
                reasons.append(reason)
                if stage == "build":
                    break
            else:
                model.zero_grad(set_to_none=True)
                return model, batch, reasons
    return None, None, reasons


def _sizes(model_class: Any) -> list[tuple[int, int]]:
    """Lists layers and divisors of the width to try, the smallest model first."""
    width, divisor = tiny.width(tiny.families.config_of(model_class)), 1
    while divisor * 2 * 40 <= width:
        divisor *= 2
    sizes = [(2, divisor), (2, divisor // 2), (4, divisor // 2), (2, divisor // 4), (4, divisor // 8), (2, 1)]
    return list(dict.fromkeys((layers, max(1, size)) for layers, size in sizes))


def _check_loss(model: Any, batch: list[dict[str, Any]]) -> None:
    output = model(**rows.collate(batch[:2]))
    loss = output["loss"] if hasattr(output, "keys") else output[0]
    if not torch.is_tensor(loss) or loss.numel() != 1:
        raise ValueError(f"no loss ({type(loss).__name__})")
    if not torch.isfinite(loss).all():
        raise ValueError("the loss is not finite")
    loss.backward()
