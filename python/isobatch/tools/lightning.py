"""LightningCLI's YAML: the arguments of the Trainer, the module and the data."""

from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.constructs import CALLBACKS
from isobatch.tools.launchers import layout
from isobatch.tools.map import Setting, by_code, read_settings, torch_settings, write_settings
from isobatch.tools.page import SettingsPage, length, value_at
from isobatch.tools.run_schedules import Multiple, read_run_schedule
from isobatch.tools.sheet import Job, Planned, SettingsSheet, curve
from isobatch.tools.tool import Case, Issue, Reader, Tool, Writer, inside, number
from isobatch.tools.trainer import read_torch_schedule
from isobatch.words import counted, share

_BATCH = (
    Setting(
        "data.init_args.batch_size",
        "batch_per_gpu",
        older="data.batch_size data.init_args.train_batch_size model.init_args.batch_size",
        writes=False,
    ),
    Setting("trainer.accumulate_grad_batches", "accumulation", default=1),
)
_RATE = Setting(
    "optimizer.init_args.lr",
    "lr",
    older="model.init_args.learning_rate model.init_args.lr model.learning_rate model.lr optimizer.lr",
    writes=False,
)
_OPTIMIZER = (by_code("optimizer.class_path", "optimizer"), *torch_settings("optimizer.init_args"))
_TRAINER = (
    Setting("trainer.max_steps", "duration", "st", reads=False),
    Setting("trainer.log_every_n_steps", "log_every", "st", reads=False),
    Setting(
        "trainer.precision",
        "precision",
        words={"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "tf32": "32-true"},
        reads=False,
    ),
)
_CLIP = Setting("trainer.gradient_clip_val", "clip_norm")
SETTINGS = (
    *(*_BATCH, *_OPTIMIZER, *_TRAINER, _CLIP),
    by_code("trainer.gradient_clip_algorithm", "clip_norm"),
    by_code("trainer.devices", "gpus"),
    by_code("trainer.num_nodes", "gpus"),
    by_code("trainer.max_epochs", "duration"),
    by_code("trainer.val_check_interval", "eval_every"),
    by_code("lr_scheduler.class_path", "schedule"),
    by_code("lr_scheduler.init_args", "schedule"),
)
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "rmsprop": "RMSprop", "adafactor": "Adafactor"}

_LOADER = inside(
    "data.init_args",
    "num_workers pin_memory persistent_workers prefetch_factor data_dir download_dir root",
)
_FUSED = inside("optimizer.init_args", "fused foreach capturable maximize differentiable")
_HARMLESS = f"""
    seed_everything* model.class_path data.class_path data.num_workers data.pin_memory {_LOADER} {_FUSED}
    callbacks* early_stopping.* trainer.accelerator trainer.logger* trainer.callbacks* trainer.min_*
    trainer.limit_test_batches trainer.limit_predict_batches trainer.*val_* trainer.log_* trainer.enable_*
    trainer.deterministic trainer.benchmark trainer.inference_mode trainer.use_distributed_sampler
    trainer.profiler* trainer.detect_anomaly trainer.barebones trainer.plugins* trainer.sync_batchnorm
    trainer.reload_* trainer.default_* trainer.model_registry trainer.strategy trainer.strategy.*
    trainer.limit_train_batches subcommand trainer.gradient_clip_algorithm trainer.resume_* trainer.auto_*
    trainer.replace_* trainer.weights_* trainer.track_* optimizer lr_scheduler
"""
"""Of Lightning's Trainer 2.6 and its LightningCLI.

Model, data, optimizer and scheduler have arguments of their own.
"""
_MATTERS = {
    "lr": "trainer.auto_lr_find",
    "batch_per_gpu": "trainer.auto_scale_batch_size",
    "duration": "trainer.overfit_batches trainer.fast_dev_run trainer.max_time*",
    "model_parallel": " ".join(
        f"trainer.strategy.init_args.{kind}_parallel_size"
        for kind in ("tensor_model", "pipeline_model", "context")
    ),
}


