"""transformers' TrainingArguments: JSON, YAML, or flags on a command line. To support another tool, copy this file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.page import SettingsPage, length
from isobatch.tools.sheet import Curve, Job, Plan, SettingsSheet, curve, flags, intervals, remark_lines, shell
from isobatch.tools.tool import Case, Issue, Reader, Tool, Writer, number
from isobatch.words import share

NAMES = {
    "accumulation": "gradient_accumulation_steps",
    "batch_per_gpu": "per_device_train_batch_size",
    "duration": "max_steps",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
}
DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 3}
_OPTIMIZERS = {
    "adam": "adamw_torch",
    "sgd": "sgd",
    "adafactor": "adafactor",
    "rmsprop": "rmsprop",
}
_LENGTH = re.compile(r"([\d.e+]+)(st|ep|sp|tok)")
_SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "1-sqrt"}


def read(page: SettingsPage) -> None:
    """Reads the arguments of the Trainer.

    What the file leaves out has the tool's own default, said in a note where the batch or the length depends on it; the
    learning rate is asked for.
    """
    read_batch(page, "per_device_train_batch_size")
    _loader(page)
    page.read_launch_line()
    if not page.has("learning_rate"):
        page.note("learning_rate is not in the file; the Trainer's own default is 5e-5")
    page.number("learning_rate", "lr")
    read_lengths(page, "num_train_epochs", DEFAULTS["num_train_epochs"])
    page.give("convention", "transformers", "")
    read_intervals(page)
    read_schedule(page, "lr_scheduler_type", "linear")
    read_adam(page, "optim", "adamw_torch")
    page.whole(page.first("max_seq_length", "max_length", "model_max_length"), "seq_len")
    page.precision({"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"})
    if page.flag("dataloader_drop_last"):
        page.give("drop_last", True, "dataloader_drop_last")


def read_batch(page: SettingsPage, per_gpu: str) -> None:
    """Samples per GPU, and micro-batches a step."""
    for key, field in ((per_gpu, "batch_per_gpu"), ("gradient_accumulation_steps", "accumulation")):
        default = DEFAULTS.get(key, 1)
        if not page.has(key):
            page.note(f"{page.name(key)} is not in the file: {default}, the tool's default")
        page.whole(key, field, default=default)
    if page.flag("auto_find_batch_size"):
        page.note(
            "auto_find_batch_size may lower the batch during the run; the plan is for the batch in the file"
        )


def _loader(page: SettingsPage) -> None:
    """How Accelerate deals out the batches: `split_batches` counts one over all processes, `even_batches` fills up the last."""
    config, fields = page.table("accelerator_config"), page.reading.fields
    if config.has("even_batches") and not config.flag("even_batches"):
        page.give("even_batches", False, "accelerator_config.even_batches")
    if config.flag("split_batches") and type(fields.get("batch_per_gpu")) is int:
        of_all, accumulation = fields.pop("batch_per_gpu"), fields.get("accumulation") or 1
        page.reading.keys.pop("batch_per_gpu", None)
        page.give("effective_batch", of_all * accumulation, "per_device_train_batch_size")
        page.note(
            f"accelerator_config.split_batches: the {of_all} of per_device_train_batch_size are of all processes together"
        )


def read_intervals(page: SettingsPage) -> None:
    """Reads the intervals of evaluating, saving and logging in steps; a number below 1 is a share of the run at any batch."""
    for key, field in (
        ("eval_steps", "eval_every"),
        ("save_steps", "save_every"),
        ("logging_steps", "log_every"),
    ):
        steps = page.number(key)
        if steps is not None and steps >= 1 and steps == int(steps):
            page.give(field, length(int(steps), "st"), key)


def read_lengths(page: SettingsPage, epochs: str, default_epochs: int | None) -> None:
    """The run and its warmup. max_steps wins over epochs, warmup_steps over warmup_ratio; a warmup_steps below 1 is a share."""
    steps, count = page.whole("max_steps"), page.number(epochs, default=default_epochs)
    if steps is not None and steps > 0:
        page.give("duration", length(steps, "st"), "max_steps")
    elif count is not None:
        page.give("duration", length(count, "ep"), epochs)
        if not page.has(epochs):
            page.note(f"{page.name(epochs)} is not in the file: {default_epochs}, the tool's default")
    warmup, ratio = page.number("warmup_steps"), page.number("warmup_ratio")
    if warmup and warmup >= 1:
        page.give("warmup", length(int(warmup), "st"), "warmup_steps")
    elif warmup:
        page.give("warmup", share(warmup), "warmup_steps")
    elif ratio:
        page.give("warmup", share(ratio), "warmup_ratio")


def read_adam(page: SettingsPage, key: str, default: str) -> None:
    """The optimizer and its numbers."""
    page.optimizer(key, page.word(key, default))
    page.betas("adam_beta1", "adam_beta2")
    page.number("adam_epsilon", "eps")
    page.number("weight_decay", "weight_decay")
    if page.reading.fields.get("optimizer") == "adamw":
        page.give("decay", "lr_multiplied", key)
    page.clip("max_grad_norm", default=1.0)


def read_schedule(page: SettingsPage, key: str, default: str) -> None:
    """A scheduler of transformers as a recipe's schedule."""
    name = (page.word(key, default) or default).lower()
    kwargs = page.table("lr_scheduler_kwargs")
    if name in ("constant", "constant_with_warmup"):
        page.give("schedule", "constant", key)
        if name == "constant" and page.reading.fields.pop("warmup", None):
            page.note("lr_scheduler_type constant ignores the warmup; constant_with_warmup does not")
    elif name == "linear":
        page.give("schedule", "linear", key)
    elif name in ("cosine", "cosine_with_min_lr"):
        if kwargs.number("num_cycles", default=0.5) != 0.5:
            page.unsupported("lr_scheduler_kwargs", "a cosine with num_cycles other than 0.5")
        page.give("schedule", "cosine", key)
        _bottom(page, kwargs)
    elif name == "polynomial":
        page.give("schedule", f"polynomial(power={kwargs.number('power', default=1.0)!r})", key)
        kwargs.number("lr_end", "min_lr", default=1e-7)
    elif name == "inverse_sqrt":
        over = kwargs.whole("timescale")
        page.give("schedule", f"inverse_sqrt(timescale={over}st)" if over else "inverse_sqrt", key)
    elif name in ("warmup_stable_decay", "wsd"):
        _wsd(page, kwargs, key)
    elif name == "cosine_with_restarts" and kwargs.number("num_cycles", default=1) == 1:
        page.give("schedule", "cosine", key)
    else:
        page.unsupported(key, f"the scheduler {name!r}")


