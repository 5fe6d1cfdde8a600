"""Detects the tool of a file, by keys of its own."""

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from isobatch.errors import InputError, unknown
from isobatch.tools.installed import Installed, installed, plain
from isobatch.tools.page import value_at
from isobatch.tools.tool import Keys, Tool
from isobatch.tools.unread import as_recipe
from isobatch.words import few, nearest

TOOLS = {
    "transformers": Keys(
        "per_device_train_batch_size num_train_epochs lr_scheduler_type adam_beta1",
        common="gradient_accumulation_steps learning_rate output_dir warmup_ratio max_grad_norm optim",
    ),
    "checkpoint": Keys("global_step log_history trial_params is_world_process_zero"),
    "axolotl": Keys(
        "base_model sample_packing",
        common="micro_batch_size num_epochs sequence_len lr_scheduler gradient_accumulation_steps "
        "learning_rate optimizer adapter datasets",
    ),
    "llama_factory": Keys(
        "finetuning_type cutoff_len dataset_dir",
        common="stage template model_name_or_path",
        extends="transformers",
    ),
    "trl": Keys(
        "num_generations steps_per_generation generation_batch_size max_completion_length max_prompt_length "
        "dataset_text_field completion_only_loss assistant_only_loss packing_strategy padding_free use_vllm "
        "reward_funcs truncation_mode",
        common="packing max_length beta dataset_name model_name_or_path",
        extends="transformers",
    ),
    "ms_swift": Keys(
        "rlhf_type tuner_type train_type split_dataset_ratio acc_strategy attn_impl freeze_vit vit_lr "
        "aligner_lr add_version deepspeed_autotp_size ENV.NPROC_PER_NODE",
        common="model dataset torch_dtype lora_rank target_modules system",
        extends="trl",
    ),
    "accelerate": Keys(
        "compute_environment distributed_type main_training_function",
        common="num_machines num_processes mixed_precision machine_rank rdzv_backend",
    ),
    "deepspeed": Keys(
        "train_micro_batch_size_per_gpu zero_optimization steps_per_print wall_clock_breakdown "
        "scheduler.type optimizer.params",
        common="train_batch_size gradient_clipping fp16 bf16 gradient_accumulation_steps",
    ),
    "torchtitan": Keys(
        "training.local_batch_size training.num_tokens_per_microbatch_per_dp_rank job.dump_folder "
        "parallelism.data_parallel_shard_degree parallelism.tensor_parallel_degree model.flavor model_spec "
        "lr_scheduler.decay_ratio",
        common="training.batch_size training.global_batch_size training.seq_len training.steps "
        "lr_scheduler.warmup_steps",
    ),
    "torchtune": Keys(
        "optimizer._component_ model._component_ dataset._component_ checkpointer._component_ "
        "tokenizer._component_ loss._component_ lr_scheduler._component_ max_steps_per_epoch "
        "optimizer_in_bwd",
        common="batch_size epochs gradient_accumulation_steps clip_grad_norm enable_activation_checkpointing",
    ),
    "megatron": Keys(
        "train_iters train_samples lr_decay_style lr_warmup_fraction lr_warmup_iters lr_warmup_samples "
        "tensor_model_parallel_size pipeline_model_parallel_size clip_grad rampup_batch_size "
        "step_batch_size_schedule",
        common="global_batch_size micro_batch_size lr_decay_iters num_layers hidden_size seq_length",
    ),
    "lightning": Keys(
        "trainer.accumulate_grad_batches trainer.devices trainer.num_nodes data.class_path seed_everything",
        common="trainer.max_epochs trainer.max_steps trainer.strategy trainer.precision model.class_path",
    ),
    "verl": Keys(
        "actor_rollout_ref.actor.ppo_mini_batch_size actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu "
        "actor_rollout_ref.rollout.n actor_rollout_ref.actor.optim.lr actor_rollout_ref.model.path "
        "algorithm.adv_estimator",
        common="trainer.nnodes trainer.n_gpus_per_node trainer.total_epochs data.train_batch_size",
    ),
    "hyperpod": Keys("scale_config", common="instance_types elastic_policy display_name"),
    "torchrun": Keys(module="launchers"),
    "slurm": Keys(module="slurm"),
    "ray_train": Keys(module="launchers"),
    "kubeflow": Keys(module="launchers"),
    "skypilot": Keys(module="launchers"),
    "torchx": Keys(module="launchers"),
}
"""Every tool of isobatch; keys() adds those of other distributions.

A tool's record is in its file, under its name in capitals.
"""

_SPLITS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_ENOUGH = 5
"""Common keys that are evidence together."""

_FEW = 3
"""Keys of a tool's in an unreadable recipe for it to be taken for that tool's file."""


def tool_of(name: str) -> Tool:
    """Returns the record of a tool in `keys()`."""
    if name not in TOOLS:
        return _installed().tools[name]
    module = import_module(f"isobatch.tools.{TOOLS[name].module or name}")
    record: Tool = getattr(module, name.upper())
    return record