def read(page: SettingsPage) -> None:
    """Reads the Trainer's arguments, and batch and learning rate, the user's own, under their usual names."""
    read_settings(page, _BATCH)
    _devices(page)
    read_settings(page, (_RATE,))
    name = page.word("optimizer.class_path")
    page.optimizer("optimizer.class_path", None if name is None else name.rpartition(".")[2])
    page.table("optimizer.init_args").torch_optimizer()
    page.name_absent(duration="trainer.max_steps")
    steps, epochs = page.whole("trainer.max_steps", default=-1), page.number("trainer.max_epochs")
    if steps is not None and steps > 0:
        page.give("duration", length(steps, "st"), "trainer.max_steps")
        if epochs and epochs > 0:
            page.note(
                "trainer.max_epochs and max_steps: Lightning ends at whichever comes first; planned by "
                "max_steps"
            )
    elif epochs and epochs > 0:
        page.give("duration", length(epochs, "ep"), "trainer.max_epochs")
        limit = page.raw("trainer.limit_train_batches")
        if limit not in (None, 1.0) or type(limit) is int:
            text = f"trainer.limit_train_batches {limit} ends each epoch early: give duration in steps"
            page.fault("duration", InputError(text, field="trainer.limit_train_batches"))
    elif epochs is None:
        page.note(
            "neither max_steps nor max_epochs: Lightning trains for 1,000 epochs; give duration a value"
        )
    _schedule(page)
    if page.word("trainer.gradient_clip_algorithm", "norm") == "norm":
        read_settings(page, (_CLIP,))
    else:
        page.note("trainer.gradient_clip_algorithm clips values, not the norm: it is not planned")
    start = str(page.raw("trainer.precision") or "").partition("-")[0]
    if start in (names := {"bf16": "bf16", "16": "fp16", "32": "fp32"}):
        page.give("precision", names[start], "trainer.precision")
    page.give("convention", "lightning", "")
    _callbacks(page)


def _callbacks(page: SettingsPage) -> None:
    """Asks for the fields changed by a callback."""
    listed = page.raw("trainer.callbacks")
    for callback in listed if isinstance(listed, list) else [listed]:
        path = callback.get("class_path") if isinstance(callback, Mapping) else callback
        name = str(path).rpartition(".")[2]
        if name in CALLBACKS:
            field, does = CALLBACKS[name]
            page.reading.drop(field)
            page.ask(field, f"trainer.callbacks: {name} {does}", "trainer.callbacks")


def _devices(page: SettingsPage) -> None:
    devices, nodes = page.raw("trainer.devices"), page.whole("trainer.num_nodes", default=1) or 1
    _parallel(page, nodes)
    if isinstance(devices, str) and "," in devices:
        devices = [part for part in devices.split(",") if part.strip()]
    if isinstance(devices, list):
        page.give("gpus", len(devices) * nodes, "trainer.devices")
    elif devices not in (None, "auto", -1, "-1") and (each := page.whole("trainer.devices")):
        page.give("gpus", each * nodes, "trainer.devices")


def _parallel(page: SettingsPage, nodes: int) -> None:
    """Reads the GPUs of a replica from a ModelParallelStrategy: without a number, all of a node."""
    strategy = page.table("trainer.strategy")
    if not (strategy.word("class_path") or "").endswith("ModelParallelStrategy"):
        return
    inner, devices = strategy.table("init_args"), page.raw("trainer.devices")
    if inner.raw("tensor_parallel_size") not in (None, "auto"):
        inner.read_parallel("tensor_parallel_size")
    elif type(devices) is int and devices > 0 and inner.raw("data_parallel_size") in (None, "auto", nodes):
        page.give("model_parallel", devices, "trainer.strategy")
    else:
        text = "trainer.strategy: how many GPUs share a replica is only decided at the start"
        page.ask("model_parallel", text, "trainer.strategy")