def _bottom(page: SettingsPage, kwargs: SettingsPage) -> None:
    lr, rate = page.reading.fields.get("lr"), kwargs.number("min_lr_rate")
    if rate is not None and lr is not None:
        page.give("min_lr", lr * rate, "lr_scheduler_kwargs")
    else:
        kwargs.number("min_lr", "min_lr")


def _wsd(page: SettingsPage, kwargs: SettingsPage, key: str) -> None:
    theirs = {name: ours for ours, name in _SHAPES.items()}
    shape = theirs.get(kwargs.word("decay_type", "cosine") or "")
    decay, ratio = kwargs.whole("num_decay_steps"), kwargs.number("min_lr_ratio", default=0.0)
    if shape is None or not decay or kwargs.word("warmup_type", "linear") != "linear":
        page.unsupported(key, "this warmup_stable_decay")
        return
    page.give("schedule", f"wsd(decay={decay}st, shape={shape})", key)
    if ratio and (lr := page.reading.fields.get("lr")):
        page.give("min_lr", lr * ratio, "lr_scheduler_kwargs")
        page.fault(
            "schedule", InputError("its warmup starts at the minimum: give schedule a value", field=key)
        )


def write(plan: Plan, job: Job) -> SettingsSheet:
    """Writes the arguments decided by the plan."""
    sheet, line = SettingsSheet(), curve(plan)
    settings = sheet.settings
    settings |= {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "learning_rate": plan.lr,
    }
    _write_schedule(plan, line, sheet)
    settings |= {"warmup_steps": line.warmup, "max_steps": line.total}
    settings |= intervals(plan, "eval_steps", "save_steps", "logging_steps")
    _saved_where_evaluated(plan, sheet)
    _write_optimizer(plan, sheet)
    # The Trainer clips at 1.0 unless it is asked not to.
    settings["max_grad_norm"] = plan.recipe.clip_norm or 0.0
    if plan.recipe.precision in ("bf16", "fp16", "tf32"):
        settings[plan.recipe.precision] = True
    if plan.recipe.drop_last:
        settings["dataloader_drop_last"] = True
    if not plan.recipe.even_batches:
        settings["accelerator_config"] = {"even_batches": False}
    if plan.ema_decay is not None:
        sheet.note(
            f"the Trainer keeps no running average of the weights; the plan's decay is {plan.ema_decay!r}"
        )
    if job.resume is not None:
        settings["resume_from_checkpoint"] = job.resume
        if plan.lr_scale != 1:
            sheet.note(
                "the learning rate changes, and the Trainer restores the old one from scheduler.pt and optimizer.pt: pass "
                "Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
            )
    return sheet