def _installed() -> Installed:
    return installed(frozenset(TOOLS))


_OTHER = (
    "; a run of any other tool is planned as a recipe, with --set (docs/tools.md: a tool that is not here)"
)
"""The way out without a reader."""

_WITHOUT_A_TRAINER = ("num_warmup_steps", "max_train_steps", "with_tracking")
"""Flags of transformers' *_no_trainer scripts: the others are as the Trainer's, and mean another loop."""


def keys() -> dict[str, Keys]:
    """Returns every tool with the keys of its files, other distributions' too."""
    return TOOLS | {name: tool.keys for name, tool in _installed().tools.items()}


def readers() -> list[str]:
    """Lists the tools with a reader."""
    return [name for name, known in keys().items() if known.own]


def writers() -> list[str]:
    """Lists the tools with a writer, as they are typed."""
    return [tool.name for tool in map(tool_of, keys()) if tool.writer is not None]


def reader(name: str) -> Tool:
    """Returns the tool of this name; raises InputError for none with a reader, or a faulty one."""
    if plain(name) not in readers():
        way_out = "" if nearest(name, readers()) else _OTHER
        fault = _installed().faults.get(plain(name))
        raise fault or InputError(f"{unknown('tool', name, readers())}{way_out}", field="tool")
    return tool_of(plain(name))


def writer(name: str) -> Tool:
    """Returns the tool of this name; raises InputError for none with a writer, or a faulty one."""
    tool = tool_of(plain(name)) if plain(name) in keys() else None
    if tool is not None and tool.writer is not None:
        return tool
    if tool is not None and tool.written_as:
        raise InputError(f"{name} is read, not written: use {tool.written_as}", field="tool")
    from isobatch.tools.platforms import PLATFORMS

    if plain(name) in PLATFORMS:
        raise InputError(
            f"{name} has a table of many counts, which isobatch counts prints (--to {name}, without -o)"
        )
    if plain(name) in _installed().faults:
        raise _installed().faults[plain(name)]
    if tool is not None:
        known = ", ".join(writers())
        raise InputError(f"{name} is a tool whose files are read, not written: plans are written for {known}")
    raise unknown("tool", name, writers())  # the user typed --to, not --tool


def detect(settings: Mapping[str, Any], file: str) -> str:
    """Detects the tool with most of a file's keys; raises InputError for isobatch's own, or no clear one."""
    refuse_own_files(settings, file)
    scores = _scores(settings)
    best = max(scores.values(), default=0)
    names = [name for name, score in scores.items() if score == best]
    if not names:
        raise no_tool_error(settings, file)
    if len(names) > 1:
        raise InputError(
            f"may be of {' or of '.join(names)}: say which with --tool (in Python: tool=)",
            file=file,
            field="tool",
        )
    return names[0]


def looks_like(settings: Mapping[str, Any]) -> str | None:
    """Returns the title of the tool with a file's names, as people write it; None without a clear one.

    >>> looks_like({"per_device_train_batch_size": 8, "num_train_epochs": 3, "lr_scheduler_type": "cosine"})
    'transformers TrainingArguments'
    >>> looks_like({"effective_batch": 256, "lr": 0.1})
    """
    try:
        name = detect(settings, "")
    except InputError:
        return None
    own, common = _present(settings, name)
    return tool_of(name).title if own + common >= _FEW else None


def refuse_slime(settings: Mapping[str, Any], file: str) -> None:
    """Refuses a script of slime or miles: beside Megatron's arguments, its batch has rules of its own."""
    rollout, batch = settings.get("rollout_batch_size"), settings.get("global_batch_size")
    if "num_rollout" not in settings and (rollout is None or batch is None):
        return
    each = settings.get("n_samples_per_prompt", 1)
    sizes = [int(str(size)) if str(size).isdecimal() else None for size in (rollout, each, batch)]
    groups, whole = str(sizes[1] or "N"), f"{sizes[0] * sizes[1]:,}" if sizes[0] and sizes[1] else "that"

    def size(key: str, default: int = 1) -> int:
        text = str(settings.get(key, default))
        return int(text) if text.isdecimal() else 1

    tensor = size("tensor_model_parallel_size")
    experts, pipeline = size("expert_model_parallel_size"), size("pipeline_model_parallel_size")
    fields = {
        "effective_batch": sizes[2] or "N",
        "lr": settings.get("lr", "LR"),
        "model_parallel": math.prod(map(size, _SPLITS)),
        "expert_parallel": experts * size("expert_tensor_parallel_size", tensor) * pipeline
        if experts > 1
        else 1,
    }
    fields_typed = " ".join(f"--set {name}={value}" for name, value in fields.items() if value != 1)
    raise InputError(
        "is a script of slime (or miles), which is not read: a batch has whole groups of "
        f"--n-samples-per-prompt completions, --rollout-batch-size × --n-samples-per-prompt (= {whole}) "
        "must be a multiple of it, and --save-interval counts rollouts. Plan it as a recipe, and take a "
        f"batch that divides the rollout:\n  isobatch plan {fields_typed} --gpus N --batch-multiple {groups}",
        file=file,
    )


