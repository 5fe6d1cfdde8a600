"""Plans as Megatron's arguments."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.sheet import (
    Curve,
    Job,
    Planned,
    SettingsSheet,
    curve,
    differs,
    flags,
    intervals,
    remark_lines,
    shell,
)
from isobatch.words import counted

_STYLES = {
    "constant": "constant",
    "linear": "linear",
    "linear_to_zero": "linear",
    "cosine": "cosine",
    "vaswani": "inverse-square-root",
}
SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "minus_sqrt"}


def write(plan: Planned, _job: Job) -> SettingsSheet:
    """Writes the whole plan: Megatron has an argument for each part."""
    sheet = SettingsSheet()
    line = curve(plan)
    sheet.settings = {"micro_batch_size": plan.micro_batch, "global_batch_size": plan.effective_batch}
    _write_length(plan, line, sheet)
    sheet.settings |= intervals(plan, "eval_interval", "save_interval", "log_interval")
    sheet.settings |= {"lr": plan.lr, "min_lr": line.bottom}
    if line.first:
        sheet.settings["lr_warmup_init"] = line.first
    _write_schedule(plan, line, sheet)
    _optimizer(plan, sheet)
    # Megatron clips at 1.0 unless it is asked not to.
    sheet.settings["clip_grad"] = plan.recipe.clip_norm or 0.0
    if plan.recipe.precision in ("bf16", "fp16"):
        sheet.settings[plan.recipe.precision] = True
    if plan.recipe.seq_len is not None:
        sheet.settings["seq_length"] = plan.recipe.seq_len
    sheet.note(
        "accumulation is Megatron's own quotient: "
        f"{counted(plan.accumulation or 1, 'micro-batch', 'micro-batches')} a step on {plan.data_parallel} "
        "replicas"
    )
    if getattr(plan, "moves", ()):
        sheet.note(
            "on resuming Megatron stops where lr, its warmup or its decay are not the checkpoint's: pass "
            "--override-opt_param-scheduler"
        )
    parallel = plan.world_size // (plan.data_parallel or plan.world_size)
    if parallel > 1:
        sheet.note(f"model parallelism over {parallel} GPUs stays as the script has it")
        if (experts_gpus := plan.recipe.expert_parallel or 1) > 1:
            sheet.note(
                f"experts stay split as the script has it: the GPUs must be a multiple of {experts_gpus}"
            )
        sheet.note(
            f"with interleaved pipeline stages the accumulation, {plan.accumulation}, must be a multiple of "
            "their number: plan with --accumulation-multiple"
        )
    return sheet


def _write_length(plan: Planned, line: Curve, sheet: SettingsSheet) -> None:
    """Writes the length as the recipe counts it, in iterations or samples.

    Megatron demands samples if the batch ramps.
    """
    ramp = plan.recipe.ramp
    in_samples = str(plan.recipe.duration).endswith("sp")
    if ramp is None and not in_samples:
        sheet.settings |= {
            "train_iters": line.total,
            "lr_decay_iters": line.lengths.get("until", _in_batches(plan, line.total)),
            "lr_warmup_iters": _in_batches(plan, line.warmup),
        }
        return
    moves = plan.moves
    if ramp is not None and moves and plan.stages[-1].step <= moves[-1].step:
        sheet.note("the batch ramp is over: remove --rampup-batch-size or --step-batch-size-schedule")
    elif ramp is not None:
        _write_ramp(plan, ramp, sheet)
    total, warmup = (int(plan.position(step).samples) for step in (line.total, line.warmup))
    total = _as_given(plan, plan.recipe.duration, total)
    until = line.lengths.get("until")  # in steps of the full batch
    decay = (
        total if until is None else _as_given(plan, _argument(plan, "until"), until * plan.effective_batch)
    )
    warmup = _as_given(plan, plan.recipe.warmup, warmup)
    sheet.settings |= {"train_samples": total, "lr_decay_samples": decay, "lr_warmup_samples": warmup}
    if not in_samples:
        sheet.note("the lengths are in samples: remove --train-iters, --lr-decay-iters and --lr-warmup-iters")


def _write_ramp(plan: Planned, ramp: str, sheet: SettingsSheet) -> None:
    written = _ramp(plan, ramp)
    if ":" in ramp:
        # Megatron refuses both: the schedule has the full batch at its end.
        del sheet.settings["global_batch_size"]
        sheet.settings["step_batch_size_schedule"] = written
        sheet.note("step-batch-size-schedule exists since core 0.18")
        return
    sheet.settings["rampup_batch_size"] = written.split()
    sheet.note(
        "rampup-batch-size has no effect since core 0.18: there write the ramp as a step-batch-size-schedule"
    )


def _in_batches(plan: Planned, step: int) -> int:
    """Returns a step as Megatron's scheduler counts it, in samples.

    --lr-decay-iters and --lr-warmup-iters are multiples of the batch given now. In a run that moved to
    another batch these are not the steps done.
    """
    if not getattr(plan, "moves", ()) or not plan.effective_batch:
        return step
    batch: int = plan.effective_batch
    return round(int(plan.position(step).samples) / batch)


def _ramp(plan: Planned, ramp: str) -> str:
    """Returns the ramp, its batches moved as the full batch is.

    Megatron refuses an increment that does not lead to the full batch.
    """
    scale = Fraction(plan.effective_batch or 1, plan.recipe.effective_batch)
    if ":" in ramp:
        pairs = (word.split(":") for word in ramp.replace(",", " ").split())
        return " ".join(f"{at}:{int(batch) * scale}" for at, batch in pairs)
    start, increment, samples = ramp.split()
    return f"{int(start) * scale} {int(increment) * scale} {samples}"


def _as_given(plan: Planned, text: Any, samples: int) -> int:
    """Returns the recipe's own number of samples if it is less than a step from the plan's whole steps.

    Megatron rounds it to the same steps, and compares it with the checkpoint's when a run is resumed.
    """
    text = str(text)
    own = int(text[:-2]) if text.endswith("sp") and text[:-2].isdecimal() else samples
    near: bool = abs(own - samples) < (plan.effective_batch or 0)
    return own if near else samples


def _argument(plan: Planned, name: str) -> str:
    """Returns a length in the schedule's text, as it is written there."""
    match = re.search(rf"\b{name}=(\w+)", str(plan.recipe.schedule))
    return match[1] if match else ""