def _saved_where_evaluated(plan: Plan, sheet: SettingsSheet) -> None:
    """Keeps the ratio of two intervals, lost by rounding each: with load_best_model_at_end the Trainer refuses a save_steps that is no
    multiple of eval_steps (transformers, training_args.py)."""
    evaluated, saved = plan.eval_steps, plan.save_steps
    tuned = [_LENGTH.fullmatch(text or "") for text in (plan.recipe.eval_every, plan.recipe.save_every)]
    if not evaluated or not saved or tuned[0] is None or tuned[1] is None or tuned[0][2] != tuned[1][2]:
        return
    times = float(tuned[1][1]) / float(tuned[0][1])
    if times == int(times) and times >= 1 and saved != int(times) * evaluated:
        sheet.settings["save_steps"] = int(times) * evaluated
        sheet.note(
            f"save_steps is {int(times)} × eval_steps, as it was tuned, not {saved}: load_best_model_at_end demands a multiple"
        )


def _write_optimizer(plan: Plan, sheet: SettingsSheet) -> None:
    name = plan.recipe.optimizer
    if name in _OPTIMIZERS:
        sheet.settings["optim"] = _OPTIMIZERS[name]
    elif (
        name != "adamw"
    ):  # the Trainer's own default; or the variant that the file names, which the plan does not decide
        sheet.note(
            f"optim is not set: the Trainer has no {name} of its own; pass one as Trainer(optimizers=...)"
        )
    if name == "adam" and plan.weight_decay:
        sheet.note("the Trainer has no Adam: adamw_torch decouples the weight decay, Adam does not")
    sheet.settings["weight_decay"] = plan.weight_decay
    if name in ("adamw", "adam"):
        sheet.settings |= {"adam_beta1": plan.beta1, "adam_beta2": plan.beta2, "adam_epsilon": plan.eps}
    if name in ("sgd", "rmsprop") and plan.momentum:
        sheet.settings["optim_args"] = f"momentum={plan.momentum!r}"


def _write_schedule(plan: Plan, line: Curve, sheet: SettingsSheet) -> None:
    kind, kwargs = _scheduler(line)
    own = "for the plan's own curve: Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
    if kind is None:
        sheet.note(
            f"lr_scheduler_type is not set: the Trainer has no scheduler such as {plan.recipe.schedule}"
        )
        sheet.note(own)
        return
    sheet.settings["lr_scheduler_type"] = kind
    if kwargs:
        sheet.settings["lr_scheduler_kwargs"] = kwargs
    sheet.compare(
        plan,
        lambda: _theirs(line, kind, kwargs),
        lambda miss: [f"lr_scheduler_type {kind} {miss}", own],
    )


def _theirs(line: Curve, kind: str, kwargs: dict[str, Any]) -> Callable[[int], float]:
    from isobatch.schedules.peers.transformers import get_scheduler

    made = get_scheduler(
        kind,
        lr=line.peak,
        num_warmup_steps=line.warmup,
        num_training_steps=line.total,
        scheduler_specific_kwargs=kwargs,
    )
    at: Callable[[int], float] = made.at
    return at


