"""The arguments of transformers' Trainer, read and checked for all tools built on it."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isobatch.errors import InputError
from isobatch.files.texts import scalar_text
from isobatch.files.whole import read_whole
from isobatch.schedules.schedule import Schedule
from isobatch.tools.map import Setting, by_code, read_settings
from isobatch.tools.page import Joined, SettingsPage, Unknown, epochs_of, leaves, length
from isobatch.tools.tool import Case, Issue, Weight, number
from isobatch.words import count, number_of, share

DEFAULTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_train_epochs": 3}
BATCH = (
    Setting("per_device_train_batch_size", "batch_per_gpu", reads=False),
    Setting("gradient_accumulation_steps", "accumulation", reads=False),
)
RATE = (Setting("learning_rate", "lr"),)
LENGTHS = (
    Setting("warmup_steps", "warmup", "st", off=0, reads=False),
    Setting("max_steps", "duration", "st", reads=False),
    Setting("eval_steps", "eval_every", "st", reads=False),
    Setting("save_steps", "save_every", "st", reads=False),
    Setting("logging_steps", "log_every", "st", reads=False),
)
ADAM = (
    Setting("weight_decay", "weight_decay"),
    Setting("adam_beta1 adam_beta2", "betas", of="adamw adam"),
    Setting("adam_epsilon", "eps", of="adamw adam"),
    # The Trainer clips at 1.0 unless it is asked not to.
    Setting("max_grad_norm", "clip_norm", default=1.0, off=0.0),
)
PRECISION = (Setting("bf16 fp16 tf32", "precision", words={"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"}),)
SETTINGS = (
    *BATCH,
    *RATE,
    by_code("lr_scheduler_type", "schedule"),
    by_code("lr_scheduler_kwargs", "schedule"),
    *LENGTHS,
    by_code("num_train_epochs", "duration"),
    by_code("warmup_ratio", "warmup"),
    by_code("optim", "optimizer"),
    by_code("optim_args", "momentum"),
    *ADAM,
    *PRECISION,
    by_code("dataloader_drop_last", "drop_last"),
    by_code("accelerator_config.even_batches", "even_batches"),
)
SHAPES = {"linear": "linear", "cosine": "cosine", "one_minus_sqrt": "1-sqrt"}
HARMLESS = """
    average_tokens_across_devices label_smoothing* bf16_full_eval fp16_full_eval use_liger_kernel
    liger_kernel_config neftune* torch_empty_cache_steps include_num_input_tokens_seen
    include_tokens_per_second disable_tqdm per_device_eval_batch_size per_gpu_eval_batch_size
    include_for_metrics include_inputs_for_metrics batch_eval_metrics enable_jit_checkpoint
    metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
    full_determinism use_cpu no_cuda use_mps_device use_ipex jit_mode_eval dataloader_pin_memory
    dataloader_persistent_workers dataloader_prefetch_factor dataloader_num_workers
    dataloader_multiprocessing_context dataloader_in_order label_names train_sampling_strategy group_by_length
    length_column_name ddp_* skip_memory_metrics optim_target_modules optim_args overwrite_* past_index tpu_*
    fp16_opt_level fp16_backend half_precision_backend mp_parameters torchdynamo ray_scope sortish_sampler
    generation_* accelerator_config.* distributed_state.* _setup_devices parallelism_config.dp_replicate_size
    parallelism_config.dp_shard_size parallelism_config.*_backend parallelism_config.*_handler block_size
    max_train_samples low_cpu_mem_usage config_name streaming
