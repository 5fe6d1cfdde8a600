"""axolotl's YAML: names of its own for arguments of transformers' Trainer."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from isobatch.tools import trainer, trl
from isobatch.tools.map import Setting, by_code, read_settings
from isobatch.tools.page import Joined, SettingsPage, epochs_of, length, steps_of
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import STAYS, Case, Issue, Reader, Tool
from isobatch.tools.transformers import WRITER
from isobatch.tools.transformers import write as write_trainer
from isobatch.words import count, share

_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "lr_scheduler_type": "lr_scheduler",
    "optim": "optimizer",
    "num_train_epochs": "num_epochs",
}
"""Arguments of the Trainer that have another name."""
_SAMPLE = Setting("sequence_len", "seq_len", writes=False)
SETTINGS = (
    *(replace(row, key=_NAMES.get(row.key, row.key)) for row in trainer.SETTINGS),
    _SAMPLE,
    by_code("batch_size", "accumulation"),
    by_code("evals_per_epoch", "eval_every"),
    by_code("saves_per_epoch", "save_every"),
    by_code("cosine_min_lr_ratio", "min_lr"),
    by_code("cosine_constant_lr_ratio", "schedule"),
)
_OF_GROUPS = ("grpo", "gdpo", "ebft")
"""Values of `rl` with several completions of a prompt."""
_HARMLESS = """
    accelerator_config.* activation_offloading adam_beta3 adam_epsilon2 added_tokens_overrides api_key
    auto_resume_from_checkpoints backend base_url batch_flattening bench_* bfloat16 bf16 bnb_config_kwargs*
    center_rewards_coefficient chunked_cross_entropy* cls_model_config cpo_alpha curriculum_sampling
    cut_cross_entropy dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor ddp*
    default_system_message dense_mixer device device_map diffusion* dion_momentum dion_rank_fraction
    dion_rank_multiple_of dp_replicate_size dp_shard_size dpo_* dsv4_* dynamic_checkpoint* eaft_*
    eager_attention early_stopping_patience ebft* embedding_lr_scale embeddings_skip_upcast eos_* eot_tokens
    eps excess_length_strategy experimental_skip_move_to_device expert_* expert_parallel_backend
    expert_parallel_fallback_on_unsupported expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes
    expert_parallel_size expert_parallel_token_capacity experts_implementation fix_untrained_tokens flash_*
    flex_* float16 float32 fp32_* fp8* fused_attn_kernel future_timeout gc_* gemma4_* generat* gptq
    gpu_memory_limit gradio_* greater_is_better grokfast_* group_by_length hatchery* heads_k_stride image_*
    importance_weighting include_* is_*_model is_preprocess kd_* kto_* large_head_attention layer_offloading
    liger_* lisa_* llama4_* llmcompressor* lm_eval_* loss_* low_cpu_mem_usage mask_token_* max_mask_ratio
    max_memory* max_packed_sequence_len max_prompt_len max_sample_tokens mean_resizing_embeddings merge_*
    metric_for_best_model min_mask_ratio min_sample_len moe_* mora* multipack_real_batches neftune* nemo_gym_*
    noise_schedule noisy_embedding_alpha nonexpert_quantization num_dataset_shards_to_save num_diffusion_steps
    num_generation_samples num_labels num_samples nvfp4_* optim_target_modules orpo_alpha otel_*
    overrides_of_model_* pad_to_* pipeline plugins pose_* precompute_ref_* pretrain* process_reward_model
    processor_* push_dataset_* qat* qgalore_cos_threshold qgalore_gamma_proj qgalore_proj_bits
    qgalore_proj_group_size qgalore_proj_quant qgalore_proj_type qgalore_queue_size qgalore_rank qgalore_scale
    qgalore_update_proj_gap qlora_* ray_run_name recipe reinit_weights resize_token_* resources_per_worker*
    revision_of_model reward_* ring_attn_func rl rl_beta role_boundaries rope_* rpo_alpha s2_attention
    sage_attention sample_* scaling_softmax* sdp* selective_checkpointing* shrink_embeddings shuffle_*
    simpo_gamma skip_prepare_dataset special_tokens* spectrum_* streaming* strict tiled_mlp* tokens
    torch_empty_cache_steps total_num_tokens total_supervised_tokens train_mlp train_unembed train_on_inputs
    trainer_cls type_of_model unfrozen_parameters use_* vllm* world_size xformers_*
    average_tokens_across_devices trl.* trl.num_iterations
"""
_MATTERS = {
    STAYS: "embedding_lr loraplus_lr_embedding lr_groups* dion_lr",
    "schedule": "lr_quadratic_warmup jagged_restart_* relora* lr_div_factor",
}


def read(page: SettingsPage) -> None:
    """Reads axolotl's names for arguments of the Trainer."""
    _batch(page)
    trainer.read_loader(page)
    page.read_parallel(
        page.first("context_parallel_size", "sequence_parallel_degree"), "tensor_parallel_size"
    )
    trainer.read_parallel(page)
    page.read_experts(
        "expert_parallel_size",
        page.first("context_parallel_size", "sequence_parallel_degree"),
        "tensor_parallel_size",
    )
    read_settings(page, trainer.RATE)
    trainer.read_lengths(page, "num_epochs", 1)
    _steps(page)
    _warmup(page)
    trainer.read_intervals(page)
    for key, field in (("evals_per_epoch", "eval_every"), ("saves_per_epoch", "save_every")):
        if (many := page.number(key)) and many > 0:
            page.give(field, length(1 / many, "ep"), key)
    page.give("convention", "transformers", "")
    _schedule(page)
    trainer.read_adam(page, "optimizer", "adamw_torch")
    page.lora("adapter")
    read_settings(page, (_SAMPLE, *trainer.PRECISION))
    if page.flag("sample_packing"):
        page.note(
            "sample_packing: dataset_size is the number of packed sequences, which axolotl prints when it "
            "starts"
        )


