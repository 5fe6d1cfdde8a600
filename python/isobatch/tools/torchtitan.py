"""torchtitan: its TOML and, since 0.3, a Python function returning a configuration with the same names."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.errors import must_be
from isobatch.files.texts import remark
from isobatch.tools.map import Setting, by_code, read_settings, write_settings
from isobatch.tools.page import SettingsPage, length, steps_of
from isobatch.tools.sheet import Curve, Job, Planned, SettingsSheet, curve
from isobatch.tools.tool import Case, Issue, Reader, Tool, Writer, undivided_batch
from isobatch.words import share

NO_CLIPPING = 1e30
"""torchtitan always clips: a norm that no gradient has."""
_SHAPES = {"linear": "linear", "linear_to_zero": "linear", "cosine": "cosine", "one_minus_sqrt": "sqrt"}
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam"}
_PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}
_BATCH = (Setting("training.local_batch_size", "batch_per_gpu", older="training.batch_size", default=8),)
_TRAINING = (
    Setting("training.global_batch_size", "effective_batch", reads=False),
    Setting("training.steps", "duration", "st", default=10_000),
    Setting("training.max_norm", "clip_norm", default=1.0, off=NO_CLIPPING),
    Setting("training.seq_len", "seq_len", older="training.max_context_length", default=2048),
    Setting("training.mixed_precision_param", "precision", words=_PRECISIONS, default="bfloat16"),
)
_EVERY = (
    Setting("validation.freq", "eval_every", "st"),
    Setting("checkpoint.interval", "save_every", "st"),
    Setting("metrics.log_freq", "log_every", "st"),
)
_OPTIMIZER = (
    Setting("optimizer.lr", "lr"),
    Setting("optimizer.beta1 optimizer.beta2", "betas", default=(0.9, 0.95), of="adamw adam"),
    Setting("optimizer.eps", "eps", of="adamw adam"),
    Setting("optimizer.weight_decay", "weight_decay", default=0.1),
)
SETTINGS = (
    *_BATCH,
    *_TRAINING,
    by_code("optimizer.name", "optimizer"),
    *_OPTIMIZER,
    by_code("lr_scheduler.warmup_steps", "warmup"),
    by_code("lr_scheduler.decay_type", "schedule"),
    by_code("lr_scheduler.decay_ratio", "schedule"),
    by_code("lr_scheduler.min_lr_factor", "min_lr"),
    *_EVERY,
)
_TOKENS = "training.num_tokens_per_microbatch_per_dp_rank"

_HARMLESS = """
    activation_checkpoint* comm.* experimental.* float8.* job.* loss.* memory_estimation.* metrics.* mx.*
    override.* parallelism.* parallelism.data_parallel_shard_degree parallelism.disable_loss_parallel
    parallelism.enable_async_tensor_parallel parallelism.context_parallel_load_balancer
    parallelism.context_parallel_rotate_method parallelism.context_parallel_ptrr_mask_key
    parallelism.expert_parallel_degree parallelism.expert_tensor_parallel_degree
    parallelism.expert_parallel_comm_backend parallelism.enable_sequence_parallel
    parallelism.pipeline_parallel_schedule parallelism.pipeline_parallel_schedule_csv
    parallelism.pipeline_parallel_microbatch_size parallelism.pipeline_parallel_layers_per_stage
    parallelism.pipeline_parallel_first_stage_less_layers parallelism.pipeline_parallel_last_stage_less_layers
    parallelism.pipeline_parallel_split_points parallelism.pipeline_parallel_expert_parallel_overlap
    training.data* training.disable_cuda_graphs training.dtype training.gc_* training.mixed_precision_reduce
    training.seed training.deterministic fault_tolerance.* ft.* optimizer.implementation
    optimizer.early_step_in_backward model.name model.flavor model.hf_assets_path model.tokenizer_path
    model.converters model.print_after_conversion compile.enable_async_tensor_parallel validation.steps
    validator.steps validation.local_batch_size converters
"""
"""Of torchtitan's job configuration 0.2.2 and 0.3.0."""
_MATTERS = {"effective_batch": "fault_tolerance.enable"}


def read(page: SettingsPage) -> None:
    """Reads the file; missing values have torchtitan's defaults, unless it starts from another file."""
    whole = not page.note_bases("_from_")
    _batch(page, whole)
    _read_optimizer(page)
    read_settings(page, _TRAINING, defaults=whole)
    read_settings(page, _EVERY)
    _schedule(page, steps_of(page.reading.fields))