"""
"""Settings of transformers 4.30 to 5.23, and of its example scripts."""
MATTERS = {"effective_batch": "per_gpu_train_batch_size split_batches"}
_MOMENTUM = re.compile(r"(?:^|,)\s*momentum\s*=\s*([\d.eE+-]+)")


def read_batch(page: SettingsPage, per_gpu: str) -> None:
    """Reads the samples per GPU, and the micro-batches of a step, both with a default."""
    inside = page.table("accelerator_config").table("gradient_accumulation_kwargs")
    is_inside = inside.has("num_steps")
    for key, field in ((per_gpu, "batch_per_gpu"), ("gradient_accumulation_steps", "accumulation")):
        if field == "accumulation" and is_inside:
            if (page.whole(key, default=1) or 1) > 1:
                page.ask(field, f"the Trainer refuses {key} beside num_steps of accelerator_config", key)
            inside.whole("num_steps", field)
            continue
        default = DEFAULTS.get(key, 1)
        if not page.has(key):
            page.note_assumed(field, f"{page.name(key)} is not in the file: {default}, the tool's default")
        page.whole(key, field, default=default)
    if page.flag("auto_find_batch_size"):
        page.note(
            "auto_find_batch_size may lower the batch during the run; the plan is for the batch in the file"
        )


def read_loader(page: SettingsPage) -> None:
    """Reads how Accelerate deals out batches: `split_batches` counts a batch over all processes."""
    config, fields, key = page.table("accelerator_config"), page.reading.fields, "per_device_train_batch_size"
    if page.flag("dataloader_drop_last"):
        page.give("drop_last", True, "dataloader_drop_last")
    if config.has("even_batches") and not config.flag("even_batches"):
        page.give("even_batches", False, "accelerator_config.even_batches")
    if config.flag("split_batches") and type(fields.get("batch_per_gpu")) is int:
        of_all = page.reading.drop("batch_per_gpu")
        page.give("effective_batch", of_all * (fields.get("accumulation") or 1), key)
        page.note(
            f"accelerator_config.split_batches: the {of_all} of {key} are of all processes together; with "
            "what is planned, a batch of each process, set it to false"
        )


def read_parallel(page: SettingsPage) -> None:
    """Reads the GPUs of a replica from older arguments, and Accelerate's and DeepSpeed's inside."""
    page.read_parallel("tp_size")
    page.table("parallelism_config").read_parallel("tp_size", "cp_size", "sp_size")
    page.table("deepspeed").read_parallel("tensor_parallel.autotp_size", "sequence_parallel_size")


def read_intervals(page: SettingsPage) -> None:
    """Reads the intervals in steps; a number below 1 is a share of the run, at any batch."""
    for name in ("eval", "save", "logging"):
        key = f"{name}_steps"
        if isinstance(value := page.raw(key), Unknown):  # no plan needs it
            page.note(f"{page.name(key)} {value.why or 'is computed'}: not planned")
            continue
        if (steps := page.number(key) or 0) >= 1 and steps == int(steps):
            page.give(f"{name.removesuffix('ging')}_every", length(steps, "st"), key)


def read_lengths(page: SettingsPage, epochs: str, default_epochs: int | None) -> None:
    """Reads the run and its warmup: steps win over epochs and over a ratio, and below 1 are a share."""
    steps, many = page.whole("max_steps"), page.number(epochs, default=default_epochs)
    if steps is not None and steps > 0:
        page.give("duration", length(steps, "st"), "max_steps")
    elif many is not None:
        page.give("duration", length(many, "ep"), epochs)
        if not page.has(epochs):
            text = f"{page.name(epochs)} is not in the file: {default_epochs}, the tool's default"
            page.note_assumed("duration", text)
    warmup, ratio = page.number("warmup_steps"), page.number("warmup_ratio")
    if warmup:
        page.give("warmup", length(int(warmup), "st") if warmup >= 1 else share(warmup), "warmup_steps")
    elif ratio:
        page.give("warmup", share(ratio), "warmup_ratio")
    page.name_absent(warmup="warmup_steps")


def note_older_steps(page: SettingsPage) -> None:
    """Notes other steps up to transformers 4.51, where a rest of micro-batches made none."""

    def note(run: Joined) -> None:
        fields, run_of = run.fields, epochs_of(run.fields)
        micro, parts, gpus = (fields.get(name) for name in ("micro_batch", "accumulation", "gpus"))
        if run_of is None or not (micro and parts and gpus):
            return
        (epochs, rows), samples = run_of, micro * (gpus // (fields.get("model_parallel") or 1))
        passes = rows // samples if fields.get("drop_last") else -(-rows // samples)
        now, before = (math.ceil(epochs * each) for each in (-(-passes // parts), max(passes // parts, 1)))
        if now != before:
            page.note(
                f"{count(now)} steps, as transformers 4.52 and later count them; up to 4.51 they are "
                f"{count(before)} (--set duration={before}st)"
            )

    page.reading.later.append(note)


def read_adam(page: SettingsPage, key: str, default: str) -> None:
    """Reads the optimizer and its numbers."""
    page.optimizer(key, "adafactor" if page.flag("adafactor") else page.word(key, default))
    if momentum := _MOMENTUM.search(page.word("optim_args", "") or ""):
        page.give("momentum", float(momentum[1]), "optim_args")
    read_settings(page, ADAM)
    if page.reading.fields.get("optimizer") == "adamw":
        page.give("decay", "lr_multiplied", key)


def read_torch_schedule(page: SettingsPage, call: SettingsPage, kind: str) -> None:
    """Reads a scheduler of torch as a Schedule: made with literals, stepped once an optimizer step."""
    from isobatch import schedules

    if kind == "OneCycleLR":
        call.number("max_lr", "lr")
        if call.raw("cycle_momentum") is not False:
            page.note("OneCycleLR also moves the momentum (cycle_momentum), and no plan does")
    arguments = {key: call.raw(key) for key in call.settings if key not in ("optimizer", "verbose")}
    unknown = [value for value in arguments.values() if isinstance(value, Unknown)]
    make = getattr(schedules.torch, kind, None)
    if make is None or unknown or arguments.pop("last_epoch", -1) != -1:
        why = f", with an argument that {unknown[0].why}," if unknown else ""
        page.unsupported(call.inside.rstrip("."), f"the scheduler {kind}{why}")
        return

    def schedule(fields: Mapping[str, Any]) -> Schedule | None:
        try:
            return make(fields["lr"], **arguments) if "lr" in fields else None
        except TypeError as error:
            raise InputError(str(error)) from None

    try:
        page.derive("schedule", schedule, kind)
    except InputError as error:
        page.unsupported(call.inside.rstrip("."), f"the scheduler {kind} ({error})")


def read_schedule(page: SettingsPage, key: str, default: str) -> None:
    """Reads a scheduler of transformers as a recipe's schedule."""
    name, kwargs = (page.word(key, default) or default).lower(), page.table("lr_scheduler_kwargs")
    if name in ("constant", "constant_with_warmup"):
        page.give("schedule", "constant", key)
        if name == "constant" and page.reading.fields.pop("warmup", None):
            text = "lr_scheduler_type constant ignores the warmup; constant_with_warmup does not"
            page.note_assumed("schedule", text)
    elif name == "linear":
        page.give("schedule", "linear", key)
    elif name in ("cosine", "cosine_with_min_lr"):
        if kwargs.number("num_cycles", default=0.5) != 0.5:
            page.unsupported("lr_scheduler_kwargs", "a cosine with num_cycles other than 0.5")
        page.give("schedule", "cosine", key)
        if (rate := kwargs.number("min_lr_rate")) is not None:
            page.times_lr("min_lr", rate, "lr_scheduler_kwargs")
        else:
            kwargs.number("min_lr", "min_lr")
    elif name == "polynomial":
        page.give("schedule", f"polynomial(power={kwargs.number('power', default=1.0)!r})", key)
        kwargs.number("lr_end", "min_lr", default=1e-7)
    elif name == "inverse_sqrt":
        over = kwargs.whole("timescale")
        page.give("schedule", f"inverse_sqrt(timescale={over}st)" if over else "inverse_sqrt", key)
    elif name in ("warmup_stable_decay", "wsd"):
        shape = {name: shape for shape, name in SHAPES.items()}.get(kwargs.word("decay_type", "cosine") or "")
        decay, ratio = kwargs.whole("num_decay_steps"), kwargs.number("min_lr_ratio")
        if shape is None or not decay or kwargs.word("warmup_type", "linear") != "linear":
            page.unsupported(key, "this warmup_stable_decay")
            return
        page.give("schedule", f"wsd(decay={decay}st, shape={shape})", key)
        if ratio:
            page.times_lr("min_lr", ratio, "lr_scheduler_kwargs")
            page.ask("schedule", "its warmup starts at the minimum", key)
    elif name == "cosine_with_restarts" and kwargs.number("num_cycles", default=1) == 1:
        page.give("schedule", "cosine", key)
    else:
        page.unsupported(key, f"the scheduler {name!r}")


