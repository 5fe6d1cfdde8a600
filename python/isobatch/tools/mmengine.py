"""mmengine's Python configurations (mmdetection, mmpretrain, mmsegmentation …), read as literals and never executed."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isobatch.tools.page import SettingsPage, length
from isobatch.tools.tool import Case, Issue, Reader, Tool
from isobatch.words import real

_RUNNER = """
    model work_dir train_dataloader val_dataloader test_dataloader train_cfg val_cfg test_cfg auto_scale_lr optim_wrapper
    param_scheduler val_evaluator test_evaluator default_hooks custom_hooks data_preprocessor load_from resume launcher env_cfg
    log_processor log_level visualizer default_scope randomness experiment_name cfg
"""
"""What mmengine 0.10 takes of a file; every other name is a variable of its author."""
_HARMLESS = """
    auto_scale_lr.enable custom_hooks custom_imports* data_preprocessor.* default_hooks.* default_scope env_cfg.* experiment_name launcher
    optim_wrapper.constructor optim_wrapper.paramwise_cfg.* optim_wrapper.clip_grad.* optim_wrapper.optimizer.* optim_wrapper.loss_scale*
    optim_wrapper.dtype optim_wrapper.use_fsdp randomness.* runner_type train_cfg.type train_cfg.val_* train_cfg.dynamic_intervals*
    train_cfg.by_epoch train_dataloader.* visualizer.* val_dataloader.batch_size test_dataloader.batch_size model.* optim_wrapper.type work_dir cfg
