"""DeepSpeed's JSON; "auto" in it is a value for another program to fill in."""

import math
from collections.abc import Iterator

from isobatch.tools.map import Setting, by_code, read_settings, torch_settings, write_settings
from isobatch.tools.page import SettingsPage, leaves, value_at
from isobatch.tools.sheet import Curve, Job, Planned, SettingsSheet, curve
from isobatch.tools.tool import STAYS, Case, Issue, Reader, Tool, Weight, Writer, number
from isobatch.words import count, real

_BATCH = (
    Setting("train_batch_size", "effective_batch"),
    Setting("train_micro_batch_size_per_gpu", "micro_batch"),
    Setting("gradient_accumulation_steps", "accumulation"),
)
_OPTIMIZER = (by_code("optimizer.type", "optimizer"), *torch_settings("optimizer.params", reads=True))
_WARMUP = Setting("scheduler.params.warmup_num_steps", "warmup", "st", default=1000, writes=False)
_PEAK = Setting("scheduler.params.warmup_max_lr", "lr", writes=False)
_END = Setting("scheduler.params.total_num_steps", "duration", "st", writes=False)
_MUON = Setting("optimizer.params.muon_lr", "lr", writes=False)
_SCHEDULERS = {
    "WarmupLR": ("constant", (_WARMUP, _PEAK)),
    "WarmupDecayLR": ("linear", (_WARMUP, _PEAK, _END)),
    "WarmupCosineLR": ("cosine", (_WARMUP, _END)),
}
"""By the scheduler's name its curve and settings."""
_REST = (
    Setting("gradient_clipping", "clip_norm", default=0.0, off=0.0),
    Setting(
        "bf16.enabled fp16.enabled",
        "precision",
        words={"bf16": "bf16.enabled", "fp16": "fp16.enabled"},
    ),
)
SETTINGS = (
    *_BATCH,
    *_OPTIMIZER,
    by_code("optimizer.params.adam_w_mode", "optimizer"),
    _MUON,
    by_code("scheduler.type", "schedule"),
    *(_WARMUP, _PEAK, _END),
    by_code("scheduler.params.cos_min_ratio", "min_lr"),
    by_code("scheduler.params.warmup_type", "schedule"),
    *_REST,
)
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lamb": "Lamb", "lion": "Lion", "sgd": "SGD", "muon": "Muon"}

_HARMLESS = """
    aio.* amp.* autotuning.* comms_logger.* communication_data_type compression_training.* csv_monitor.*
    curriculum_learning.* dataloader_drop_last datastates.* disable_allgather disable_python_gc dump_state
    bf16.* bfloat16.* fp16.* flops_profiler.* gradient_accumulation_dtype gradient_allreduce_op
    gradient_predivide_factor hybrid_engine.* managed_gradient_accumulation memory_breakdown
    optimizer.legacy_fusion optimizer.params.adam_w_mode optimizer.params.torch_adam
    optimizer.params.bias_correction prescale_gradients progressive_layer_drop.*
    scheduler.params.cos_min_ratio scheduler.params.last_batch_iteration seq_parallel_communication_data_type
    sparse_attention* sparse_gradients steps_per_print tensor_parallel.* timers.* torch_autocast.* train_eval*
    expert_parallel.* use_data_before_expert_parallelism use_node_local_storage wall_clock_breakdown
    weight_quantization.* zero_* elasticity.* pipeline.* timers
"""
_MATTERS = {
    "effective_batch": "elasticity.enabled autotuning.enabled "
    "data_efficiency.data_sampling.dynamic_batching.enabled",
    "model_parallel": "pipeline.stages pipeline.num_stages",
    STAYS: "scheduler.params.warmup_min_lr scheduler.params.warmup_min_ratio optimizer.params.adam_lr",
}


def read(page: SettingsPage) -> None:
    """Reads the three batch numbers; two are enough if the GPUs are known."""
    page.table("scheduler.params").name_absent(duration="total_num_steps", warmup="warmup_num_steps")
    page.name_absent(lr="optimizer.params.lr", **{row.field: row.key for row in _BATCH})
    parallel = page.read_parallel("tensor_parallel.autotp_size", "sequence_parallel_size")
    key = page.first("expert_parallel.autoep_size", "expert_parallel.ep_size", "moe.ep_size")
    if page.raw("expert_parallel.enabled") is not False and (experts := page.whole(key, default=1) or 1) > 1:
        page.give("expert_parallel", experts * parallel, key)
    read_settings(page, _BATCH, auto=True)
    if autos := [row.key for row in _BATCH if page.raw(row.key) == "auto"]:
        page.note_until(
            f'{", ".join(autos)}: "auto" is not known before the run: isobatch plan reads the file that '
            "fills it in, such as training_args.json, as another --from",
            lambda run: "effective_batch" in run.fields,
        )
    if not page.has("train_batch_size") and not page.has("gradient_accumulation_steps"):
        page.give("accumulation", 1, "gradient_accumulation_steps")
    _read_optimizer(page)
    _schedule(page)
    read_settings(page, _REST, auto=True)
    if page.flag("bfloat16.enabled"):
        page.give("precision", "bf16", "bfloat16.enabled")


