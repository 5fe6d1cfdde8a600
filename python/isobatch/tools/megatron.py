"""Megatron's arguments, in a shell script or on a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.page import SettingsPage, length
from isobatch.tools.sheet import (
    Curve,
    Job,
    Plan,
    SettingsSheet,
    curve,
    differs,
    flags,
    intervals,
    remark_lines,
    shell,
)
from isobatch.tools.tool import Case, Issue, Reader, Tool, Writer, undivided_batch
from isobatch.words import counted, share

_NAMES = {
    "accumulation": "--global-batch-size",
    "batch_per_gpu": "--micro-batch-size",
    "duration": "--train-iters",
    "effective_batch": "--global-batch-size",
    "lr": "--lr",
    "warmup": "--lr-warmup-iters",
}
_INTERLEAVED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
_STYLES = {
    "constant": "constant",
    "linear": "linear",
    "linear_to_zero": "linear",
    "cosine": "cosine",
    "vaswani": "inverse-square-root",
}
_SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "minus_sqrt"}


def read(page: SettingsPage) -> None:
    """Reads the arguments; those left out have Megatron's defaults."""
    _batch(page)
    page.number("lr", "lr")
    page.number("min_lr", "min_lr")
    # Megatron's "adam" decouples the weight decay.
    name = page.word("optimizer", "adam")
    page.optimizer("optimizer", "adamw" if name == "adam" else name)
    page.betas("adam_beta1", "adam_beta2", (0.9, 0.999))
    page.number("adam_eps", "eps")
    if name == "sgd":
        page.number("sgd_momentum", "momentum", default=0.9)
    page.number("weight_decay", "weight_decay", default=0.01)
    page.give("decay", "lr_multiplied", "optimizer")
    page.clip("clip_grad", default=1.0)
    page.precision({"bf16": "bf16", "fp16": "fp16"})
    page.whole("seq_length", "seq_len")
    page.give("convention", "megatron", "")
    _read_length(page)
    _intervals(page)
    _read_schedule(page)


def _batch(page: SettingsPage) -> None:
    page.whole("micro_batch_size", "micro_batch")
    page.whole("global_batch_size", "effective_batch")
    steps = page.raw("step_batch_size_schedule")
    if (
        not page.has("global_batch_size")
        and isinstance(steps, str)
        and (last := steps.rpartition(":")[2]).isdecimal()
    ):
        page.give("effective_batch", int(last), "step_batch_size_schedule")
    elif not page.has("global_batch_size"):
        page.give("accumulation", 1, "global_batch_size")
        page.note("--global-batch-size is not there: micro-batch × replicas, Megatron's default")
    if page.flag("decrease_batch_size_if_needed"):
        page.note(
            "--decrease-batch-size-if-needed: where micro-batch × replicas does not divide the batch, Megatron lowers it; plan with "
            "--split smaller --min-micro-batch N --max-micro-batch N"
        )
    page.read_launch_line()
    parallel = 1
    for key in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        parallel *= page.whole(key, default=1) or 1
    stages = page.whole("pipeline_model_parallel_size", default=1) or 1
    if stages > 1 and any(page.has(key) for key in _INTERLEAVED):
        page.note(
            f"the pipeline's {stages} stages are interleaved: Megatron refuses an accumulation that is not a multiple of {stages}; plan "
            f"with --accumulation-multiple {stages}"
        )
    if parallel > 1:
        page.give("model_parallel", parallel, "tensor_model_parallel_size")
    gpus = page.reading.fields.get("gpus")
    if gpus is not None and gpus % parallel:
        # A script that its users edit before they launch it on more nodes.
        del page.reading.fields["gpus"], page.reading.keys["gpus"]
        page.note(
            f"the launch line has {gpus} GPUs, not a multiple of the {parallel} that one replica needs; taken as not known: --set gpus=N"
        )
    ramp = page.raw("rampup_batch_size")
    if ramp is not None and steps is not None:
        page.fault(
            "ramp",
            InputError(
                "--rampup-batch-size and --step-batch-size-schedule contradict each other", field="ramp"
            ),
        )
    for key, value in (("rampup_batch_size", ramp), ("step_batch_size_schedule", steps)):
        if value is not None:
            page.give("ramp", " ".join(map(str, value)) if isinstance(value, list) else str(value), key)


def _read_length(page: SettingsPage) -> None:
    for key, unit in (("train_iters", "st"), ("train_samples", "sp")):
        if page.length(key, "duration", unit):
            if unit == "st" and "ramp" in page.reading.fields:
                page.note(
                    f"{page.name(key)} beside a batch ramp: taken as iterations of the full batch; --train-samples says it exactly"
                )
            return


def _intervals(page: SettingsPage) -> None:
    for key in ("eval", "save", "log"):
        page.length(f"{key}_interval", f"{key}_every", "st")