def _scheduler(line: Curve) -> tuple[str | None, dict[str, Any]]:
    """Returns the name and arguments of the scheduler with this curve."""
    match line.kind:
        case "constant":
            return "constant_with_warmup", {}
        case "linear" | "linear_to_zero" if line.kind == "linear_to_zero" or not line.bottom:
            return "linear", {}
        case "linear":
            return "polynomial", {"power": 1.0, "lr_end": line.bottom}
        case "polynomial":
            return "polynomial", {"power": line.numbers.get("power", 1.0), "lr_end": line.bottom}
        case "cosine":
            return ("cosine_with_min_lr", {"min_lr": line.bottom}) if line.bottom else ("cosine", {})
        case "inverse_sqrt" | "vaswani":
            over = line.lengths.get("timescale")
            return "inverse_sqrt", {} if over is None else {"timescale": over}
        case "wsd" | "trapezoid" if line.shape in _SHAPES:
            return _stable_decay(line, line.last_steps(), _SHAPES[line.shape])
        case "one_minus_sqrt":
            return _stable_decay(line, line.decay, "1-sqrt")
    return None, {}


def _stable_decay(line: Curve, decay: int, shape: str) -> tuple[str, dict[str, Any]]:
    kwargs: dict[str, Any] = {"num_decay_steps": decay, "decay_type": shape}
    if line.bottom:
        kwargs["min_lr_ratio"] = line.bottom / line.peak
    return "warmup_stable_decay", kwargs


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, job: Job) -> str:  # noqa: ARG001 - no launcher
    """The arguments alone."""
    return f"{top}{remark_lines(remarks)}{shell(list(flags(sheet.settings)))}\n"


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the Trainer, and of tools built on it."""
    # A checkpoint's max_steps is what the Trainer counted, also where its arguments say epochs.
    steps = 0.0 if case.reading.tool == "checkpoint" else number(case.at("max_steps"))
    ratio = case.at("warmup_ratio")
    for epochs in ("num_train_epochs", "num_epochs"):
        if steps > 0 and case.at(epochs) is not None:
            yield Issue(
                f"{epochs} {case.at(epochs)} has no effect",
                "max_steps wins over it",
                "transformers, training_args.py: max_steps",
                f"remove {epochs}",
            )
    if ratio and number(case.at("warmup_steps")) > 0:
        yield Issue(
            f"warmup_ratio {ratio} has no effect",
            "warmup_steps wins over it",
            "transformers 4, training_args.py: get_warmup_steps",
            "remove warmup_ratio",
        )
    elif ratio and case.reading.tool == "transformers":
        yield Issue(
            "warmup_ratio is unknown to transformers 5",
            "a warmup_steps below 1 is the ratio there",
            "transformers 5, training_args.py: get_warmup_steps",
            f"warmup_steps: {ratio}",
        )
    if case.at("lr_scheduler_type") == "constant" and (ratio or case.at("warmup_steps")):
        yield Issue(
            "the warmup has no effect",
            "the scheduler constant has none",
            "transformers, optimization.py: get_scheduler",
            "lr_scheduler_type: constant_with_warmup",
        )
    if case.at("max_grad_norm") is None:
        yield Issue(
            "gradients are clipped at norm 1",
            "max_grad_norm is not in the file, and 1.0 is its default",
            "transformers, training_args.py: max_grad_norm",
            "max_grad_norm: 0.0  (for none)",
        )
    if case.at("average_tokens_across_devices") is False and case.gpus > 1:
        yield Issue(
            "samples on a GPU with few tokens weigh more: a mean of means",
            "average_tokens_across_devices is off: each GPU divides by its own tokens",
            "huggingface/transformers#34242, #34373",
            "average_tokens_across_devices: true",
        )
    elif (case.fields.get("accumulation") or 1) > 1:
        yield Issue(
            "before transformers 4.46 a step under accumulation is a mean of means: micro-batches with few tokens weigh more",
            f"{case.key('accumulation')} is {case.fields['accumulation']}, and older Trainers divide each micro-batch by its own tokens",
            "huggingface/transformers#34191",
            "transformers>=4.46",
        )
    if case.at("auto_find_batch_size"):
        yield Issue(
            "the batch may halve during the run",
            "auto_find_batch_size retries with a smaller one",
            "huggingface/transformers#33281, axolotl-ai-cloud/axolotl#1885: the accumulation stays",
            "auto_find_batch_size: false",
        )


TRANSFORMERS = Tool(
    name="transformers",
    title="transformers TrainingArguments",
    reader=Reader(versions="4.30 to 5", read=read, check=check, names=NAMES),
    writer=Writer(
        versions="5",
        file="training_args.yaml",
        forms=("yaml", "json", "sh"),
        write=write,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="seq_len name command image",
        render=render,
    ),
)
