"""mmengine's Python configurations (mmdetection, mmpretrain, mmsegmentation …), read as literals and never executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.tools.page import SettingsPage, length
from isobatch.tools.tool import Case, Issue, Reader, Tool
from isobatch.words import real

_NAMES = {
    "accumulation": "optim_wrapper.accumulative_counts",
    "batch_per_gpu": "train_dataloader.batch_size",
    "lr": "optim_wrapper.optimizer.lr",
}


def read(page: SettingsPage) -> None:
    """Reads `auto_scale_lr.base_batch_size` as the tuned batch; with the batch of one GPU it gives
    the GPUs of the tuned run, which the configuration does not name.
    """
    page.note_bases("_base_")
    page.whole("train_dataloader.batch_size", "batch_per_gpu")
    page.whole("optim_wrapper.accumulative_counts", "accumulation", default=1)
    page.whole("auto_scale_lr.base_batch_size", "effective_batch")
    inner = page.table("optim_wrapper.optimizer")
    page.optimizer("optim_wrapper.optimizer.type", inner.word("type"))
    inner.number("lr", "lr")
    inner.torch_optimizer()
    page.clip("optim_wrapper.clip_grad.max_norm")
    if page.word("optim_wrapper.type", "") == "AmpOptimWrapper":
        page.give("precision", "fp16", "optim_wrapper.type")
    page.length("train_cfg.max_epochs", "duration", "ep")
    page.length("train_cfg.max_iters", "duration", "st")
    value = page.raw("param_scheduler")
    parts = [value] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    for part in parts:
        if isinstance(part, Mapping):
            _scheduler(page, part)


def _scheduler(page: SettingsPage, part: Mapping[str, Any]) -> None:
    """Reads one of the schedulers; they run one after the other."""
    kind, unit = part.get("type"), "ep" if part.get("by_epoch", True) else "st"
    end: Any = part.get("end")
    start = part.get("begin") or 0
    if (
        kind == "LinearLR"
        and start == 0
        and part.get("start_factor", 1.0 / 3) < 1
        and type(end) in (int, float)
    ):
        page.give("warmup", length(end, unit), "end of param_scheduler's LinearLR")
        page.note(f"the warmup starts at {part.get('start_factor')} of the learning rate, the plan's at 0")
    elif kind == "MultiStepLR" and isinstance(part.get("milestones"), list):
        points = ", ".join(f"{point}{unit}" for point in part["milestones"])
        page.give("schedule", f"multistep({points}, gamma={part.get('gamma', 0.1)})", "param_scheduler")
    elif kind in ("CosineAnnealingLR", "CosineAnnealing"):
        page.give("schedule", "cosine", "param_scheduler")
        if type(part.get("eta_min")) in (int, float):
            page.give("min_lr", part["eta_min"], "param_scheduler")
    elif kind in ("PolyLR", "PolynomialLR"):
        page.give("schedule", f"polynomial(power={part.get('power', 1.0)})", "param_scheduler")
        if type(part.get("eta_min")) in (int, float):
            page.give("min_lr", part["eta_min"], "param_scheduler")
    elif kind == "ConstantLR":
        page.give("schedule", "constant", "param_scheduler")
    else:
        page.unsupported("param_scheduler", f"the scheduler {kind!r}")


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    base, enabled = case.at("auto_scale_lr", "base_batch_size"), case.at("auto_scale_lr", "enable")
    lr = case.fields.get("lr")
    if type(base) is int and case.batch is not None and base != case.batch and lr:
        scaled = f"{real(lr * case.batch / base)} with --auto-scale-lr"
        yield Issue(
            f"the learning rate is {scaled if enabled else real(lr) + ', and ' + scaled}",
            f"base_batch_size is {base}, a step here has {case.batch}; mmengine scales linearly, whatever the optimizer",
            "mmengine, runner/runner.py: Runner.scale_lr; open-mmlab/mmdetection#3079, #3080",
            f"optim_wrapper.optimizer.lr = {real(lr * case.batch / base)}",
        )


MMENGINE = Tool(
    name="mmengine",
    title="mmengine",
    reader=Reader(versions="0.7 to 0.10", read=read, check=check, names=_NAMES),
)