def _read_schedule(page: SettingsPage) -> None:
    style = page.word("lr_decay_style", "linear") or "linear"
    page.length("lr_warmup_iters", "warmup", "st")
    page.length("lr_warmup_samples", "warmup", "sp")
    fraction = page.number("lr_warmup_fraction")
    if fraction:
        page.give("warmup", share(fraction), "lr_warmup_fraction")
    kinds = {"constant": "constant", "linear": "linear", "cosine": "cosine", "inverse-square-root": "vaswani"}
    if style == "WSD":
        decay, shape = page.whole("lr_wsd_decay_iters"), page.word("lr_wsd_decay_style", "exponential")
        names = {theirs: ours for ours, theirs in _SHAPES.items()}
        if decay is None or shape not in names:
            page.unsupported("lr_decay_style", f"WSD with lr_wsd_decay_style {shape}")
        else:
            page.give("schedule", f"wsd(decay={decay}st, shape={names[shape]})", "lr_decay_style")
    elif style in kinds:
        page.give("schedule", kinds[style], "lr_decay_style")
        _own_end(page, style)
    else:
        page.unsupported("lr_decay_style", f"the style {style!r}")


def _own_end(page: SettingsPage, style: str) -> None:
    """Reads a decay with an end of its own."""
    for end, run, unit, warm in (
        ("lr_decay_iters", "train_iters", "st", "lr_warmup_iters"),
        ("lr_decay_samples", "train_samples", "sp", "lr_warmup_samples"),
    ):
        last = page.whole(end)
        if last is None or last == page.whole(run) or style == "constant":
            continue
        if style == "inverse-square-root":
            continue  # it has no end
        page.give("schedule", f"{style}(until={length(last, unit)})", end)
        fraction = page.number("lr_warmup_fraction")
        if fraction and not page.has(warm):
            # Megatron takes the share of the decay, not of the run.
            page.give("warmup", length(int(fraction * last), unit), "lr_warmup_fraction")


def write(plan: Plan, job: Job) -> SettingsSheet:  # noqa: ARG001 - the command is rendered
    """All of it: Megatron has an argument for each."""
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
        f"accumulation is Megatron's own quotient: {counted(plan.accumulation or 1, 'micro-batch', 'micro-batches')} a step on {plan.data_parallel} replicas"
    )
    if getattr(plan, "moves", ()):
        sheet.note(
            "on resuming Megatron stops where lr, its warmup or its decay are not the checkpoint's: pass --override-opt_param-scheduler"
        )
    parallel = plan.world_size // (plan.data_parallel or plan.world_size)
    if parallel > 1:
        sheet.note(f"model parallelism over {parallel} GPUs stays as the script has it")
        sheet.note(
            f"with interleaved pipeline stages the accumulation, {plan.accumulation}, must be a multiple of their number: plan with --accumulation-multiple"
        )
    return sheet


def _write_length(plan: Plan, line: Curve, sheet: SettingsSheet) -> None:
    """Writes the length in iterations; in samples where the batch ramps, as Megatron demands."""
    ramp = plan.recipe.ramp
    if ramp is None:
        sheet.settings |= {
            "train_iters": line.total,
            "lr_decay_iters": line.lengths.get("until", _in_batches(plan, line.total)),
            "lr_warmup_iters": _in_batches(plan, line.warmup),
        }
        return
    total, warmup = (int(plan.position(step).samples) for step in (line.total, line.warmup))
    if ":" in ramp:
        # Megatron refuses both: the schedule has the full batch at its end.
        del sheet.settings["global_batch_size"]
        sheet.settings["step_batch_size_schedule"] = _ramp(plan, ramp)
        sheet.note("step-batch-size-schedule is there since core 0.18")
    else:
        sheet.settings["rampup_batch_size"] = _ramp(plan, ramp).split()
        sheet.note(
            "rampup-batch-size has no effect since core 0.18: there write the ramp as a step-batch-size-schedule"
        )
    until = line.lengths.get("until")  # in steps of the full batch
    total = _as_given(plan, "duration", total)
    decay = total if until is None else until * (plan.effective_batch or 1)
    warmup = _as_given(plan, "warmup", warmup)
    sheet.settings |= {"train_samples": total, "lr_decay_samples": decay, "lr_warmup_samples": warmup}


def _in_batches(plan: Plan, step: int) -> int:
    """A step as Megatron's scheduler counts it: in samples, of which --lr-decay-iters and --lr-warmup-iters are multiples of the
    batch that is given now. Of a run that moved to another batch these are not the steps done."""
    if not getattr(plan, "moves", ()) or not plan.effective_batch:
        return step
    batch: int = plan.effective_batch
    return round(int(plan.position(step).samples) / batch)


def _ramp(plan: Plan, ramp: str) -> str:
    """The ramp with its batches moved as the full batch is: Megatron refuses an increment that does not lead to it."""
    scale = Fraction(plan.effective_batch or 1, plan.recipe.effective_batch)
    if ":" in ramp:
        pairs = (word.split(":") for word in ramp.replace(",", " ").split())
        return " ".join(f"{at}:{int(batch) * scale}" for at, batch in pairs)
    start, increment, samples = ramp.split()
    return f"{int(start) * scale} {int(increment) * scale} {samples}"


