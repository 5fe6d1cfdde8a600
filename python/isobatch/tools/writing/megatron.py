"""Megatron: the arguments of its training scripts."""

from __future__ import annotations

from fractions import Fraction

from isobatch.errors import InputError
from isobatch.schedules.peers.megatron import OptimizerParamScheduler
from isobatch.tools.writing.curve import Curve, curve, differs
from isobatch.tools.writing.planned import Job, Planned, Sheet, intervals
from isobatch.words import counted

NAME = "megatron"
TITLE = "Megatron"
VERSIONS = "core 0.10 to 0.19"
FILE = "arguments.sh"
FORMS = ("sh",)
DASHES = True
COMMAND: tuple[str, ...] = ()

_STYLES = {
    "constant": "constant",
    "linear": "linear",
    "linear_to_zero": "linear",
    "cosine": "cosine",
    "vaswani": "inverse-square-root",
}
_SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "minus_sqrt"}


def write(plan: Planned, job: Job) -> Sheet:  # noqa: ARG001 - the command is rendered
    """All of it: Megatron has an argument for each."""
    sheet = Sheet()
    line = curve(plan)
    sheet.settings = {"micro_batch_size": plan.micro_batch, "global_batch_size": plan.effective_batch}
    _length(plan, line, sheet)
    sheet.settings |= intervals(plan, "eval_interval", "save_interval", "log_interval")
    sheet.settings |= {"lr": plan.lr, "min_lr": line.bottom}
    if line.first:
        sheet.settings["lr_warmup_init"] = line.first
    _schedule(plan, line, sheet)
    _optimizer(plan, sheet)
    # Megatron clips at 1.0 unless it is asked not to.
    sheet.settings["clip_grad"] = plan.recipe.clip_norm or 0.0
    if plan.recipe.precision in ("bf16", "fp16"):
        sheet.settings[plan.recipe.precision] = True
    if plan.recipe.seq_len is not None:
        sheet.settings["seq_length"] = plan.recipe.seq_len
    sheet.comments.append(
        f"accumulation is Megatron's own quotient: {counted(plan.accumulation or 1, 'micro-batch', 'micro-batches')} a step on {plan.data_parallel} replicas"
    )
    if getattr(plan, "moves", ()):
        sheet.comments.append(
            "on resuming Megatron stops where lr, its warmup or its decay are not the checkpoint's: pass --override-opt_param-scheduler"
        )
    parallel = plan.world_size // (plan.data_parallel or plan.world_size)
    if parallel > 1:
        sheet.comments.append(f"model parallelism over {parallel} GPUs stays as the script has it")
        sheet.comments.append(
            f"with interleaved pipeline stages the accumulation, {plan.accumulation}, must be a multiple of their number: plan with --accumulation-multiple"
        )
    return sheet


def _length(plan: Planned, line: Curve, sheet: Sheet) -> None:
    """In iterations; in samples where the batch ramps, which Megatron demands."""
    ramp = plan.recipe.ramp
    if ramp is None:
        sheet.settings |= {
            "train_iters": line.total,
            "lr_decay_iters": line.lengths.get("until", _counted(plan, line.total)),
            "lr_warmup_iters": _counted(plan, line.warmup),
        }
        return
    total, warmup = (int(plan.position(step).samples) for step in (line.total, line.warmup))
    if ":" in ramp:
        # Megatron refuses both: the schedule has the full batch at its end.
        del sheet.settings["global_batch_size"]
        sheet.settings["step_batch_size_schedule"] = _ramp(plan, ramp)
        sheet.comments.append("step-batch-size-schedule is there since core 0.18")
    else:
        sheet.settings["rampup_batch_size"] = _ramp(plan, ramp).split()
        sheet.comments.append(
            "rampup-batch-size has no effect since core 0.18: there write the ramp as a step-batch-size-schedule"
        )
    until = line.lengths.get("until")  # in steps of the full batch
    total = _as_given(plan, "duration", total)
    decay = total if until is None else until * (plan.effective_batch or 1)
    warmup = _as_given(plan, "warmup", warmup)
    sheet.settings |= {"train_samples": total, "lr_decay_samples": decay, "lr_warmup_samples": warmup}


def _counted(plan: Planned, step: int) -> int:
    """A step as Megatron's scheduler counts it: in samples, of which --lr-decay-iters and --lr-warmup-iters are multiples of the
    batch that is given now. Of a run that moved to another batch these are not the steps done."""
    if not getattr(plan, "moves", ()) or not plan.effective_batch:
        return step
    return round(int(plan.position(step).samples) / plan.effective_batch)


def _ramp(plan: Planned, ramp: str) -> str:
    """The ramp with its batches moved as the full batch is: Megatron refuses an increment that does not lead to it."""
    scale = Fraction(plan.effective_batch or 1, plan.recipe.effective_batch)
    if ":" in ramp:
        pairs = (word.split(":") for word in ramp.replace(",", " ").split())
        return " ".join(f"{at}:{int(batch) * scale}" for at, batch in pairs)
    start, increment, samples = ramp.split()
    return f"{int(start) * scale} {int(increment) * scale} {samples}"


def _as_given(plan: Planned, field: str, samples: int) -> int:
    """The recipe's own number of samples where the plan's whole steps are less than one from it: Megatron rounds it to the same
    steps, and compares it with the checkpoint's when a run is resumed."""
    text = str(getattr(plan.recipe, field, ""))
    own = int(text[:-2]) if text.endswith("sp") and text[:-2].isdecimal() else samples
    return own if abs(own - samples) < (plan.effective_batch or 0) else samples


def _schedule(plan: Planned, line: Curve, sheet: Sheet) -> None:
    style, decay, shape = _STYLES.get(line.kind or ""), 0, line.words.get("shape", "linear")
    if line.kind in ("wsd", "trapezoid") and shape in _SHAPES:
        style, decay = "WSD", line.lengths.get("decay", max(1, _counted(plan, line.total) // 5))
        sheet.settings |= {"lr_wsd_decay_iters": decay, "lr_wsd_decay_style": _SHAPES[shape]}
    if style is None:
        sheet.comments.append(f"lr-decay-style is not set: Megatron has none such as {plan.recipe.schedule}")
        return
    sheet.settings["lr_decay_style"] = style
    if plan.recipe.ramp:
        return  # counted in samples of a batch that grows: the plan's steps are not a fixed multiple of them
    stable = style == "WSD"
    try:
        theirs = OptimizerParamScheduler(
            init_lr=line.first,
            max_lr=line.peak,
            min_lr=line.bottom,
            lr_warmup_steps=sheet.settings["lr_warmup_iters"],
            lr_decay_steps=sheet.settings["lr_decay_iters"],
            lr_decay_style=style,
            increment=1,
            wsd_decay_steps=decay if stable else None,
            lr_wsd_decay_style=_SHAPES[shape] if stable else None,
        )
    except InputError as error:
        sheet.comments.append(f"Megatron refuses this schedule: {error}")
        return
    miss = differs(plan, lambda step: theirs.at(_counted(plan, step)))
    if miss is not None:
        sheet.comments.append(f"lr-decay-style {style} {miss}")


def _optimizer(plan: Planned, sheet: Sheet) -> None:
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
        sheet.comments.append(f"optimizer is not set: Megatron's adam and sgd are not {name}")