def _best_model(case: Case) -> Iterator[Issue]:
    """Finds checkpoints saved without an evaluation, refused under load_best_model_at_end."""
    if not case.at("load_best_model_at_end"):
        return
    evaluated = case.at("eval_strategy") or case.at("evaluation_strategy") or "no"
    saved = case.at("save_strategy") or "steps"
    every, each = number(case.at("save_steps") or 500), number(case.at("eval_steps"))
    each = each or number(case.at("logging_steps") or 500)
    if saved == "best" or (saved == evaluated and (saved != "steps" or not each or every % each == 0)):
        return
    text, change = f"save_strategy {saved}, eval_strategy {evaluated}", f"eval_strategy: {saved}"
    if saved == evaluated:
        text = f"save_steps {every:g} is not a multiple of eval_steps {each:g}"
        change = f"save_steps: {max(1, round(every / each)) * each:g}"
    cause = "load_best_model_at_end loads only what was evaluated when it was saved"
    yield Issue.stop(text, cause, "transformers, training_args.py: load_best_model_at_end", change)


def undivided_loader(batch: object, key: str, replicas: int) -> Iterator[Issue]:
    """Finds a batch of all processes, as under `split_batches`, not divided by their number."""
    if type(batch) is int and replicas and batch % replicas:
        whole = max(1, round(batch / replicas)) * replicas
        yield Issue.stop(
            f"{batch} samples under split_batches are not a multiple of {replicas} processes",
            f"{key} counts the samples of all processes, and each takes as many",
            "accelerate, data_loader.py: BatchSamplerShard",
            f"{key}: {whole}, or split_batches: false and the batch of one process",
        )