def _as_given(plan: Plan, field: str, samples: int) -> int:
    """The recipe's own number of samples where the plan's whole steps are less than one from it: Megatron rounds it to the same
    steps, and compares it with the checkpoint's when a run is resumed."""
    text = str(getattr(plan.recipe, field, ""))
    own = int(text[:-2]) if text.endswith("sp") and text[:-2].isdecimal() else samples
    near: bool = abs(own - samples) < (plan.effective_batch or 0)
    return own if near else samples


def _write_schedule(plan: Plan, line: Curve, sheet: SettingsSheet) -> None:
    style = _STYLES.get(line.kind or "")
    if line.shape in _SHAPES:
        style, decay = "WSD", line.last_steps(_in_batches(plan, line.total))
        sheet.settings |= {"lr_wsd_decay_iters": decay, "lr_wsd_decay_style": _SHAPES[line.shape]}
    if style is None:
        sheet.note(f"lr-decay-style is not set: Megatron has none such as {plan.recipe.schedule}")
        return
    sheet.settings["lr_decay_style"] = style
    if plan.recipe.ramp:
        return  # counted in samples of a batch that grows: the plan's steps are not a fixed multiple of them
    sheet.comments.append(lambda: _missed(plan, line, sheet.settings))


def _missed(plan: Plan, line: Curve, settings: Mapping[str, Any]) -> list[str]:
    """By how much Megatron's scheduler with these settings misses the plan."""
    from isobatch.schedules.peers.megatron import OptimizerParamScheduler

    try:
        theirs = OptimizerParamScheduler(
            init_lr=line.first,
            max_lr=line.peak,
            min_lr=line.bottom,
            lr_warmup_steps=settings["lr_warmup_iters"],
            lr_decay_steps=settings["lr_decay_iters"],
            lr_decay_style=settings["lr_decay_style"],
            increment=1,
            wsd_decay_steps=settings.get("lr_wsd_decay_iters"),
            lr_wsd_decay_style=settings.get("lr_wsd_decay_style"),
        )
    except InputError as error:
        return [f"Megatron refuses this schedule: {error}"]
    miss = differs(plan, lambda step: theirs.at(_in_batches(plan, step)))
    return [] if miss is None else [f"lr-decay-style {settings['lr_decay_style']} {miss}"]


def _optimizer(plan: Plan, sheet: SettingsSheet) -> None:
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
    """The arguments behind the script's name."""
    return f"{top}{remark_lines(remarks)}{shell([list(job.command), *flags(sheet.settings, dashes=True)])}\n"


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    yield from undivided_batch(
        case, "megatron/core/num_microbatches_calculator.py: ConstantNumMicroBatchesCalculator"
    )
    if case.reading.settings.get("clip_grad") is None:
        yield Issue(
            "gradients are clipped at norm 1",
            "--clip-grad is not there, and 1.0 is its default",
            "megatron/training/arguments.py: --clip-grad",
            "--clip-grad 0.0  (for none)",
        )
    if (
        case.reading.settings.get("adam_beta2") is None
        and case.reading.settings.get("optimizer", "adam") == "adam"
    ):
        yield Issue(
            "beta2 is 0.999",
            "--adam-beta2 is not there",
            "megatron/training/arguments.py: --adam-beta2",
            "--adam-beta2 0.95  (as most published runs)",
        )
    yield from _ramps(case)


def _ramps(case: Case) -> Iterator[Issue]:
    if case.at("step_batch_size_schedule") is not None and case.at("global_batch_size") is not None:
        yield Issue(
            "the run stops: --step-batch-size-schedule and --global-batch-size are both given",
            "the schedule has the full batch at its end",
            "megatron/training/arguments.py since core 0.18",
            "remove --global-batch-size",
        )
    if case.at("rampup_batch_size") is None:
        return
    yield Issue(
        "since core 0.18 the batch does not ramp: --rampup-batch-size has no effect",
        "the calculator that used it was replaced",
        "NVIDIA/Megatron-LM#4411",
        '--step-batch-size-schedule "0:START TOKENS:BATCH ..."',
    )
    if case.at("train_iters") is not None:
        yield Issue(
            "before core 0.18 the run stops: a batch ramp needs --train-samples",
            "--train-iters is given: expected no batch-size rampup for iteration-based training",
            "megatron/training/arguments.py at core_v0.16.0",
            "--train-samples, --lr-decay-samples and --lr-warmup-samples: isobatch plan --from ... --to megatron writes them",
        )


MEGATRON = Tool(
    name="megatron",
    title="Megatron",
    reader=Reader(versions="core 0.6 to 0.19", read=read, check=check, names=_NAMES),
    writer=Writer(
        versions="core 0.10 to 0.19",
        file="arguments.sh",
        forms=("sh",),
        write=write,
        runs_ragged=False,
        runs_ramps=True,
        is_part=True,
        leaves_out="ema_decay drop_last even_batches name image resume",
        render=render,
    ),
)
