"""transformers' TrainingArguments: JSON, YAML, or flags on a command line.

To support another tool, copy this file.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from isobatch.tools import trainer
from isobatch.tools.map import Setting, read_settings, write_settings
from isobatch.tools.page import SettingsPage
from isobatch.tools.sheet import Curve, Job, Planned, SettingsSheet, command_file, curve, flags
from isobatch.tools.tool import Reader, Tool, Writer

_OPTIMIZERS = {"adam": "adamw_torch", "sgd": "sgd", "adafactor": "adafactor", "rmsprop": "rmsprop"}
_SAMPLE = Setting("max_length", "seq_len", older="max_seq_length model_max_length", writes=False)
SETTINGS = (*trainer.SETTINGS, _SAMPLE)
_LENGTH = re.compile(r"([\d.e+]+)(st|ep|sp|tok)")


def read(page: SettingsPage, own_rate: str = "the Trainer's own default is 5e-5") -> None:
    """Reads the Trainer's arguments: missing ones have its defaults; the learning rate is asked for."""
    trainer.read_batch(page, page.first("per_device_train_batch_size", "per_gpu_train_batch_size"))
    trainer.read_loader(page)
    trainer.read_parallel(page)
    page.read_launch_line()
    if not page.has("learning_rate"):
        page.note_assumed("lr", f"{page.name('learning_rate')} is not in the file; {own_rate}")
    read_settings(page, trainer.RATE)
    trainer.read_lengths(page, "num_train_epochs", trainer.DEFAULTS["num_train_epochs"])
    page.give("convention", "transformers", "")
    trainer.note_older_steps(page)
    trainer.read_intervals(page)
    trainer.read_schedule(page, "lr_scheduler_type", "linear")
    trainer.read_adam(page, "optim", "adamw_torch")
    read_settings(page, (_SAMPLE, *trainer.PRECISION))
    if page.word("loss_class"):
        page.give("coupled", "negatives", "loss_class")


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the arguments decided by the plan."""
    sheet, line = SettingsSheet(), curve(plan)
    sheet.note(
        f"these lines hold for {plan.world_size} GPUs only; to stop a start on another count, run first: "
        f'isobatch doctor FILE --set gpus={plan.world_size} --gpus "$WORLD_SIZE"',
        of_file=True,
    )
    factor = trainer.trainers_factor(plan.data_parallel or 1, plan.accumulation or 1)
    if factor > 1:
        sheet.note(
            "BERT, T5, BART: model.accepts_loss_kwargs = False before Trainer(...), else transformers 5 "
            f"multiplies the gradient by {factor}"
        )
    settings = sheet.settings
    settings |= write_settings(plan, (*trainer.BATCH, *trainer.RATE))
    kind, kwargs = _scheduler(line)
    own = (
        "for the plan's own curve: "
        "Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
    )
    if kind is None:
        text = f"lr_scheduler_type is not set: the Trainer has no scheduler such as {plan.recipe.schedule}"
        sheet.comments += [text, own]
    else:
        settings |= {"lr_scheduler_type": kind} | ({"lr_scheduler_kwargs": kwargs} if kwargs else {})
        if miss := line.misses(trainer_rate(line, kind, kwargs)):
            sheet.comments += [f"lr_scheduler_type {kind} {miss}", own]
    settings |= write_settings(plan, trainer.LENGTHS)
    _saved_where_evaluated(plan, sheet)
    _write_optimizer(plan, sheet)
    settings |= write_settings(plan, (*trainer.ADAM, *trainer.PRECISION))
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
                "the learning rate changes, and the Trainer restores the old one from scheduler.pt and "
                "optimizer.pt: pass "
                "Trainer(optimizers=isobatch.integrations.transformers.optimizers(optimizer, plan))"
            )
    return sheet


def _saved_where_evaluated(plan: Planned, sheet: SettingsSheet) -> None:
    """Restores the ratio of two intervals, lost by rounding: load_best_model_at_end demands a multiple."""
    evaluated, saved = plan.eval_steps, plan.save_steps
    tuned = [_LENGTH.fullmatch(text or "") for text in (plan.recipe.eval_every, plan.recipe.save_every)]
    if not evaluated or not saved or tuned[0] is None or tuned[1] is None or tuned[0][2] != tuned[1][2]:
        return
    times = float(tuned[1][1]) / float(tuned[0][1])
    if times == int(times) and times >= 1 and saved != int(times) * evaluated:
        sheet.settings["save_steps"] = int(times) * evaluated
        sheet.note(
            f"save_steps is {int(times)} × eval_steps, as it was tuned, not {saved}: load_best_model_at_end "
            "demands a multiple"
        )


def _write_optimizer(plan: Planned, sheet: SettingsSheet) -> None:
    name = plan.recipe.optimizer
    if name in _OPTIMIZERS:
        sheet.settings["optim"] = _OPTIMIZERS[name]
    elif name != "adamw":  # the Trainer's default, or a variant in the file, which the plan does not decide
        sheet.note(
            f"optim is not set: the Trainer has no {name} of its own; pass one as Trainer(optimizers=...)"
        )
    if name == "adam" and plan.weight_decay:
        sheet.note("the Trainer has no Adam: adamw_torch decouples the weight decay, Adam does not")
    if name in ("sgd", "rmsprop") and plan.momentum:
        sheet.settings["optim_args"] = f"momentum={plan.momentum!r}"


def trainer_rate(line: Curve, kind: str, kwargs: dict[str, Any] | None = None) -> Callable[[int], float]:
    """Returns the learning rate of a scheduler of transformers, as a function of the step."""
    from isobatch.schedules.peers.transformers import get_scheduler

    steps: dict[str, Any] = {"num_warmup_steps": line.warmup, "num_training_steps": line.total}
    return get_scheduler(kind, lr=line.peak, **steps, scheduler_specific_kwargs=kwargs).at


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
            return "polynomial", {"power": line.arguments.get("power", 1.0), "lr_end": line.bottom}
        case "cosine":
            return ("cosine_with_min_lr", {"min_lr": line.bottom}) if line.bottom else ("cosine", {})
        case "inverse_sqrt" | "vaswani":
            over = line.arguments.get("timescale")
            return "inverse_sqrt", {} if over is None else {"timescale": over}
        case "wsd" | "trapezoid" | "one_minus_sqrt" if line.shape in trainer.SHAPES:
            kwargs = {"num_decay_steps": line.decay, "decay_type": trainer.SHAPES[line.shape]}
            ratio = {"min_lr_ratio": line.part(line.bottom)} if line.bottom else {}
            return "warmup_stable_decay", kwargs | ratio
    return None, {}


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, _job: Job) -> str:
    """Writes the arguments alone."""
    return command_file(top, remarks, list(flags(sheet.settings)))


WRITER = Writer(
    "5",
    "training_args.yaml",
    ("yaml", "json", "sh"),
    write,
    render,
    runs_ragged=False,
    runs_ramps=False,
    is_part=True,
    leaves_out="seq_len name command image",
)
TRANSFORMERS = Tool(
    "transformers",
    "transformers TrainingArguments",
    Reader("4.30 to 5", read, trainer.check, trainer.HARMLESS, trainer.MATTERS),
    WRITER,
    settings=SETTINGS,
)