def _schedule(page: SettingsPage) -> None:
    key, call = "lr_scheduler.class_path", page.table("lr_scheduler.init_args")
    name, arguments = page.word(key), call.settings
    page.raw("lr_scheduler.init_args")
    if name is None and not page.has(key):  # otherwise it is of a script, and the fault is there
        page.give("schedule", "constant", "lr_scheduler")
        page.note(
            "there is no lr_scheduler in the file: planned with a constant learning rate (--set schedule=... "
            "for another)"
        )
    if name is None:
        return
    kind, gamma = name.rpartition(".")[2], arguments.get("gamma", 0.1)
    if page.word("lr_scheduler.interval") == "step":  # of a script
        if any(isinstance(value, Multiple) for value in arguments.values()) or not kind.endswith("LR"):
            _run_schedule(page, call, kind)
        else:
            read_torch_schedule(page, call, kind)
        return
    if kind == "CosineAnnealingLR":
        if length(call.whole("T_max", default=0) or 0, "ep") != page.reading.fields.get("duration"):
            text = "a cosine that rises again, or ends with another epoch than the run,"
            page.unsupported("lr_scheduler.init_args.T_max", text)
        page.give("schedule", "cosine", key)
        call.number("eta_min", "min_lr")
    elif kind == "StepLR" and arguments.get("step_size"):
        page.give("schedule", f"step(every={arguments['step_size']}ep, gamma={gamma})", key)
    elif kind == "MultiStepLR" and isinstance(arguments.get("milestones"), list):
        points = ", ".join(f"{point}ep" for point in arguments["milestones"])
        page.give("schedule", f"multistep({points}, gamma={gamma})", key)
    elif kind == "ConstantLR" and arguments.get("factor") == 1:
        page.give("schedule", "constant", key)
    else:
        page.unsupported(key, f"the scheduler {kind!r}")
        return
    page.note("LightningCLI steps the lr_scheduler once an epoch; the plan's learning rate moves every step")


