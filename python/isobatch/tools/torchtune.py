"""torchtune's YAML recipes: an epoch has whole steps alone, at most `max_steps_per_epoch`."""

from collections.abc import Iterator, Mapping

from isobatch.errors import InputError
from isobatch.tools.map import Setting, by_code, read_settings, torch_settings, write_settings
from isobatch.tools.page import SettingsPage, length
from isobatch.tools.sheet import Job, Planned, SettingsSheet, command_file, curve, overrides
from isobatch.tools.tool import Case, Issue, Reader, Tool, Writer, inside, number
from isobatch.tools.transformers import trainer_rate

_COSINE = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
_BATCH = (
    Setting("batch_size", "batch_per_gpu"),
    Setting("gradient_accumulation_steps", "accumulation", default=1),
)
_OPTIMIZER = (by_code("optimizer._component_", "optimizer"), *torch_settings("optimizer"))
_CLIP = (Setting("clip_grad_norm", "clip_norm"),)
_REST = (
    Setting("run_val_every_n_steps", "eval_every", "st"),
    Setting("save_every_n_steps", "save_every", "st"),
    Setting("log_every_n_steps", "log_every", "st"),
    Setting("tokenizer.max_seq_len", "seq_len", writes=False),
    Setting("dtype", "precision", words={"bf16": "bf16", "fp32": "fp32"}, writes=False),
)
_WARMUP = Setting("lr_scheduler.num_warmup_steps", "warmup", "st", writes=False)
_ROLLOUT = Setting("ppo_batch_size", "effective_batch", writes=False)
SETTINGS = (
    *_BATCH,
    *_OPTIMIZER,
    by_code("lr_scheduler._component_", "schedule"),
    _WARMUP,
    by_code("epochs", "duration"),
    by_code("max_steps_per_epoch", "duration"),
    *(*_CLIP, *_REST, _ROLLOUT),
)
_MODEL = """_component_ attn_dropout base_model_path embed_dim intermediate_dim max_seq_len norm_eps
    num_classes num_heads num_kv_heads num_layers vocab_size lora_attn_modules"""
_OWN_MODEL = """apply_lora_to_mlp apply_lora_to_output decoder_trainable encoder_trainable fusion_trainable
    image_size lora_alpha lora_dropout lora_rank quantize_base use_dora"""
_DATASET = """_component_ add_eos column data_files max_seq_len name packed_on_the_fly partition source split
    subset train_on_input"""
_TABLES = (
    ("dataloader", "collate_fn num_workers packed pin_memory prefetch_factor shuffle"),
    ("dataset", _DATASET),
    ("model", f"{_MODEL} {_OWN_MODEL}"),
    *((table, _MODEL) for table in ("policy_model", "reward_and_value_model", "teacher_model")),
)
_IN_TABLES = " ".join(inside(*table) for table in _TABLES)
_HARMLESS = f"""
    *checkpointer.* ac_* apply_chat_template batch_size_val collate_fn cudnn_* custom_sharded_layers device
    early_exit_loss.* enable_* forward_batch_size fake_quant_after_n_steps fp8_* gamma generate* kd_loss.*
    kd_ratio kl_coeff limit lmbda loss* low_cpu_ram max_generated_tokens max_seq_length
    memory_efficient_fsdp_wrap metric_logger.* min_response_length name penalise_no_eos ref_*
    resize_token_embeddings reward_* shuffle stop_token_ids tasks temperature tensor_parallel_plan.*
    tensor_parallel_plan top_k value_* whiten_rewards context_parallel_rotate_method optimizer_in_bwd
    dataloader dataloader.parallel_method optimizer.fused dataset.column_map.input dataset.column_map.output
    {_IN_TABLES}
"""
"""Of torchtune 0.3 to 0.6, and of its last sources."""
_MATTERS = {"effective_batch": "grpo_samples", "duration": "num_steps ppo_epochs"}


