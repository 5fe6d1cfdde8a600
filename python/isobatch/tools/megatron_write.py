"""Plans as Megatron's arguments."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.map import Setting, by_code, write_settings
from isobatch.tools.sheet import Curve, Job, Planned, SettingsSheet, command_file, curve, flags
from isobatch.words import counted

_STYLES = {
    "constant": "constant",
    "linear": "linear",
    "linear_to_zero": "linear",
    "cosine": "cosine",
    "vaswani": "inverse-square-root",
}
BATCH = (
    Setting("micro_batch_size", "micro_batch"),
    Setting("global_batch_size", "effective_batch"),
)
RATES = (
    Setting("eval_interval", "eval_every", "st"),
    Setting("save_interval", "save_every", "st"),
    Setting("log_interval", "log_every", "st"),
    Setting("lr", "lr"),
    Setting("min_lr", "min_lr", off=0.0),
)
OPTIMIZER = (
    Setting("weight_decay", "weight_decay", default=0.01),
    Setting("adam_beta1 adam_beta2", "betas", of="adamw", reads=False),
    Setting("adam_eps", "eps", of="adamw"),
    Setting("clip_grad", "clip_norm", default=1.0, off=0.0),
    Setting("bf16 fp16", "precision", words={"bf16": "bf16", "fp16": "fp16"}),
    Setting("seq_length", "seq_len"),
)
SETTINGS = (
    *BATCH,
    by_code("rampup_batch_size", "ramp"),
    by_code("step_batch_size_schedule", "ramp"),
    by_code("train_iters", "duration"),
    by_code("train_samples", "duration"),
    by_code("lr_warmup_iters", "warmup"),
    by_code("lr_warmup_samples", "warmup"),
    by_code("lr_warmup_fraction", "warmup"),
    *RATES,
    by_code("lr_decay_style", "schedule"),
    by_code("lr_decay_iters", "schedule"),
    by_code("lr_decay_samples", "schedule"),
    by_code("lr_wsd_decay_iters", "schedule"),
    by_code("lr_wsd_decay_samples", "schedule"),
    by_code("lr_wsd_decay_style", "schedule"),
    by_code("optimizer", "optimizer"),
    by_code("sgd_momentum", "momentum"),
    *OPTIMIZER,
)
SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "minus_sqrt"}


def write(plan: Planned, _job: Job) -> SettingsSheet:
    """Writes the whole plan: Megatron has an argument for each part."""
    sheet, line = SettingsSheet(), curve(plan)
    settings = sheet.settings
    settings |= write_settings(plan, BATCH)
    _write_length(line, sheet)
    settings |= write_settings(plan, RATES)
    if line.first:
        settings["lr_warmup_init"] = line.first
    _write_schedule(line, sheet)
    if plan.recipe.optimizer == "adamw":
        settings["optimizer"] = "adam"
    elif plan.recipe.optimizer == "sgd":
        settings |= {"optimizer": "sgd", "sgd_momentum": plan.momentum or 0.0}
    else:
        sheet.note(f"optimizer is not set: Megatron's adam and sgd are not {plan.recipe.optimizer}")
    settings |= write_settings(plan, OPTIMIZER)
    sheet.note(
        "accumulation is Megatron's own quotient: "
        f"{counted(plan.accumulation or 1, 'micro-batch', 'micro-batches')} a step on {plan.data_parallel} "
        "replicas"
    )
    if plan.moves:
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


def _write_length(line: Curve, sheet: SettingsSheet) -> None:
    """Writes the length as the recipe counts it; if the batch ramps, Megatron demands samples."""
    plan, until = line.plan, line.arguments.get("until")  # in steps of the full batch
    ramp, in_samples = plan.recipe.ramp, str(plan.recipe.duration).endswith("sp")
    if ramp is None and not in_samples:
        decay = _in_batches(plan, line.total) if until is None else until
        warmup = _in_batches(plan, line.warmup)
        sheet.settings |= {"train_iters": line.total, "lr_decay_iters": decay, "lr_warmup_iters": warmup}
        return
    if ramp is not None and plan.moves and plan.stages[-1].step <= plan.moves[-1].step:
        sheet.note("the batch ramp is over: remove --rampup-batch-size or --step-batch-size-schedule")
    elif ramp is not None:
        _write_ramp(plan, ramp, sheet)
    total, warmup = (int(plan.position(step).samples) for step in (line.total, line.warmup))
    decay = total = _as_given(plan, plan.recipe.duration, total)
    if until is not None:
        decay = _as_given(plan, _argument(plan, "until"), until * plan.effective_batch)
    warmup = _as_given(plan, plan.recipe.warmup, warmup)
    sheet.settings |= {"train_samples": total, "lr_decay_samples": decay, "lr_warmup_samples": warmup}
    if not in_samples:
        sheet.note("the lengths are in samples: remove --train-iters, --lr-decay-iters and --lr-warmup-iters")


def _write_ramp(plan: Planned, ramp: str, sheet: SettingsSheet) -> None:
    """Writes the ramp, its batches moved as the full batch is: Megatron demands an end at it."""
    scale = Fraction(plan.effective_batch or 1, plan.recipe.effective_batch)
    if ":" in ramp:
        pairs = (word.split(":") for word in ramp.replace(",", " ").split())
        schedule = " ".join(f"{at}:{int(batch) * scale}" for at, batch in pairs)
        # Megatron refuses both: the schedule has the full batch at its end.
        del sheet.settings["global_batch_size"]
        sheet.settings["step_batch_size_schedule"] = schedule
        sheet.note("step-batch-size-schedule exists since core 0.18")
        return
    start, increment, samples = ramp.split()
    sheet.settings["rampup_batch_size"] = [str(int(start) * scale), str(int(increment) * scale), samples]
    sheet.note(
        "rampup-batch-size has no effect since core 0.18: there write the ramp as a step-batch-size-schedule"
    )


def _in_batches(plan: Planned, step: int) -> int:
    """Returns a step as Megatron's scheduler counts it, in samples.

    --lr-decay-iters and --lr-warmup-iters are multiples of the batch given now. In a run that moved to
    another batch these are not the steps done.
    """
    if not plan.moves or not plan.effective_batch:
        return step
    return round(int(plan.position(step).samples) / plan.effective_batch)


def _as_given(plan: Planned, text: Any, samples: int) -> int:
    """Returns the recipe's own number of samples if it is less than a step from the plan's whole steps.

    Megatron rounds it to the same steps, and compares it with the checkpoint's when a run is resumed.
    """
    text = str(text)
    own = int(text[:-2]) if text.endswith("sp") and text[:-2].isdecimal() else samples
    return own if abs(own - samples) < (plan.effective_batch or 0) else samples


def _argument(plan: Planned, name: str) -> str:
    """Returns a length in the schedule's text, as it is written there."""
    match = re.search(rf"\b{name}=(\w+)", str(plan.recipe.schedule))
    return match[1] if match else ""