def _without_effect(case: Case) -> Iterator[Issue]:
    """Finds settings overruled by another one."""
    # A checkpoint's max_steps is what the Trainer counted, also where its arguments say epochs.
    steps = 0.0 if case.reading.tool == "checkpoint" else number(case.at("max_steps"))
    ratio, source = case.at("warmup_ratio"), "transformers, training_args.py: max_steps"
    for epochs in ("num_train_epochs", "num_epochs"):
        if steps > 0 and case.at(epochs) is not None:
            text = f"{epochs} {case.at(epochs)} has no effect"
            yield Issue.note(text, "max_steps wins over it", source, f"remove {epochs}")
    if ratio and number(case.at("warmup_steps")) > 0:
        yield Issue(
            f"warmup_ratio {ratio} has no effect",
            "warmup_steps wins over it",
            "transformers 4, training_args.py: get_warmup_steps",
            "remove warmup_ratio",
        )
    if ratio and case.reading.tool in ("transformers", "trl"):
        yield Issue.stop(
            "transformers from 5.15 on has no warmup_ratio",
            "TrainingArguments refuses it as an unexpected keyword, its parser as an unused argument; from "
            "5.0 on a warmup_steps below 1 is the ratio",
            "transformers 5.14 and 5.15, training_args.py; measured on 5.24",
            f"warmup_steps: {ratio}, or transformers<5.15",
            "warmup",
        )
    if 0 < number(case.at("warmup_steps")) < 1 and case.reading.tool in ("transformers", "trl"):
        yield Issue.note(
            f"warmup_steps {case.at('warmup_steps')} is no warmup before transformers 5: less than one step",
            "a number below 1 is a share of the run from 5.0 on; transformers 4 has warmup_ratio for it",
            "transformers 4, training_args.py: get_warmup_steps",
            f"transformers>=5, or warmup_ratio: {case.at('warmup_steps')} under transformers 4",
        )
    if (evaluated := case.at("evaluation_strategy")) and case.reading.tool in ("transformers", "trl"):
        yield Issue.stop(
            "transformers 5 has no evaluation_strategy",
            "TrainingArguments refuses it as an unexpected keyword, its parser as an unused argument",
            "transformers, training_args.py; measured on 5.24",
            f"eval_strategy: {evaluated}",
        )
    if case.at("lr_scheduler_type") == "constant" and (ratio or case.at("warmup_steps")):
        yield Issue(
            "the warmup has no effect",
            "the scheduler constant has none",
            "transformers, optimization.py: get_scheduler",
            "lr_scheduler_type: constant_with_warmup",
        )