def _read_optimizer(page: SettingsPage) -> None:
    name = page.word("optimizer.type")
    if name is None:
        page.note_until(
            "there is no optimizer in the file: the training script has it",
            lambda run: "optimizer" in run.fields,
        )
        return
    # DeepSpeed's Adam decouples the weight decay unless it is asked not to.
    decoupled = name.lower() == "adam" and page.raw("optimizer.params.adam_w_mode") is not False
    page.optimizer("optimizer.type", "adamw" if decoupled else name)
    read_settings(page, _OPTIMIZER, auto=True)
    inner = page.table("optimizer.params")
    if name.lower() == "muon" and inner.has("muon_lr"):
        # A rate of the matrices' own wins over the shared one, which is then the others' alone.
        read_settings(page, (_MUON,), auto=True)
        if inner.has("lr") and "adam_lr" not in inner.settings:
            page.note(f"optimizer.params.lr {inner.raw('lr')} stays as it is: no plan moves it")


def _schedule(page: SettingsPage) -> None:
    name = page.word("scheduler.type")
    inner = page.table("scheduler.params")
    if name is None:
        page.give("schedule", "constant", "scheduler")
        page.note_assumed(
            "schedule",
            "there is no scheduler in the file: planned with a constant learning rate (--set schedule=... "
            "for another)",
        )
        return
    if name not in _SCHEDULERS:
        page.unsupported("scheduler.type", f"the scheduler {name!r}")
        return
    kind, settings = _SCHEDULERS[name]
    page.give("schedule", kind, "scheduler.type")
    read_settings(page, settings, auto=True)
    if name == "WarmupCosineLR":
        inner.times_lr("min_lr", inner.number("cos_min_ratio", default=0.0001), "cos_min_ratio")
    if inner.word("warmup_type", "log") != "linear":
        text = 'warmup_type is "log", DeepSpeed\'s default: the warmup is planned as a straight line'
        page.note_assumed("schedule", text)


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the optimizer, the scheduler and the three batch numbers."""
    sheet = SettingsSheet(write_settings(plan, _BATCH))
    _write_optimizer(plan, job, sheet)
    if "muon_lr" in sheet.settings.get("optimizer", {}).get("params", {}):
        sheet.note(f"scheduler is not set, as it would give muon_lr's {plan.lr!r} to all parameters")
    else:
        _scheduler(curve(plan), sheet)
    sheet.settings |= write_settings(plan, _REST)
    sheet.note(f"the number of steps is the training loop's: {plan.total_steps}")
    return sheet


def _write_optimizer(plan: Planned, job: Job, sheet: SettingsSheet) -> None:
    name = plan.recipe.optimizer
    if name not in _OPTIMIZERS:
        sheet.note(
            f"DeepSpeed has no {name}: give one to deepspeed.initialize, with learning rate {plan.lr!r}"
        )
        return
    arguments = write_settings(plan, _OPTIMIZER)["optimizer"]["params"]
    if name == "adam":
        arguments["adam_w_mode"] = False  # DeepSpeed's Adam is AdamW otherwise
    if name == "muon" and value_at(job.own, "optimizer.params.muon_lr") is not None:
        arguments = {"muon_lr": arguments.pop("lr"), **arguments}
    sheet.settings["optimizer"] = {"type": _OPTIMIZERS[name], "params": arguments}


def _scheduler(line: Curve, sheet: SettingsSheet) -> None:
    warmup = {"warmup_num_steps": line.warmup, "warmup_type": "linear"}
    ends = {"warmup_min_lr": line.first, "warmup_max_lr": line.peak}
    match line.kind:
        case "constant":
            kind, arguments = "WarmupLR", ends | warmup
        case "linear" | "linear_to_zero" if line.kind == "linear_to_zero" or not line.bottom:
            kind, arguments = "WarmupDecayLR", {"total_num_steps": line.total} | ends | warmup
        case "cosine":
            shares = {"warmup_min_ratio": line.part(line.first), "cos_min_ratio": line.part(line.bottom)}
            kind, arguments = "WarmupCosineLR", {"total_num_steps": line.total} | shares | warmup
        case _:
            sheet.note(
                f"DeepSpeed has no scheduler such as {line.plan.recipe.schedule}: give isobatch's PlanLR to "
                "initialize"
            )
            return
    sheet.settings["scheduler"] = {"type": kind, "params": arguments}
    if miss := line.misses(lambda step: _rate(line, step)):
        sheet.note(f"{kind} {miss}: give isobatch's PlanLR to deepspeed.initialize for the plan's own")


def _rate(line: Curve, step: int) -> float:
    """Computes the rate of lr_schedules.py: a step late but for a cosine's decay, the warmup at least two."""
    at, warmup = step - 1, max(2, line.warmup)
    if at < 0:
        return 0.0
    if at < warmup:
        return line.first + (line.peak - line.first) * at / warmup
    if line.kind == "constant":
        return line.peak
    if line.kind == "cosine":
        u = (at - warmup + 1) / max(1, line.total - warmup)
        return line.bottom + (line.peak - line.bottom) * (1 + math.cos(math.pi * u)) / 2
    return line.first + (line.peak - line.first) * max(0.0, (line.total - at) / max(1.0, line.total - warmup))


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    yield from _schedules(case)
    kind = str(case.at("scheduler", "type"))
    autos = [key for key, value in leaves(case.reading.settings).items() if value == "auto"]
    if autos:
        yield Issue.note(
            f'{", ".join(autos)}: "auto"',
            "the Trainer or Accelerate fills these in when the run starts; alone DeepSpeed refuses them",
            "transformers, integrations/deepspeed.py: HfTrainerDeepSpeedConfig",
            "write the numbers down, or plan it with the file that has them",
        )
    if kind.startswith("Warmup") and case.at("scheduler", "params", "warmup_type") != "linear":
        yield Issue.note(
            "the warmup is logarithmic",
            'warmup_type is "log" unless it is named',
            "deepspeed, runtime/lr_schedules.py: WARMUP_LOG_RATE",
            '"warmup_type": "linear"',
        )
    if kind in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        # The cosine itself counts from the step before, so that only the warmup of WarmupCosineLR is late.
        late = "the warmup" if kind == "WarmupCosineLR" else "the learning rate"
        yield Issue.note(
            f"{late} is one step late",
            "its schedulers start at step 0, and are asked once before the first step",
            "deepspeed, runtime/lr_schedules.py: WarmupLR.get_lr; measured in bench/results/exports.md",
            "leave it, or drive it by isobatch.integrations.torch.PlanLR",
        )
    decouples = case.at("optimizer", "params", "adam_w_mode") is not False
    if str(case.at("optimizer", "type")).lower() == "adam" and decouples:
        yield Issue.note(
            "Adam is AdamW",
            "adam_w_mode is on unless it is switched off",
            "deepspeed, runtime/config.py: ADAM_W_MODE_DEFAULT",
            '"adam_w_mode": false',
        )
    yield from _product(case)