"""
_ITERATIONS = ("begin", "end", "T_max", "milestones", "step_size")
_COSINES, _POWERS = ("CosineAnnealingLR", "CosineAnnealing"), ("PolyLR", "PolynomialLR")


class Stretch(NamedTuple):
    """One of the schedulers: it acts from `begin` to `end`, both in epochs (ep) or steps (st); `end` is None for that of the run."""

    kind: str
    unit: str
    begin: float
    end: float | None
    given: Mapping[str, Any]


def read(page: SettingsPage) -> None:
    """Reads `auto_scale_lr.base_batch_size` as the tuned batch; with the batch of one GPU it gives
    the GPUs of the tuned run, which the configuration does not name.
    """
    page.reading.used |= page.settings.keys() - {*_RUNNER.split()}
    page.note_bases("_base_")
    page.whole("train_dataloader.batch_size", "batch_per_gpu")
    each = page.whole("optim_wrapper.accumulative_counts", "accumulation", default=1) or 1
    base = page.whole("auto_scale_lr.base_batch_size")
    if base:
        page.give("effective_batch", base * each, "auto_scale_lr.base_batch_size")
    if base and each > 1:
        page.note(
            f"auto_scale_lr.base_batch_size {base} counts no accumulation: a step had {base} × {each} samples"
        )
    inner = page.table("optim_wrapper.optimizer")
    page.optimizer("optim_wrapper.optimizer.type", inner.word("type"))
    inner.number("lr", "lr")
    inner.torch_optimizer()
    page.clip("optim_wrapper.clip_grad.max_norm")
    if page.word("optim_wrapper.type", "") == "AmpOptimWrapper":
        page.give("precision", "fp16", "optim_wrapper.type")
    page.length("train_cfg.max_epochs", "duration", "ep")
    iterations = page.whole("train_cfg.max_iters")
    if iterations and iterations > 0 and iterations % each:
        text = f"train_cfg.max_iters {iterations} is no multiple of accumulative_counts {each}"
        page.ask("duration", text, "train_cfg.max_iters")
    elif iterations and iterations > 0:
        page.give("duration", length(iterations // each, "st"), "train_cfg.max_iters")
    if page.has("param_scheduler"):
        _schedule(page)


def _schedule(page: SettingsPage) -> None:
    """A warmup, then one decay: what more there is cannot be planned."""
    value = page.raw("param_scheduler")
    parts = [_part(page, it) for it in (value if isinstance(value, list) else [value])]
    if None in parts:
        return page.unsupported(
            "param_scheduler",
            "a scheduler whose begin, end or type is computed, or whose iterations accumulative_counts does not divide,",
        )
    # Others move the momentum, the weight decay, or what `param_name` says.
    rates = [
        it
        for it in parts
        if it and (it.kind.endswith(("LR", "Annealing")) or it.given.get("param_name") == "lr")
    ]
    if len(rates) < len(parts):
        page.note(
            "a scheduler of param_scheduler that moves no learning rate stays as it is: no plan moves it"
        )
    rates = [part for part in rates if not (part.kind == "ConstantLR" and part.given.get("factor") == 1)]
    warmups = [part for part in rates if part.kind == "LinearLR" and part.begin == 0 and part.end]
    decays = [part for part in rates if part not in warmups]
    if len(warmups) > 1 or len(decays) > 1:
        kinds = ", ".join(part.kind for part in rates)
        return page.unsupported("param_scheduler", f"a schedule of several parts ({kinds})")
    for part in warmups:
        _warmup(page, part)
    if not decays:
        return page.give("schedule", "constant", "param_scheduler")
    return _decay(page, decays[0], warmups[0] if warmups else None)


def _part(page: SettingsPage, given: Any) -> Stretch | None:
    if not isinstance(given, Mapping):
        return None
    unit = "ep" if given.get("by_epoch", True) else "st"
    if unit == "st" and (given := _in_steps(given, page.reading.fields.get("accumulation") or 1)) is None:
        return None
    begin, end, kind = given.get("begin", 0), given.get("end"), given.get("type")
    if not isinstance(begin, int | float) or not isinstance(end, int | float | None):
        return None
    if not math.isfinite(begin) or not math.isfinite(end or 0):
        return None
    if end is not None and length(end, unit) == page.reading.fields.get("duration"):
        end = None
    return Stretch(getattr(kind, "name", kind) or "", unit, begin, end, given)


def _in_steps(given: Mapping[str, Any], each: int) -> Mapping[str, Any] | None:
    """A scheduler's iterations, each a micro-batch, in optimizer steps; None where they are no whole steps."""
    lengths = {key: given[key] for key in _ITERATIONS if given.get(key) is not None} if each > 1 else {}
    steps = dict[str, Any]()
    for key, value in lengths.items():
        listed = value if isinstance(value, list) else [value]
        if not all(type(it) is int and it % each == 0 for it in listed):
            return None
        divided = [it // each for it in listed]
        steps[key] = divided if isinstance(value, list) else divided[0]
    return {**given, **steps}


def _warmup(page: SettingsPage, part: Stretch) -> None:
    first, last = part.given.get("start_factor", 1.0 / 3), part.given.get("end_factor", 1.0)
    if last != 1 or not isinstance(first, int | float) or first >= 1:
        return page.unsupported("param_scheduler", "a LinearLR that does not end at the learning rate")
    page.give("warmup", length(part.end or 0, part.unit), "end of param_scheduler's LinearLR")
    return page.note(f"the warmup starts at {first} of the learning rate, the plan's at 0")


def _decay(page: SettingsPage, part: Stretch, warmup: Stretch | None) -> None:
    if part.kind in ("MultiStepLR", "StepLR"):
        return _drops(page, part)
    if part.kind not in _COSINES + _POWERS:
        return page.unsupported("param_scheduler", f"the scheduler {part.kind}")
    power = float(part.given.get("power", 1.0))
    shape = "cosine" if part.kind in _COSINES else f"polynomial(power={power})"
    span = None if part.end is None else part.end - part.begin
    own = part.given.get("T_max") if part.kind in _COSINES else None
    run = str(page.reading.fields.get("duration"))
    if span is None and run.endswith(part.unit):
        span = float(run.removesuffix(part.unit)) - part.begin
    if own is not None and own not in (span, None if span is None else span - 1):
        return page.unsupported("param_scheduler", f"a cosine whose T_max {own} is not its own length")
    end, ratio = part.given.get("eta_min"), part.given.get("eta_min_ratio")
    if type(end) in (int, float):
        page.give("min_lr", end, "param_scheduler")
    elif type(ratio) in (int, float):
        page.times_lr("min_lr", ratio, "param_scheduler")
    if part.unit == "ep" and not part.given.get("convert_to_iter_based"):
        page.note("the learning rate moves once an epoch, the plan's every step")
    starts = 0 if warmup is None else warmup.end
    if part.begin == starts and (warmup is None or warmup.unit == part.unit):
        if part.end is not None:
            until = f"until={length(part.end, part.unit)})"
            shape = f"{shape[:-1]}, {until}" if shape.endswith(")") else f"{shape}({until}"
        return page.give("schedule", shape, "param_scheduler")
    if part.begin == 0:
        page.note("the decay counts from the start of the run, the plan's from the end of the warmup")
        return page.give("schedule", shape, "param_scheduler")
    if part.end is not None or span is None or shape not in ("cosine", "polynomial(power=1.0)"):
        return page.unsupported("param_scheduler", f"a {part.kind} that begins at {part.begin}")
    plain = "cosine" if shape == "cosine" else "linear"
    return page.give("schedule", f"wsd(decay={length(span, part.unit)}, shape={plain})", "param_scheduler")


def _drops(page: SettingsPage, part: Stretch) -> None:
    """Milestones count from the scheduler's begin; what lies behind its end is never reached."""
    gamma, points, every = (part.given.get(key) for key in ("gamma", "milestones", "step_size"))
    gamma = 0.1 if gamma is None else gamma
    if part.kind == "StepLR" and part.begin == 0 and part.end is None and type(every) is int:
        return page.give("schedule", f"step(every={every}{part.unit}, gamma={gamma})", "param_scheduler")
    if part.kind == "StepLR" or not isinstance(points, list) or not all(type(it) is int for it in points):
        return page.unsupported("param_scheduler", f"this {part.kind}")
    reached = [part.begin + it for it in points if part.end is None or part.begin + it < part.end]
    texts = ", ".join(length(it, part.unit) for it in reached)
    schedule = f"multistep({texts}, gamma={gamma})" if reached else "constant"
    return page.give("schedule", schedule, "param_scheduler")


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    base, enabled = case.at("auto_scale_lr", "base_batch_size"), case.at("auto_scale_lr", "enable")
    lr, each = case.fields.get("lr"), case.fields.get("accumulation") or 1
    batch = None if case.batch is None else case.batch // each  # mmengine does not count the accumulation
    if type(base) is int and batch is not None and base != batch and lr:
        scaled = f"{real(lr * batch / base)} with --auto-scale-lr"
        yield Issue(
            f"the learning rate is {scaled if enabled else real(lr) + ', and ' + scaled}",
            f"base_batch_size is {base}, {'an iteration' if each > 1 else 'a step'} here has {batch}; mmengine scales linearly, whatever the optimizer",
            "mmengine, runner/runner.py: Runner.scale_lr; open-mmlab/mmdetection#3079, #3080",
            f"optim_wrapper.optimizer.lr = {real(lr * batch / base)}",
        )


MMENGINE = Tool("mmengine", "mmengine", Reader("0.7 to 0.10", read, check, _HARMLESS))
