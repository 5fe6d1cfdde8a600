"""ms-swift (`swift sft`, `swift rlhf`): TRL's arguments under defaults of its own."""

import math

from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import STAYS, Reader, Tool
from isobatch.tools.trainer import MATTERS
from isobatch.tools.transformers import SETTINGS
from isobatch.tools.trl import HARMLESS, check
from isobatch.tools.trl import read as read_trl

_DEFAULTS: dict[str, float | int | str] = {
    "per_device_train_batch_size": 1,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
}
"""Its defaults where they are not the Trainer's (swift/trainers/arguments.py: TrainArgumentsMixin)."""
_NAMED = ("per_device_train_batch_size", "gradient_accumulation_steps", "learning_rate", "num_generations")
_SAMPLES = 16
"""Samples of a step that it reaches by the accumulation, where that is not given."""

_HARMLESS = f"""
    {HARMLESS} swift acc_strategy adalora_* add_non_thinking_prefix add_version advantage_* agent_template
    aligner_* async_generate boft_* check_model chord_* cliprange* columns create_checkpoint_symlink custom_*
    device_groups device_map disable_* download_mode dynamic_sample early_stop_interval enable_* experts_impl
    external_plugins extra_eval_args fipo_* fourier_* galore_cos_threshold galore_gamma_proj
    galore_optim_per_parameter galore_proj_bits galore_proj_group_size galore_proj_quant galore_proj_type
    galore_quantization galore_queue_size galore_rank galore_scale galore_target_modules
    galore_update_proj_gap galore_with_embedding gamma gkd_* gym_env hqq_axis ignore_args_error init_*
    interleave_prob is_binary_loss_scale kl_* lam lazy_tokenize lisa_* llamapro_* local_* logprobs max_memory
    max_model_len max_pixels max_resample_times max_shard_size max_turns missing_eos_penalty modules_to_save
    move_model_batches mrl_dims multi_turn_scheduler new_special_tokens norm_bbox num_beams num_labels
    num_sample_generations optimizer packing_* padding_side preserve_thinking problem_type ray_exp_name
    real_tau ref_* reft_* repetition_* response_* vllm_enable_expert_parallel rlhf_type rlsd_* rollout_*
    rope_scaling safe_serialization sdar_* sft_alpha sleep_level soft_* split_dataset_ratio stop_words
    stopping_strategy stream strict structured_outputs_regex system target_* task_type tau_* template*
    trainable_parameters* truncation_strategy tuner_* train_type use_* vera_* vf_coef
    vit_gradient_checkpointing vllm_data_parallel_size vllm_pipeline_parallel_size whiten_rewards
    zero_hpz_partition_size shuffle_buffer_size ENV.*
"""
"""Of ms-swift 4.6."""
_MATTERS = {
    STAYS: "vit_lr aligner_lr lorap_lr_ratio",
    "optimizer": "optimizer",
    "effective_batch": f"{MATTERS['effective_batch']} chord_sft_per_device_train_batch_size num_mini_batches",
    "duration": "num_ppo_epochs",
    "": "local_rollout_forward_batch_size lora_ga_batch_size chord_mu_* rlsd_lambda_*",
}


def read(page: SettingsPage) -> None:
    """Reads TRL's arguments with ms-swift's defaults, and the number of processes."""
    each, nodes = page.whole("ENV.NPROC_PER_NODE"), page.whole("ENV.NNODES")
    if each or nodes:
        page.give("gpus", (each or 1) * (nodes or 1), "ENV.NPROC_PER_NODE" if each else "ENV.NNODES")
    elif not page.has("nproc_per_node"):
        page.note_until(
            "neither NPROC_PER_NODE nor NNODES is in the file: one process, unless the environment has them "
            "(--set gpus=N)",
            lambda run: "gpus" in run.fields,
        )
    defaults = _defaults(page)
    named = [f"{name} {value}" for name, value in defaults.items() if name in _NAMED and not page.has(name)]
    if named:
        page.note(f"not in the file, ms-swift's own defaults: {', '.join(named)}")
    if not page.has("gradient_accumulation_steps") and "gradient_accumulation_steps" not in defaults:
        text = f"is not in the file, and ms-swift rounds {_SAMPLES} samples up over the processes"
        page.ask("accumulation", text, page.name("gradient_accumulation_steps"))
    read_trl(SettingsPage({**defaults, **page.settings}, page.reading, dashes=page.dashes))
    page.lora(page.first("tuner_type", "train_type", "sft_type"), "lora")
    page.whole("max_length", "seq_len")
    page.read_parallel("sequence_parallel_size", "deepspeed_autotp_size")
    if epochs := page.number("max_epochs"):
        page.note(f"max_epochs {epochs:g} ends the run, also where num_train_epochs or max_steps is more")


def _defaults(page: SettingsPage) -> dict[str, float | int | str]:
    """Returns ms-swift's defaults for missing settings (trainers/arguments.py, arguments/sft_args.py)."""
    kind = (page.word("rlhf_type", "") or "").lower()
    tuner = page.word(page.first("tuner_type", "train_type", "sft_type"), "lora")
    defaults = {**_DEFAULTS, "learning_rate": 1e-5 if tuner == "full" else 1e-4}
    if kind == "grpo":
        return defaults | {"num_generations": 8, "gradient_accumulation_steps": 1, "vllm_mode": "colocate"}
    gpus, micro = page.reading.fields.get("gpus"), page.whole("per_device_train_batch_size", default=1)
    if gpus and micro:
        defaults["gradient_accumulation_steps"] = max(1, math.ceil(_SAMPLES / micro / gpus))
    return defaults


MS_SWIFT = Tool(
    "ms_swift",
    "ms-swift",
    Reader("3.5 to 4.6", read, check, _HARMLESS, _MATTERS),
    written_as="transformers",
    settings=SETTINGS,
)