def _read_optimizer(page: SettingsPage) -> None:
    """Reads the optimizer: groups of parameters may each have their own, and a plan has one."""
    groups = page.raw("optimizer.param_groups")
    if isinstance(groups, list):
        if len(groups) != 1 or not isinstance(groups[0], dict):
            page.ask("lr", "are several", "optimizer.param_groups")
            return
        own = {"name": groups[0].get("optimizer_name"), **(groups[0].get("optimizer_kwargs") or {})}
        page = SettingsPage({"optimizer": own}, page.reading)
    page.optimizer("optimizer.name", page.word("optimizer.name", "AdamW"))
    read_settings(page, _OPTIMIZER)
    page.pair("optimizer.betas")
    page.give("decay", "lr_multiplied", "optimizer.name")


def _batch(page: SettingsPage, whole: bool) -> None:
    if page.whole(_TOKENS) is not None:
        longest = page.whole("training.max_context_length", default=2048) or 2048
        names = {"batch_per_gpu": _TOKENS, "effective_batch": "training.num_tokens_per_train_step"}
        for field, key in names.items():
            tokens = page.whole(key) or 0
            if tokens > 0 and tokens % longest:
                page.fault(field, must_be(f"a multiple of max_context_length {longest}", tokens, field=key))
            elif tokens > 0:
                page.give(field, tokens // longest, key)
    else:
        read_settings(page, _BATCH, defaults=whole)
    page.name_absent(effective_batch="training.global_batch_size")
    total = page.whole("training.global_batch_size", default=-1)
    if total and total > 0:
        page.give("effective_batch", total, "training.global_batch_size")
    elif whole and "effective_batch" not in page.reading.fields:
        page.give("accumulation", 1, "training.global_batch_size")
    degrees = {
        name: page.whole(_degree(page, name), default=1) or 1
        for name in ("data_parallel_replicate", "tensor_parallel", "pipeline_parallel", "context_parallel")
    }
    replicate = degrees.pop("data_parallel_replicate")
    parallel = math.prod(degrees.values())
    if parallel > 1:
        page.give("model_parallel", parallel, "parallelism.tensor_parallel_degree")
    own = page.whole("parallelism.expert_tensor_parallel_degree", default=1) or 1
    experts = page.whole("parallelism.expert_parallel_degree", default=1) or 1
    # Of the GPUs of one pipeline stage and one copy; by tensors of their own, of one part of these.
    if experts > 1:
        experts_gpus = experts * degrees["pipeline_parallel"] * replicate * own
        page.give("expert_parallel", experts_gpus, "parallelism.expert_parallel_degree")
    key = _degree(page, "data_parallel_shard")
    if (shard := page.whole(key, default=-1) or -1) > 0:
        page.give("gpus", replicate * shard * parallel, key)


def _degree(page: SettingsPage, name: str) -> str:
    """Returns the setting of a degree: before 0.1 it was of the training, or experimental."""
    return page.first(*(f"{table}.{name}_degree" for table in ("parallelism", "training", "experimental")))


def _schedule(page: SettingsPage, steps: int | None) -> None:
    key = page.first("lr_scheduler.warmup_steps", "training.warmup_steps")  # the latter before 0.1
    warmup = page.whole(key, default=200) or 0
    own = page.whole("lr_scheduler.total_steps")
    if own is not None and own != steps:
        page.unsupported("lr_scheduler.total_steps", "a schedule that does not end with the run")
    page.give("warmup", length(warmup, "st"), key)
    kind = page.word("lr_scheduler.decay_type", "linear") or "linear"
    shape = {"linear": "linear", "cosine": "cosine", "sqrt": "one_minus_sqrt"}.get(kind)
    if shape is None:
        page.unsupported("lr_scheduler.decay_type", f"the decay {kind!r}")
        return
    ratio = page.number("lr_scheduler.decay_ratio")

    def decay(fields: Mapping[str, Any]) -> str:
        total, part = steps_of(fields), ratio or 0.0
        end = share(part) if total is None else f"{min(round(total * part), max(1, total - warmup))}st"
        return f"wsd(decay={end}, shape={shape})"

    if ratio is None:
        page.give("schedule", shape, "lr_scheduler.decay_type")
    elif not 0 <= ratio <= 1:
        page.fault("schedule", must_be("a number from 0 to 1", ratio, field="lr_scheduler.decay_ratio"))
    elif ratio == 0:
        page.give("schedule", "constant", "lr_scheduler.decay_ratio")
    else:
        page.derive("schedule", decay, "lr_scheduler.decay_ratio")
    factor = page.number(page.first("lr_scheduler.min_lr_factor", "lr_scheduler.lr_min"))
    page.times_lr("min_lr", factor, "lr_scheduler.min_lr_factor")


def write(plan: Planned, _job: Job) -> SettingsSheet:
    """Writes batch, optimizer and schedule; the split of the model stays as it is."""
    sheet = SettingsSheet()
    line = curve(plan)
    if plan.recipe.clip_norm is None:
        sheet.note("max_norm is effectively none: the plan does not clip")
    if plan.recipe.precision not in (None, *_PRECISIONS):
        sheet.note(f"torchtitan has no {plan.recipe.precision}")
    sheet.settings = {
        **write_settings(plan, (*_BATCH, *_TRAINING)),
        "optimizer": _write_optimizer(plan, sheet),
        "lr_scheduler": _scheduler(plan, line, sheet),
        **write_settings(plan, _EVERY),
    }
    return sheet


def _write_optimizer(plan: Planned, sheet: SettingsSheet) -> dict[str, object]:
    name = plan.recipe.optimizer
    own: dict[str, object] = write_settings(plan, _OPTIMIZER)["optimizer"]
    if name not in _OPTIMIZERS:
        sheet.note(f"torchtitan has no {name}: optimizer.name is not set")
        return own
    return {"name": _OPTIMIZERS[name], **own}


def _scheduler(plan: Planned, line: Curve, sheet: SettingsSheet) -> dict[str, object]:
    settings: dict[str, object] = {"warmup_steps": line.warmup}
    if line.kind == "constant":
        settings["decay_ratio"] = 0.0
        sheet.note(
            "torchtitan divides by the steps of the decay: use decay_ratio 0.0 only where your version takes "
            "it"
        )
    elif line.shape not in _SHAPES:
        sheet.note(f"torchtitan has no schedule such as {plan.recipe.schedule}")
        return settings
    else:
        settings["decay_type"] = _SHAPES[line.shape]
        if line.decay != max(0, line.total - line.warmup):
            settings["decay_ratio"] = line.decay / line.total
    if line.bottom:
        settings["min_lr_factor"] = line.part(line.bottom)
    if miss := line.misses(lambda step: _rate(line, step)):
        sheet.note(
            f"the learning rate {miss}; torchtitan warms up one step ahead, by (step + 1) / warmup_steps"
        )
    return settings


def _rate(line: Curve, step: int) -> float:
    """Computes torchtitan's learning rate at a step, counted from 0."""
    if step < line.warmup:
        return line.peak * (step + 1) / line.warmup
    u = (step - line.total + line.decay) / line.decay if line.decay else 0.0
    if u <= 0 or line.kind == "constant":
        return line.peak
    curves = {"cosine": 0.5 * (1 + math.cos(math.pi * u)), "one_minus_sqrt": 1 - math.sqrt(u)}
    return line.bottom + (line.peak - line.bottom) * curves.get(line.shape, 1 - u)


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, _job: Job) -> str:
    """Writes a function over a named configuration of torchtitan 0.3; its optimizer is one group."""
    training = "\n".join(
        f"    config.training.{name} = {value!r}{remark(remarks, f'training.{name}')}"
        for name, value in sheet.settings["training"].items()
    )
    own = dict(sheet.settings["optimizer"])
    name = own.pop("name", None)
    if "beta1" in own:
        own["betas"] = (own.pop("beta1"), own.pop("beta2"))
    group = ""
    if name is not None:
        changes = "; ".join(
            f"{at.partition('.')[2]} {text}" for at, text in remarks.items() if at.startswith("optimizer.")
        )
        group = (
            f"    group = ParamGroupConfig(pattern='.*', optimizer_name={name!r}, "
            f"optimizer_kwargs={own!r}){remark({'group': changes} if changes else {}, 'group')}\n"
            "    config.optimizer = OptimizersContainer.Config(param_groups=[group])\n"
        )
    arguments = ", ".join(f"{name}={value!r}" for name, value in sheet.settings["lr_scheduler"].items())
    return f'''{top}from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)


def planned(config):
    """Changes a Trainer.Config: return planned(llama3_8b()) from the function that --config names."""
{training}
{group}    config.lr_scheduler = LRSchedulersContainer.Config({arguments})
    return config
'''


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    yield from undivided_batch(case, "torchtitan, train.py (0.2), trainer.py (0.3)")
    yield Issue.note(
        "the warmup is one step ahead",
        "torchtitan computes (step + 1) / warmup_steps, so that no step is at 0",
        "torchtitan, components/lr_scheduler.py: linear_warmup_stable_decay",
        "leave it, or take it into account where runs of other tools are compared",
    )


TORCHTITAN = Tool(
    "torchtitan",
    "torchtitan",
    Reader(
        "0.1 to 0.3", read, check, _HARMLESS, _MATTERS, tables="training optimizer lr_scheduler parallelism"
    ),
    Writer(
        "0.2 to 0.3",
        "train.toml",
        ("toml", "py"),
        write,
        render,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="momentum ema_decay drop_last even_batches name command image resume",
    ),
    settings=SETTINGS,
)