def refuse_own_files(settings: Mapping[str, Any], file: str) -> None:
    """Refuses a recipe or a saved plan in the place of another tool's file."""
    if is_plan(settings):
        raise InputError(
            f"is a plan of isobatch, not another tool's file: isobatch plan {file} --to TOOL writes it for a "
            f"tool, isobatch replan {file} --at-step N moves its run",
            file=file,
        )
    if is_recipe(settings):
        raise InputError(
            f"is a recipe of isobatch, not another tool's file: isobatch plan {file} --gpus N (in Python: "
            "Recipe.load)",
            file=file,
        )


def refuse_other_tools(fields: Mapping[str, Any], file: str) -> None:
    """Refuses a plan, another tool's configuration or settings in tables in the place of a recipe."""
    if is_plan(fields):
        todo = "isobatch replan moves the run that follows it (in Python: Plan.load and replan)"
        raise InputError(f"is a plan, not a recipe: {todo}", file=file)
    title = looks_like(fields)
    if title is not None:
        todo = "read it with --from (in Python: Recipe.read)"
        raise InputError(f"is not a recipe, but a configuration of {title}: {todo}", file=file)
    tables = [name for name, value in fields.items() if isinstance(value, Mapping) and name != "schedule"]
    if tables:
        lines = "".join(f"\n  {line}" for line in as_recipe(fields))
        raise InputError(
            f"is not a recipe: its settings are in tables ({few(tables)}), a recipe's fields are at the top. "
            "A tool's file is read with --from (in Python: Recipe.read). A recipe of this one would have, "
            f"where right:{lines}",
            file=file,
        )


def _scores(settings: Mapping[str, Any]) -> dict[str, int]:
    """Counts the keys of each tool in a file, for tools with a key of their own there, or many."""
    scores = {}
    is_without = any(key in settings for key in _WITHOUT_A_TRAINER)
    for name in readers():
        if is_without and name in ("transformers", "trl"):
            continue
        own, common = _present(settings, name)
        extends = keys()[name].extends
        base_own = _present(settings, extends)[0] if extends else 0
        if extends and (not base_own or own == base_own):
            continue  # a file of the extending tool has keys of both
        if own or common >= _ENOUGH:
            scores[name] = own + common
    return scores


def _present(settings: Mapping[str, Any], name: str) -> tuple[int, int]:
    """Counts a file's keys of a tool: the tool's own ones, and the common ones."""
    known = keys()[name]
    own, common = (
        sum(value_at(settings, key) is not None for key in text.split()) for text in (known.own, known.common)
    )
    if known.extends:
        first, second = _present(settings, known.extends)
        own, common = own + first, common + second
    return own, common


def no_tool_error(settings: Mapping[str, Any], file: str) -> InputError:
    """Returns the error for a file of no tool, with its possible meaning."""
    near = [name for name in readers() if any(_present(settings, name))]
    hint = f" (some names are also of {', '.join(near)})" if near else ""
    lines = "\n".join(f"  --set {line}" for line in as_recipe(settings))
    words = [word for value in settings.values() for word in (value if isinstance(value, list) else [value])]
    script = next((word for word in words if isinstance(word, str) and word.endswith(".py")), None)
    also = (
        f"- or name the script too, where it has the settings: --from {file} --from {script}\n"
        if script
        else ""
    )
    faults = "".join(f"\n- {fault.message}" for fault in _installed().faults.values())
    return InputError(
        f"no tool is recognized by these settings{hint}. Either\n"
        f"- name its tool with --tool (in Python: tool=), one of {', '.join(readers())}\n"
        f"{also}- or have the training command itself read, into a recipe: isobatch doctor --gpus N -o "
        "recipe.toml -- COMMAND\n"
        "- or give the run as a recipe, in a file or to isobatch plan instead of this file, by those of "
        "these that are right (in Python: ib.Recipe(...)):\n"
        f"{lines}{faults}",
        file=file,
        field="tool",
    )


def is_plan(settings: Mapping[str, Any]) -> bool:
    """Tells whether these are a saved plan's settings.

    >>> is_plan({"schema": "isobatch.plan/1"}), is_plan({"effective_batch": 256})
    (True, False)
    """
    return str(settings.get("schema")).startswith("isobatch.plan/")


def is_recipe(settings: Mapping[str, Any]) -> bool:
    """Tells whether these are a recipe's fields.

    >>> is_recipe({"effective_batch": 256}), is_recipe({"schema": "isobatch.plan/1"}), is_recipe({"lr": 0.1})
    (True, False, False)
    """
    return "schema" not in settings and (
        "effective_batch" in settings or {"batch_per_gpu", "lr"} <= settings.keys()
    )
