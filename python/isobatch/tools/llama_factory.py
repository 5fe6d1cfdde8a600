"""LLaMA-Factory's YAML: transformers' arguments, and its own of data and methods."""

from dataclasses import replace

from isobatch.tools.map import Setting, by_code, read_settings
from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import STAYS, Reader, Tool
from isobatch.tools.trainer import HARMLESS, MATTERS, check
from isobatch.tools.transformers import SETTINGS, WRITER
from isobatch.tools.transformers import read as read_trainer

_SAMPLE = Setting("cutoff_len", "seq_len", writes=False)
_HARMLESS = f"""
    {HARMLESS} add_special_tokens add_tokens additional_target apollo_layerwise apollo_proj apollo_proj_type
    apollo_rank apollo_scale apollo_scale_front apollo_scale_type apollo_target apollo_update_interval asft_*
    audio_* badam_mask_mode badam_mode badam_start_block badam_switch_interval badam_switch_mode
    badam_update_ratio badam_verbose batch_size buffer_size bnb_* booster compute_* create_new_adapter
    crop_to_patches default_system device_map disable_* double_quantization download_mode dpo_* eaft_*
    early_stopping_steps enable_* export_* finetuning_type fp8* galore_layerwise galore_proj_type galore_rank
    galore_scale galore_target galore_update_interval ignore_pad_token_for_loss image_* infer_*
    init_special_tokens interleave_probs kt_* kto_* lang ld_alpha length_penalty mask_history max_length
    max_new_tokens max_samples mix_strategy mixture_of_depths moe_* n_shot new_special_tokens_config num_beams
    num_layer_trainable oft_* pissa_* plot_loss ppo_score_norm ppo_target ppo_whiten_rewards pref_*
    preserve_thinking pure_bf16 ray_init_kwargs reserved_label_len ref_model* repetition_penalty resize_vocab
    reward_model* rope_* sglang_* sglang_tp_size simpo_gamma skip_special_tokens split_special_tokens stage
    task template temperature tool_format top_k top_p train_from_scratch train_on_prompt upcast_*
    use_adam_mini use_apollo use_asft_loss use_audio_in_video use_badam use_dft_loss use_dora use_eaft_loss
    use_fast_tokenizer use_galore use_kt* use_kv_cache use_llama_pro use_reentrant_gc use_rslora use_swanlab
    use_unsloth* use_v1_kernels video_* vllm_* hyper_parallel_args expert_model_parallel_size
    virtual_pipeline_model_parallel_size sequence_parallel overlap_* recompute_* *_fusion
    use_distributed_optimizer mixed_precision include_effective_tokens_per_second
"""
"""Of LLaMA-Factory 0.9.5.

`batch_size` is of its evaluation; GaLore, APOLLO, BAdam and Adam-mini are variants of Adam.
"""
_MATTERS = {
    STAYS: "loraplus_lr_embedding",
    "effective_batch": f"{MATTERS['effective_batch']} ppo_buffer_size",
    "duration": "ppo_epochs",
    "model_parallel": "use_mca use_hyper_parallel",
}


def read(page: SettingsPage) -> None:
    """Reads transformers' arguments, with its own names for the length of a sample and for GPUs."""
    read_trainer(page)
    read_settings(page, (_SAMPLE,))
    sizes = [f"{name}_model_parallel_size" for name in ("tensor", "pipeline")]
    page.read_parallel("sequence_parallel_size", "context_parallel_size", *sizes)
    page.read_experts("expert_model_parallel_size", *sizes)
    if any(page.has(size) for size in sizes):
        page.flag("use_mca")  # whose sizes these are
    page.lora("finetuning_type", "lora")
    if page.flag("use_muon"):
        page.give("optimizer", "muon", "use_muon")
    workers = page.whole("ray_num_workers")
    if workers and workers > 1:
        page.give("gpus", workers, "ray_num_workers")
    if page.flag("packing") or page.flag("neat_packing"):
        page.note("packing: dataset_size is the number of packed sequences")
    if page.has("max_samples"):
        page.note(
            "max_samples bounds each data set; dataset_size is what is left for training after val_size"
        )


LLAMA_FACTORY = Tool(
    "llama_factory",
    "LLaMA-Factory",
    Reader("0.8 to 0.9", read, check, _HARMLESS, _MATTERS),
    replace(WRITER, versions="0.9", file="train.yaml", forms=("yaml",)),
    settings=(*SETTINGS, _SAMPLE, by_code("ray_num_workers", "gpus"), by_code("use_muon", "optimizer")),
)