def _product(case: Case) -> Iterator[Issue]:
    """Finds batch numbers with another product; DeepSpeed works out one or two missing ones from the rest."""
    total, micro, steps = (case.at(row.key) for row in _BATCH)
    replicas = case.replicas
    if type(total) is not int or not replicas or {type(micro), type(steps)} - {int, type(None)}:
        return
    if micro is None:
        steps = steps or 1
        micro = total // replicas // steps
    elif steps is None:
        steps = total // micro // replicas if micro else 0
    product = micro * steps * replicas
    if total == product:
        return
    changes = [f'"train_batch_size": {product or (steps or 1) * replicas}']
    if micro and total % (micro * replicas) == 0:
        changes.append(f'"gradient_accumulation_steps": {total // (micro * replicas)}')
    yield Issue(
        f"DeepSpeed stops: {total} samples are not {micro} × {steps} × {replicas} replicas",
        "the three numbers must multiply out on these GPUs",
        "deepspeed, runtime/config.py: _batch_assertion",
        " or ".join(changes),
        Weight.STOPS,
    )


def _schedules(case: Case) -> Iterator[Issue]:
    """Finds a scheduler with another rate than the optimizer, or another length than the run."""
    lr = number(case.at("optimizer", "params", "lr"))
    peak = number(case.at("scheduler", "params", "warmup_max_lr"))
    if lr and peak and lr != peak:
        yield Issue(
            f"the learning rate is {real(peak)}, not {real(lr)}",
            "warmup_max_lr of the scheduler replaces the optimizer's lr",
            "deepspeed, runtime/lr_schedules.py: WarmupLR",
            f'"warmup_max_lr": {real(lr)}',
        )
    end, run = case.at("scheduler", "params", "total_num_steps"), str(case.fields.get("duration"))
    if type(end) is int and run.endswith("st") and int(float(run[:-2])) != end:
        yield Issue(
            f"the schedule ends at step {count(end)}, the run at {run[:-2]}",
            "total_num_steps is the scheduler's alone; the training loop ends on its own",
            "deepspeed, runtime/lr_schedules.py: WarmupDecayLR",
            f'"total_num_steps": {run[:-2]}',
        )


DEEPSPEED = Tool(
    "deepspeed",
    "DeepSpeed",
    Reader(
        "0.10 to 0.19",
        read,
        check,
        _HARMLESS,
        _MATTERS,
        tables="optimizer optimizer.params scheduler scheduler.params",
    ),
    Writer(
        "0.14 to 0.19",
        "ds_config.json",
        ("json",),
        write,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="eval_steps save_steps log_steps ema_decay seq_len drop_last even_batches name command "
        "image resume",
    ),
    settings=SETTINGS,
)