def read(page: SettingsPage) -> None:
    """Reads a recipe of fine-tuning, distillation, DPO or PPO; those without an optimizer do not train."""
    page = page.interpolated()
    if not page.has("optimizer"):
        raise InputError(
            "has no optimizer: of torchtune's recipes those are read that train, but for its asynchronous "
            "GRPO",
            file=page.reading.file,
        )
    page.give("convention", "exact", "")
    page.give("drop_last", True, "")
    if page.has("ppo_batch_size"):
        _ppo(page)
    else:
        read_settings(page, _BATCH)
        epochs, most = page.whole("epochs"), page.whole("max_steps_per_epoch")
        page.name_absent(duration="epochs")
        if epochs and most and most > 0:
            page.give("duration", length(epochs * most, "st"), "max_steps_per_epoch")
            page.note_assumed(
                "duration",
                f"max_steps_per_epoch {most} × epochs {epochs}: planned as if no epoch has fewer steps (else "
                f"--set duration={epochs}ep)",
            )
        elif epochs:
            page.give("duration", length(epochs, "ep"), "epochs")
    parallel = page.read_parallel("tensor_parallel_dim", "context_parallel_dim")
    shards = page.whole("data_parallel_shard_dim", default=-1) or -1
    copies = page.whole("data_parallel_replicate_dim", default=1)
    if copies and shards > 0:
        page.give("gpus", shards * copies * parallel, "data_parallel_shard_dim")
    name = (page.word("optimizer._component_") or "").rpartition(".")[2]
    page.optimizer("optimizer._component_", name or None)
    page.table("optimizer").number("lr", "lr")
    page.table("optimizer").torch_optimizer()
    if page.reading.fields.get("optimizer") == "adamw":
        page.give("decay", "lr_multiplied", "optimizer._component_")
    if str(page.raw("clip_grad_norm")) != "inf":  # which only logs the norm
        read_settings(page, _CLIP)
    _schedule(page)
    if "lora" in (page.word("model._component_") or "").rpartition(".")[2]:
        page.give("adapter", "lora", "model._component_")
    read_settings(page, _REST)
    if page.table("dataset").flag("packed"):
        page.note("dataset.packed: dataset_size is the number of packed sequences")