UNDIVIDED = re.compile(r"(?<!modern)bert|electra|mpnet|t5|bart|pegasus|opus-mt|marian", re.IGNORECASE)
"""Models with a loss that ignores `num_items_in_batch`, by their usual names."""


def trainers_factor(replicas: int, accumulation: int, over_ranks: bool = True) -> int:
    """Returns transformers 5's factor on the gradient of a model without `num_items_in_batch` in its loss.

    The Trainer does not divide by the accumulation, and multiplies by the processes if it counts labels over
    all of them.
    """
    return accumulation * (replicas if over_ranks else 1)


def _undivided_loss(case: Case) -> Iterator[Issue]:
    """Finds a gradient multiplied by the Trainer; it is certain only if the file names such a model."""
    over_ranks = case.at("average_tokens_across_devices") is not False
    factor = trainers_factor(case.replicas, case.fields.get("accumulation") or 1, over_ranks)
    if factor < 2:
        return
    name = str(case.at("model_name_or_path") or "")
    certain = UNDIVIDED.search(name) is not None
    models = name if certain else "BERT, T5, BART and other models whose loss ignores num_items_in_batch"
    yield Issue(
        f"transformers 5 multiplies the gradient of {models} by {factor}",
        "their forward() takes **kwargs, so the Trainer hands it num_items_in_batch, multiplies by the "
        "processes and does not divide",
        "huggingface/transformers#47688; measured on 5.24: docs/same.md",
        "model.accepts_loss_kwargs = False before Trainer(...); not for models that divide (the causal ones "
        "of Llama, GPT-2)",
        Weight.CHANGES if certain else Weight.NOTE,
    )


def _loaded_otherwise(case: Case) -> Iterator[Issue]:
    """Finds numbers and words read otherwise by transformers' parser of JSON and YAML (1.1)."""
    for key, value in leaves(_as_loaded(case)).items():
        number = number_of(value) if isinstance(value, str) and key in case.reading.used else None
        if number is not None:
            yield Issue.stop(
                f"{key} {value} is a text there, and no number",
                "HfArgumentParser converts nothing, and its YAML takes a number with an exponent for a text "
                "unless it has a point and a sign",
                "transformers 5.24, hf_argparser.py: parse_yaml_file, parse_json_file; measured",
                f"{key}: {scalar_text(number)}",
            )
        elif isinstance(value, bool) and key.endswith("_strategy"):
            yield Issue.stop(
                f"{key} {case.at(key)} is {value} there",
                "HfArgumentParser's YAML is 1.1, in which no, off, yes and on are flags",
                "transformers 5.24, hf_argparser.py: parse_yaml_file; measured",
                f'{key}: "{case.at(key)}"',
            )


def _as_loaded(case: Case) -> Mapping[str, Any]:
    """Returns the settings of a JSON or YAML file as transformers' parser loads them."""
    suffix = Path(case.reading.file).suffix.lower()
    if suffix not in (".yaml", ".yml") or not Path(case.reading.file).is_file():
        return case.reading.settings if suffix == ".json" else {}
    import yaml

    try:
        loaded = yaml.safe_load(read_whole(case.reading.file))
    except yaml.YAMLError:  # a tag of Python's
        return {}
    return loaded if isinstance(loaded, Mapping) else {}


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the Trainer, and of tools built on it."""
    if case.reading.tool in ("transformers", "trl", "llama_factory", "ms_swift"):
        yield from _best_model(case)
    if case.reading.tool in ("transformers", "checkpoint"):
        yield from _undivided_loss(case)
    if case.reading.tool == "transformers":
        yield from _loaded_otherwise(case)
    if case.at("accelerator_config", "split_batches") in (True, "true"):
        batch = case.at("per_device_train_batch_size") or DEFAULTS["per_device_train_batch_size"]
        yield from undivided_loader(batch, "per_device_train_batch_size", case.replicas)
    yield from _without_effect(case)
    if case.at("max_grad_norm") is None:
        yield Issue.note(
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
        yield Issue.note(
            "before transformers 4.46 a step under accumulation is a mean of means: micro-batches with few "
            "tokens weigh more",
            f"{case.key('accumulation')} is {case.fields['accumulation']}, and older Trainers divide each "
            "micro-batch by its own tokens",
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