def _write_schedule(line: Curve, sheet: SettingsSheet) -> None:
    plan, style = line.plan, _STYLES.get(line.kind or "")
    if line.is_stable and line.shape in SHAPES:
        style, decay, name = "WSD", line.last_steps(_in_batches(plan, line.total)), "lr_wsd_decay_iters"
        if "train_samples" in sheet.settings:
            name, decay = "lr_wsd_decay_samples", decay * plan.effective_batch
            decay = _as_given(plan, _argument(plan, "decay"), decay)
        sheet.settings |= {name: decay, "lr_wsd_decay_style": SHAPES[line.shape]}
    if style is None:
        sheet.note(f"lr-decay-style is not set: Megatron has none such as {plan.recipe.schedule}")
        return
    sheet.settings["lr_decay_style"] = style
    # A ramp is counted in samples of a batch that grows: the plan's steps are not a fixed multiple of them.
    if not plan.recipe.ramp:
        _compare(line, sheet)


def _compare(line: Curve, sheet: SettingsSheet) -> None:
    """Notes how far Megatron's scheduler misses the plan with these settings."""
    from isobatch.schedules.peers.megatron import OptimizerParamScheduler

    settings, plan = sheet.settings, line.plan
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
        sheet.note(f"Megatron refuses this schedule: {error}")
        return

    def rate(step: int) -> float:
        is_step = unit == "iters"
        return scheduler.at(_in_batches(plan, step) if is_step else int(plan.position(step).samples))

    if miss := line.misses(rate):
        sheet.note(f"lr-decay-style {settings['lr_decay_style']} {miss}")


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:
    """Writes the arguments after the script's name."""
    return command_file(top, remarks, [list(job.command), *flags(sheet.settings, dashes=True)])