def _batch(page: SettingsPage) -> None:
    """Reads the batch; without an accumulation, `batch_size` is the batch of one GPU's step."""
    micro = page.whole("micro_batch_size")
    of_step = None if page.has("gradient_accumulation_steps") else page.whole("batch_size")
    if of_step and micro:
        page.give("batch_per_gpu", micro, "micro_batch_size")
        page.give("accumulation", max(1, of_step // micro), "batch_size")
    else:
        trainer.read_batch(page, "micro_batch_size")
    workers = page.whole("ray_num_workers")
    if workers and page.flag("use_ray"):
        page.give("gpus", workers, "ray_num_workers")
    group, kind = page.whole("trl.num_generations"), page.word("rl", "") or ""
    if group and kind.lower() in _OF_GROUPS:
        page.reading.multiple = group
        page.note(f"trl.num_generations {group}: a batch must be a multiple of it (--batch-multiple {group})")


def _steps(page: SettingsPage) -> None:
    """Counts the steps as axolotl 0.12 and later: rounded once over the run; packed, down by the epoch."""
    if (page.word("rl", "") or "").lower() in _OF_GROUPS:
        trl.count_rollouts(page.table("trl"), page.whole("trl.num_generations", default=8) or 1)
        return
    is_packed, drops = page.flag("sample_packing"), page.flag("dataloader_drop_last")

    def steps(run: Joined) -> None:
        if (run_of := epochs_of(run.fields)) is None:
            return
        (epochs, rows), batch = run_of, run.fields["effective_batch"]
        total = math.ceil(rows * epochs / batch)
        if is_packed:
            total = int(max(1, rows // batch) * epochs) - (math.ceil(epochs) if drops else 0)
        older = math.ceil(epochs * -(-rows // batch))
        run.fields["duration"] = length(max(1, total) * batch, "sp")
        if total != older and not is_packed:
            text = (
                f"{count(total)} steps, as axolotl 0.12 and later count them; before they are {count(older)}"
            )
            page.note(f"{text} (--set duration={older}st)")

    page.reading.later.append(steps)


def _warmup(page: SettingsPage) -> None:
    """Reads the warmup: rounded down, two steps for one; without any 3 % of the steps, at most 100."""
    if page.reading.fields.get("warmup") == "1st":
        page.give("warmup", "2st", "warmup_steps")
    if page.number("warmup_steps") is not None:
        return
    ratio = page.number("warmup_ratio")

    def warmup(fields: Mapping[str, Any]) -> str | None:
        steps = steps_of(fields)
        if steps is None:
            return None if ratio is None else share(ratio)
        whole = min(int(0.03 * steps), 100) if ratio is None else int(ratio * steps)
        return length(2 if whole == 1 else max(0, whole), "st")

    page.derive("warmup", warmup, "warmup_steps" if ratio is None else "warmup_ratio")


def _schedule(page: SettingsPage) -> None:
    """Reads the Trainer's schedulers, and a cosine with an end of its own."""
    name = (page.word("lr_scheduler", "cosine") or "cosine").lower()
    ratio, level = page.number("cosine_min_lr_ratio"), page.number("cosine_constant_lr_ratio")
    trainer.read_schedule(page, "lr_scheduler", "cosine")
    if name == "cosine" and ratio:
        page.times_lr("min_lr", ratio, "cosine_min_lr_ratio")
        if level:

            def until(fields: Mapping[str, Any]) -> str:
                """Returns the schedule; whole steps are rounded down."""
                steps = steps_of(fields)
                return f"cosine(until={share(level) if steps is None else length(int(steps * level), 'st')})"

            page.derive("schedule", until, "cosine_constant_lr_ratio")


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the Trainer's arguments by axolotl's names."""
    sheet = write_trainer(plan, job)
    sheet.settings = {_NAMES.get(name, name): value for name, value in sheet.settings.items()}
    if sheet.settings["warmup_steps"] == 1:
        sheet.note("axolotl makes 2 steps of a warmup of 1")
    if (experts_gpus := plan.recipe.expert_parallel or 1) > 1:
        sheet.note(
            f"dp_shard_size must be {plan.world_size // experts_gpus}, the GPUs over the {experts_gpus} that "
            "hold one set of experts"
        )
    sheet.note(
        "remove num_epochs, warmup_ratio, batch_size, evals_per_epoch, saves_per_epoch, cosine_min_lr_ratio "
        "and cosine_constant_lr_ratio"
    )
    return sheet


def check(case: Case) -> Iterator[Issue]:
    """Finds axolotl's silent behaviour: the Trainer's, and a warmup."""
    yield from trainer.check(case)
    if case.at("warmup_steps") is None and case.at("warmup_ratio") is None:
        yield Issue.note(
            f"the warmup is {share(0.03)} of the steps, at most 100",
            "neither warmup_steps nor warmup_ratio is given",
            "axolotl, core/builders/base.py",
            "warmup_steps: 0  (for none)",
        )


AXOLOTL = Tool(
    "axolotl",
    "axolotl",
    Reader("0.4 to 0.19", read, check, _HARMLESS, _MATTERS),
    replace(WRITER, versions="0.16 to 0.18", file="axolotl.yaml", forms=("yaml",), write=write),
    settings=SETTINGS,
)