def _ppo(page: SettingsPage) -> None:
    """Reads PPO, on one device: a step has `ppo_batch_size` trajectories of a rollout of `batch_size`."""
    read_settings(page, (_ROLLOUT, _BATCH[1]))
    step, rollout = page.whole(_ROLLOUT.key), page.whole("batch_size")
    page.give("gpus", 1, "")
    samples, repeats = page.whole("num_steps"), page.whole("ppo_epochs", default=1)
    if step and rollout and samples and repeats:
        page.give("duration", length(samples // rollout * repeats * (rollout // step), "st"), "num_steps")
    page.note(
        "a sample is a trajectory: ppo_batch_size of batch_size in a step; torchtune's PPO trains on one "
        "device"
    )


def _schedule(page: SettingsPage) -> None:
    """Reads its cosine, falling to 0 over the run; without a scheduler the learning rate stays."""
    name, own = page.word("lr_scheduler._component_"), page.table("lr_scheduler")
    read_settings(page, (_WARMUP,))
    cycles = own.number("num_cycles", default=0.5)
    if name is None:
        return page.give("schedule", "constant", "lr_scheduler")
    if name.rpartition(".")[2] != _COSINE.rpartition(".")[2] or cycles != 0.5:
        return page.unsupported("lr_scheduler", f"the scheduler {name} with these arguments")
    return page.give("schedule", "cosine", "lr_scheduler._component_")


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes a plan's part of a recipe, unless its file refuses the plan's batch or accumulation."""
    if "ppo_batch_size" in job.own:
        raise InputError(
            "a PPO recipe is read alone: set ppo_batch_size, batch_size and optimizer.lr in the file yourself"
        )
    sheet, line, accumulation = SettingsSheet(), curve(plan), plan.accumulation
    if job.own.get("optimizer_in_bwd") is True and accumulation > 1:
        raise InputError(
            f"optimizer_in_bwd needs gradient_accumulation_steps 1, and this plan has {accumulation}: set "
            "optimizer_in_bwd to false in the file, which takes memory for the gradients, or plan with more "
            "GPUs or a larger micro-batch"
        )
    is_cosine = line.kind == "cosine" and not line.bottom
    sheet.settings = {
        **write_settings(plan, _BATCH),
        **write_settings(plan, _OPTIMIZER),
        "lr_scheduler": {"_component_": _COSINE, "num_warmup_steps": line.warmup} if is_cosine else None,
        **_epochs(plan, job, sheet),
        # The file's own norm goes with a null.
        **(write_settings(plan, _CLIP) or {"clip_grad_norm": None}),
        **write_settings(plan, _REST),
    }
    if plan.recipe.optimizer != "adamw":
        sheet.note(f"optimizer._component_ is not set: name the class of {plan.recipe.optimizer}")
    if miss := line.misses(trainer_rate(line, "cosine" if is_cosine else "constant")):
        sheet.note(f"lr_scheduler {miss}: torchtune has a cosine to 0 and no other")
    return sheet


def _epochs(plan: Planned, job: Job, sheet: SettingsSheet) -> dict[str, int]:
    """Returns the plan's steps as the file's epochs, if they divide."""
    each, epochs, total = plan.steps_per_epoch, job.own.get("epochs") or 1, curve(plan).total
    if each and total % each == 0:
        return {"epochs": total // each, "max_steps_per_epoch": each}
    if type(epochs) is not int or total % epochs:
        epochs = 1
    each = total // epochs
    sheet.note(
        f"an epoch must have {each} steps or more, {each * plan.effective_batch:,} samples: torchtune counts "
        "no steps over several"
    )
    return {"epochs": epochs, "max_steps_per_epoch": each}


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, _job: Job) -> str:
    """Writes the overrides after torchtune's command."""
    words = [["tune", "run", "RECIPE"], ["--config", "CONFIG"], *overrides(sheet.settings)]
    return command_file(top, remarks, words)


def check(case: Case) -> Iterator[Issue]:
    """Finds settings refused by torchtune when it starts."""
    start = "torchtune, recipes/full_finetune_distributed.py: __init__"
    for key, most in (("gradient_accumulation_steps", 1), ("clip_grad_norm", 0)):
        if case.at("optimizer_in_bwd") is True and number(case.at(key)) > most:
            text = f"optimizer_in_bwd with {key} {case.at(key)}"
            yield Issue.stop(
                text, "each gradient is used and freed in the backward pass", start, "optimizer_in_bwd: false"
            )
    if number(case.at("tensor_parallel_dim")) > 1 and case.at("tensor_parallel_plan") is None:
        text = "tensor_parallel_dim without a tensor_parallel_plan"
        change = "tensor_parallel_plan: {_component_: ...}"
        yield Issue.stop(text, "the file does not say how the model is split", start, change)
    if case.at("dataset", "packed") is True and case.at("tokenizer", "max_seq_len") is None:
        text, change = "dataset.packed without tokenizer.max_seq_len", "tokenizer.max_seq_len: 4096"
        yield Issue.stop(
            text, "sequences are packed up to it", "torchtune, torchtune/datasets/_packed.py", change
        )
    shards = int(number(case.at("data_parallel_shard_dim")))
    copies = int(number(case.at("data_parallel_replicate_dim")) or 1)
    if shards > 0 and shards * copies != case.replicas:
        yield Issue.stop(
            f"data_parallel_shard_dim {shards} × data_parallel_replicate_dim {copies} is not {case.replicas} "
            "replicas",
            "the product of all dimensions is the number of GPUs",
            "torchtune, torchtune/training/_distributed.py: ParallelDims",
            "data_parallel_shard_dim: -1",
        )


TORCHTUNE = Tool(
    "torchtune",
    "torchtune",
    Reader("0.3 to 0.6", read, check, _HARMLESS, _MATTERS, tables="optimizer lr_scheduler dataset"),
    Writer(
        "0.3 to 0.6",
        "torchtune.yaml",
        ("yaml", "sh"),
        write,
        render,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="ema_decay precision seq_len drop_last even_batches name command image resume",
    ),
    settings=SETTINGS,
)