def _write_schedule(plan: Planned, line: Curve, sheet: SettingsSheet) -> None:
    style = _STYLES.get(line.kind or "")
    if line.shape in SHAPES:
        style, decay, name = "WSD", line.last_steps(_in_batches(plan, line.total)), "lr_wsd_decay_iters"
        if "train_samples" in sheet.settings:
            name, decay = "lr_wsd_decay_samples", decay * plan.effective_batch
            decay = _as_given(plan, _argument(plan, "decay"), decay)
        sheet.settings |= {name: decay, "lr_wsd_decay_style": SHAPES[line.shape]}
    if style is None:
        sheet.note(f"lr-decay-style is not set: Megatron has none such as {plan.recipe.schedule}")
        return
    sheet.settings["lr_decay_style"] = style
    if plan.recipe.ramp:
        return  # counted in samples of a batch that grows: the plan's steps are not a fixed multiple of them
    sheet.comments.append(lambda: _missed(plan, line, sheet.settings))


def _missed(plan: Planned, line: Curve, settings: Mapping[str, Any]) -> list[str]:
    """Says how far Megatron's scheduler misses the plan with these settings."""
    from isobatch.schedules.peers.megatron import OptimizerParamScheduler

    unit = "samples" if "train_samples" in settings else "iters"
    try:
        scheduler = OptimizerParamScheduler(
            init_lr=line.first,
            max_lr=line.peak,
            min_lr=line.bottom,
            lr_warmup_steps=settings[f"lr_warmup_{unit}"],
            lr_decay_steps=settings[f"lr_decay_{unit}"],
            lr_decay_style=settings["lr_decay_style"],
            increment=1,
            wsd_decay_steps=settings.get(f"lr_wsd_decay_{unit}"),
            lr_wsd_decay_style=settings.get("lr_wsd_decay_style"),
        )
    except InputError as error:
        return [f"Megatron refuses this schedule: {error}"]
    in_samples = unit == "samples"
    miss = differs(
        plan,
        lambda step: scheduler.at(
            int(plan.position(step).samples) if in_samples else _in_batches(plan, step)
        ),
    )
    return [] if miss is None else [f"lr-decay-style {settings['lr_decay_style']} {miss}"]


def _optimizer(plan: Planned, sheet: SettingsSheet) -> None:
    name = plan.recipe.optimizer
    sheet.settings["weight_decay"] = plan.weight_decay
    if name == "adamw":
        sheet.settings |= {
            "optimizer": "adam",
            "adam_beta1": plan.beta1,
            "adam_beta2": plan.beta2,
            "adam_eps": plan.eps,
        }
    elif name == "sgd":
        sheet.settings |= {"optimizer": "sgd", "sgd_momentum": plan.momentum or 0.0}
    else:
        sheet.note(f"optimizer is not set: Megatron's adam and sgd are not {name}")


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Writes the arguments after the script's name."""
    return f"{top}{remark_lines(remarks)}{shell([list(job.command), *flags(sheet.settings, dashes=True)])}\n"