def _run_schedule(page: SettingsPage, call: SettingsPage, kind: str) -> None:
    """Reads a scheduler over `estimated_stepping_batches`, the run's own count of steps."""
    run = read_run_schedule(page, call, kind)
    if run is None:
        return
    is_run = isinstance(run.total, Multiple) and run.total.number == 1
    total = run.total.number if isinstance(run.total, Multiple) else run.total
    if total is not None and not is_run and length(total, "st") != page.reading.fields.get("duration"):
        page.unsupported(run.key, f"the scheduler {kind} over other steps than the run's")
    if isinstance(run.warmup, Multiple):
        page.give("warmup", share(run.warmup.number), "num_warmup_steps")
    elif run.warmup:
        page.give("warmup", length(run.warmup, "st"), "num_warmup_steps")


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the Trainer, the optimizer, and the batch of the data module."""
    sheet, line = SettingsSheet(), curve(plan)
    nodes, each = layout(plan, sheet)
    trainer: dict[str, Any] = {
        "devices": each,
        "num_nodes": nodes,
        "strategy": "ddp" if plan.world_size > 1 else "auto",
        "max_epochs": -1,
        **write_settings(plan, (*_BATCH, *_TRAINER, _CLIP))["trainer"],
        "use_distributed_sampler": True,
    }
    if plan.eval_steps is not None:  # counted in micro-batches, over all epochs
        trainer["val_check_interval"] = plan.eval_steps * (plan.accumulation or 1)
        trainer["check_val_every_n_epoch"] = None
    if plan.save_steps is not None:
        sheet.note(f"checkpoints: ModelCheckpoint(every_n_train_steps={plan.save_steps})")
    if plan.recipe.precision == "tf32":
        sheet.note('for tf32: torch.set_float32_matmul_precision("high")')
    if plan.recipe.clip_norm is not None:
        trainer["gradient_clip_algorithm"] = "norm"
    data: dict[str, Any] = {"batch_size": plan.micro_batch}
    is_inside = isinstance(value_at(job.own, "data.init_args"), Mapping)
    data = {"init_args": data} if is_inside else data
    sheet.settings = {"trainer": trainer, **_optimizer(plan, sheet), "data": data}
    if value_at(job.own, "data.init_args.batch_size") is None:
        place = "data.init_args" if is_inside else "data"
        sheet.note(f"{place}.batch_size goes to the data module by its own name for it: the batch of one GPU")
    sheet.note(
        f"schedule {plan.recipe.schedule}, {line.warmup} steps of warmup: LightningCLI would step a "
        "scheduler once an epoch; return isobatch.integrations.lightning.configure_optimizers(optimizer, "
        "plan) instead"
    )
    return sheet


def _optimizer(plan: Planned, sheet: SettingsSheet) -> dict[str, Any]:
    name = plan.recipe.optimizer
    if name not in _OPTIMIZERS:
        sheet.note(f"optimizer {name}, learning rate {plan.lr!r}: torch has none of that name")
        return {}
    own = write_settings(plan, _OPTIMIZER)["optimizer"]
    return {"optimizer": {"class_path": f"torch.optim.{_OPTIMIZERS[name]}", **own}}


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    change = 'return {"scheduler": ..., "interval": "step"} from configure_optimizers'
    if case.at("lr_scheduler") is not None and ".py" in case.reading.file:
        yield Issue.note(
            "the scheduler moves once an epoch, if configure_optimizers returns it alone",
            "Lightning's interval is epoch unless it is named",
            "lightning, pytorch/core/optimizer.py: interval",
            change,
        )
    elif case.at("lr_scheduler") is not None:
        place = "cli.py: LightningCLI.configure_optimizers; core/optimizer.py"
        cause = "LightningCLI leaves interval at epoch"
        yield Issue.note(
            "the scheduler moves once an epoch", cause, f"lightning, pytorch/{place}: interval", change
        )
    steps, epochs = case.at("trainer", "max_steps"), case.at("trainer", "max_epochs")
    if number(steps) > 0 and epochs not in (None, -1):
        yield Issue.note(
            "the run ends at max_steps or max_epochs, whichever is first",
            "both are given",
            "lightning, pytorch/trainer/trainer.py: max_epochs, max_steps",
            "remove one of them",
        )
    if steps is None and epochs is None:
        yield Issue(
            "the run takes 1,000 epochs",
            "neither max_steps nor max_epochs is given",
            "lightning, pytorch/trainer/trainer.py: max_epochs",
            "trainer.max_epochs: ...",
        )
    yield from _check_devices(case)
    if (case.fields.get("accumulation") or 1) > 1:
        yield Issue.note(
            "the last step of an epoch with fewer micro-batches is divided by all of accumulate_grad_batches",
            "Lightning divides each loss by accumulate_grad_batches",
            "Lightning-AI/pytorch-lightning#19987",
            "drop_last=True, or a dataset that divides",
        )


def _check_devices(case: Case) -> Iterator[Issue]:
    """Finds devices and nodes of other GPUs than those of the run to come."""
    if case.reading.keys.get("gpus") != "trainer.devices" or case.reading.fields["gpus"] == case.gpus:
        return
    gpus, own_nodes = case.reading.fields["gpus"], max(1, int(number(case.at("trainer", "num_nodes"))))
    nodes = case.nodes_like(gpus, own_nodes)
    lines = {
        "trainer.devices": (gpus // own_nodes, case.gpus // nodes),
        "trainer.num_nodes": (own_nodes, nodes),
    }
    starts = counted(gpus, "process starts", "processes start")
    yield Issue(
        f"{starts}, not {case.gpus}; under torchrun the run stops",
        "trainer.devices counts the processes of one node, trainer.num_nodes the nodes",
        "lightning, fabric/plugins/environments/torchelastic.py: validate_settings",
        "; ".join(f"{key}: {value}" for key, (own, value) in lines.items() if own != value),
    )


LIGHTNING = Tool(
    "lightning",
    "Lightning",
    Reader("2.0 to 2.6", read, check, _HARMLESS, _MATTERS, tables="trainer"),
    Writer(
        "2.0 to 2.6",
        "trainer.yaml",
        ("yaml", "json"),
        write,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="min_lr warmup_lr ema_decay seq_len drop_last even_batches name command image resume",
    ),
    settings=SETTINGS,
)
