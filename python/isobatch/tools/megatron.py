"""Megatron's arguments, in a shell script or on a line."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.errors import InputError
from isobatch.tools.map import read_settings
from isobatch.tools.megatron_write import BATCH, OPTIMIZER, RATES, SETTINGS, SHAPES, render, write
from isobatch.tools.page import SettingsPage, Unknown, length
from isobatch.tools.tool import STAYS, Case, Issue, Reader, Tool, Weight, Writer, undivided_batch
from isobatch.words import share

_SPLITS = [f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "ds_sequence")]
_EXPERTS = ("expert_model_parallel_size", "tensor_model_parallel_size", "pipeline_model_parallel_size")
_INTERLEAVED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
_EXCLUSIVE = (
    ("train_iters", "train_samples", "duration"),
    ("train_iters", "lr_decay_samples", "schedule"),
    ("train_iters", "lr_warmup_samples", "warmup"),
    ("train_samples", "lr_decay_iters", "schedule"),
    ("train_samples", "lr_warmup_iters", "warmup"),
    ("lr_warmup_fraction", "lr_warmup_iters", "warmup"),
    ("lr_warmup_fraction", "lr_warmup_samples", "warmup"),
)
"""Pairs of arguments refused by Megatron's validate_args (training/arguments.py), and the open field."""

_HARMLESS = """
    DDP_impl language_model_* task image_* temperature top_* pixel_* references input* trace* capture_* nproc
    out_* help force_* append_* abort_* account* accumulate_* activation_* adaptive_* add_* adlr_* align_*
    allow_* app_* apply_* async_* attr auto_* autocast_dtype average_* barrier_* batch_* bert_* beta_* bias_*
    biencoder_* bucket_size calc_* calculate_* check_* ckpt_fully_parallel_load
    ckpt_fully_parallel_load_exchange_algo ckpt_fully_parallel_load_per_rank_objects
    ckpt_fully_parallel_load_process_group ckpt_fully_parallel_save ckpt_fully_parallel_save_process_group
    classes_* clone_* codecarbon* constraint container* contigious_* cp_comm_type cpu_* cpus_* create_*
    cross_* cuda_* data_parallel_random_init data_parallel_sharding_strategy dataloader_defer_npy_index_mmap
    dataloader_fast_cache_load dataloader_inter_document_masking dataloader_type ddp_* deallocate_* decode_*
    decoder_* decoupled_weight_decay defer_* delay_* delta_* deterministic_* dino_* disable_* dist_* distrib_*
    distribute_* distributed_* dsa_* dump_* embed_* embedding_* empty_* enable_* encoder_* eod_mask_loss ep_*
    error_* exclusive exit_* exp_* experimental_* expert_* expert_model_parallel_size
    expert_tensor_parallel_num_weight_shards expert_tensor_parallel_size export* external_* fake_* ffn_*
    filter_* fim_* finalize_* fine_* finetune first_* flash_decode flight_* fn fp16_* fp32_* fp4* fp8* ft_*
    full_* fully_parallel_load fully_parallel_save fused_* gated_* gdp_* glu_* gpu_* gpus_* grad_* gradient_*
    gres* group_* grpo_* gtp_* hetereogenous_* heterogeneous_* hidden_size hierarchical_context_parallel_sizes
    high_* hybrid_* hybrid_context_parallel hysteresis ict_* img_* indexer_* inference_* init_* initial_*
    inprocess_* is_* iterations_* job_name keep_* kill_switch* kitchen_* kv_* langrl_* layernorm_*
    lazy_mpu_init legacy_* linear_* logits_* loss_* lr_wsd_decay_iters lr_wsd_decay_samples lr_wsd_decay_style
    main_* make_* mamba_* manual_* mask_* masked_* max_* megatron_* mem memory_* merge_* mhc_* microbatch_*
    mid_* min_* mla_* mlp_* mock_data modules_* moe_* moe_extended_tp most_recent_k mpi mrope_section mscale*
    mtp_* multi_* multiple_* lion_beta1 lion_beta2 muon_momentum muon_coefficient_type muon_extra_scale_factor
    muon_fp32_matmul_prec muon_nesterov muon_no_split_qkv muon_num_ns_steps muon_scalar_optimizer
    muon_scale_mode muon_split_qkv muon_tp_mode muon_use_nesterov muon_use_syrk mup_* name nccl_* no_*
    no_async_tensor_model_parallel_allreduce no_ckpt_fully_parallel_save no_pipeline_parallel nodes non_*
    norm_epsilon normalization ntasks* null_* num_* nvtx_ranges one_* onnx_safe openai_gelu
    optimizer_cpu_offload optimizer_cuda_graph optimizer_offload_fraction original_* otel_* outer_* overlap_*
    overlap_moe_expert_parallel_comm override_* pad_* padded_* param_* params_dtype partition* patch_dim
    perform_initialization persist_* persistent_* pin_* pipeline_dtype pipeline_model_parallel_comm_backend
    pipeline_model_parallel_layout pipeline_model_parallel_split_rank position_* predicate pytorch_*
    q_lora_rank qk_* query_* quick_geglu recompute_* record_* reduce_* refit_method relative_* replication*
    rerun_mode reset_* result_* retriever_* retro_* reuse_* rl_* rl_inference_expert_model_parallel_size
    rl_inference_expert_tensor_model_parallel_size rl_inference_pipeline_model_parallel_size
    rl_inference_tensor_model_parallel_size rl_parallel_generation_tasks rope_* rotary_* run_* runtime_*
    sample_rate sequence_parallel set_* sft* sgd_momentum sharp_* short_seq_prob soap_shampoo_beta
    soap_use_kl_shampoo softmax_* spec special_tokens split squared_relu standalone_* start_eval_at_iter
    store_* straggler_* strict_* suggested_* swiglu swin_* symmetric_* sync_* synchronize_* te_rng_tracker
    tensor_parallel_num_weight_shards throughput_* tiktoken_* time timers timing_* torch_* tp_*
    train_sync_interval train_weighted_* transformer_* untie_* use_* v_head_dim variable_* verify_*
    virtual_pipeline_model_parallel_size vision_* vocab* warmup wd_incr_steps weight_* wgrad_* window_* with_*
    yaml_cfg yarn_* zero_*
"""
"""Of Megatron core 0.8 to 0.19, of Megatron-DeepSpeed, and of launchers in the same script."""
_MATTERS = {
    STAYS: "decoupled_lr decoupled_min_lr head_lr_mult start_weight_decay end_weight_decay lr_warmup_init "
    "use_checkpoint_opt_param_scheduler",
    "effective_batch": "batch_size perform_rl_step",
    "model_parallel": "encoder_tensor_model_parallel_size encoder_pipeline_model_parallel_size "
    "model_parallel_size",
    "schedule": "phase_transition_iterations lr_decay_tokens",
    "duration": "train_tokens skip_train",
    "warmup": "lr_warmup_tokens",
}


def read(page: SettingsPage) -> None:
    """Reads the arguments; those left out have Megatron's defaults."""
    _batch(page)
    read_settings(page, RATES)
    # Megatron's "adam" decouples the weight decay.
    name = page.word("optimizer", "adam")
    page.optimizer("optimizer", "adamw" if name == "adam" else name)
    of, betas = ("lion", (0.95, 0.98)) if name == "lion" else ("adam", (0.9, 0.999))
    page.betas(f"{of}_beta1", f"{of}_beta2", betas)
    if name == "sgd":
        page.number("sgd_momentum", "momentum", default=0.9)
    elif "muon" in (name or ""):
        page.number("muon_momentum", "momentum", default=0.95)
    page.give("decay", "lr_multiplied", "optimizer")
    read_settings(page, OPTIMIZER)
    page.give("convention", "megatron", "")
    if not page.length("train_iters", "duration", "st"):
        page.length("train_samples", "duration", "sp")
    elif "ramp" in page.reading.fields:
        page.note_assumed(
            "duration",
            f"{page.name('train_iters')} beside a batch ramp: taken as iterations of the full batch; "
            "--train-samples says it exactly",
        )
    _read_schedule(page)
    for first, second, field in _exclusive(page.settings):
        page.ask(field, f"{first} and {second} are both given, and Megatron takes one of them", second)


def _batch(page: SettingsPage) -> None:
    read_settings(page, BATCH)
    steps = page.raw("step_batch_size_schedule")
    last = steps.rpartition(":")[2] if isinstance(steps, str) else ""
    if not page.has("global_batch_size") and last.isdecimal():
        page.give("effective_batch", int(last), "step_batch_size_schedule")
    elif not page.has("global_batch_size"):
        page.give("accumulation", 1, "global_batch_size")
        page.note_assumed(
            "accumulation", "--global-batch-size is not given: micro-batch × replicas, Megatron's default"
        )
    if page.flag("decrease_batch_size_if_needed"):
        page.note(
            "--decrease-batch-size-if-needed: where micro-batch × replicas does not divide the batch, "
            "Megatron lowers it; plan with --split smaller --min-micro-batch N --max-micro-batch N"
        )
    page.read_launch_line()
    parallel = page.read_parallel(*_SPLITS)
    parallel = math.lcm(parallel, page.read_experts(*_EXPERTS, tensor="expert_tensor_parallel_size"))
    page.reading.accumulation_multiple = stages = _interleaved(page.settings)
    if stages > 1:
        page.note(
            f"the pipeline's {stages} stages are interleaved: Megatron refuses an accumulation that is not a "
            f"multiple of {stages} (--accumulation-multiple {stages})"
        )
    if _has_balance_loss(page):
        page.give("coupled", "experts", "moe_aux_loss_coeff")
    if (page.reading.fields.get("gpus") or 0) % parallel:
        # A script that its users edit before they launch it on more nodes.
        page.note_until(
            f"the launch line has {page.reading.drop('gpus')} GPUs, not a multiple of the {parallel} that "
            "one replica and its experts need; taken as not known: --set gpus=N",
            lambda run: "gpus" in run.fields,
        )
    ramp = page.raw("rampup_batch_size")
    if ramp is not None and steps is not None:
        text = "--rampup-batch-size and --step-batch-size-schedule contradict each other"
        page.fault("ramp", InputError(text, field="ramp"))
    for key, value in (("rampup_batch_size", ramp), ("step_batch_size_schedule", steps)):
        if isinstance(value, Unknown) or value == "auto":
            page.as_number(key, value, "ramp")
        elif value is not None:
            page.give("ramp", " ".join(map(str, value)) if isinstance(value, list) else str(value), key)


def _interleaved(settings: Mapping[str, Any]) -> int:
    """Counts the stages of an interleaved pipeline; 1 of any other."""
    stages = settings.get("pipeline_model_parallel_size")
    is_interleaved = any(settings.get(key) is not None for key in _INTERLEAVED)
    count = int(str(stages)) if is_interleaved and str(stages).isdecimal() else 1
    return count if 1 < count < 2**31 else 1


def _has_balance_loss(page: SettingsPage) -> bool:
    """Tells whether experts couple a micro-batch's samples, by a loss or a capacity."""
    if (page.whole("num_experts") or 0) <= 1:
        return False
    kinds, coefficients = (
        set(map(str, value if isinstance(value, list) else [value]))
        for value in (
            page.raw("moe_router_load_balancing_type") or "aux_loss",
            page.raw("moe_aux_loss_coeff"),
        )
    )
    has_loss = bool(coefficients - {"0", "0.0", "None"}) or kinds == {"sinkhorn"}
    is_by_micro_batch = bool({"aux_loss", "sinkhorn"} & kinds)
    return page.has("moe_expert_capacity_factor") or (is_by_micro_batch and has_loss)


def _exclusive(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields pairs of arguments refused by Megatron, and the open field of the recipe."""
    for first, second, field in _EXCLUSIVE:
        if all(settings.get(name) not in (None, 0, "0") for name in (first, second)):
            yield f"--{first.replace('_', '-')}", f"--{second.replace('_', '-')}", field


def _read_schedule(page: SettingsPage) -> None:
    style = page.word("lr_decay_style", "linear") or "linear"
    page.length("lr_warmup_iters", "warmup", "st")
    page.length("lr_warmup_samples", "warmup", "sp")
    fraction = page.number("lr_warmup_fraction")
    samples = page.whole("lr_decay_samples") or page.whole("train_samples")
    if fraction and samples:
        # A share of the decay's samples: with a batch ramp, another share of the steps.
        page.give("warmup", length(int(fraction * samples), "sp"), "lr_warmup_fraction")
    elif fraction:
        page.give("warmup", share(fraction), "lr_warmup_fraction")
    kinds = {"constant": "constant", "linear": "linear", "cosine": "cosine", "inverse-square-root": "vaswani"}
    if style == "WSD":
        key = page.first("lr_wsd_decay_iters", "lr_wsd_decay_samples")
        decay, shape = page.whole(key), page.word("lr_wsd_decay_style", "exponential")
        names = {style: shape for shape, style in SHAPES.items()}
        for end, run in ("lr_decay_iters", "train_iters"), ("lr_decay_samples", "train_samples"):
            if page.whole(end) not in (None, page.whole(run)):
                page.unsupported(end, "WSD that ends before the run")
        if decay is None or shape not in names:
            page.unsupported("lr_decay_style", f"WSD with lr_wsd_decay_style {shape}")
        else:
            unit = "sp" if key.endswith("samples") else "st"
            page.give("schedule", f"wsd(decay={decay}{unit}, shape={names[shape]})", "lr_decay_style")
    elif style in kinds:
        page.give("schedule", kinds[style], "lr_decay_style")
        _own_end(page, style)
    else:
        page.unsupported("lr_decay_style", f"the style {style!r}")


def _own_end(page: SettingsPage, style: str) -> None:
    """Reads a decay with an end other than the run's."""
    for kind, unit in (("iters", "st"), ("samples", "sp")):
        last = page.whole(f"lr_decay_{kind}")
        if last is None or last == page.whole(f"train_{kind}") or style not in ("linear", "cosine"):
            continue  # the others have no end
        page.give("schedule", f"{style}(until={length(last, unit)})", f"lr_decay_{kind}")
        fraction = page.number("lr_warmup_fraction")
        if fraction and not page.has(f"lr_warmup_{kind}"):
            # Megatron takes the share of the decay, not of the run.
            page.give("warmup", length(int(fraction * last), unit), "lr_warmup_fraction")


def check(case: Case) -> Iterator[Issue]:
    """Finds silent behaviour of the tool."""
    if not case.at("decrease_batch_size_if_needed"):
        yield from undivided_batch(
            case, "megatron/core/num_microbatches_calculator.py: ConstantNumMicroBatchesCalculator"
        )
    if case.at("clip_grad") is None:
        yield Issue.note(
            "gradients are clipped at norm 1",
            "--clip-grad is not given, and 1.0 is its default",
            "megatron/training/arguments.py: --clip-grad",
            "--clip-grad 0.0  (for none)",
        )
    if case.at("adam_beta2") is None and case.reading.settings.get("optimizer", "adam") == "adam":
        yield Issue.note(
            "beta2 is 0.999",
            "--adam-beta2 is not there",
            "megatron/training/arguments.py: --adam-beta2",
            "--adam-beta2 0.95  (as most published runs)",
        )
    for first, second, _ in _exclusive(case.reading.settings):
        yield Issue.stop(
            f"{first} and {second} are both given",
            "a run is counted in iterations or in samples, and warms up by one of its arguments",
            "megatron/training/arguments.py: validate_args",
            f"remove {second}",
            second,
        )
    yield from _stages(case)
    yield from _ramps(case)


def _stages(case: Case) -> Iterator[Issue]:
    """Finds a number of micro-batches not divided by an interleaved pipeline's stages."""
    stages = _interleaved(case.reading.settings)
    batch, unit = case.batch or 0, (case.fields.get("micro_batch") or 1) * case.replicas
    if unit and batch % unit == 0 and batch // unit % stages:
        yield Issue.stop(
            f"{batch // unit} micro-batches are not a multiple of the pipeline's {stages} stages",
            "its stages are interleaved",
            "megatron/core/pipeline_parallel/schedules.py: final_microbatch_group_size",
            f"{case.command or 'isobatch plan --from'} --accumulation-multiple {stages} lists the batches "
            "that fit",
            "effective_batch",
        )


def _ramps(case: Case) -> Iterator[Issue]:
    if case.at("step_batch_size_schedule") is not None and case.at("global_batch_size") is not None:
        yield Issue.stop(
            "--step-batch-size-schedule and --global-batch-size are both given",
            "the schedule has the full batch at its end",
            "megatron/training/arguments.py since core 0.18",
            "remove --global-batch-size",
        )
    if (ramp := case.at("rampup_batch_size")) is None:
        return
    unit, full = (case.fields.get("micro_batch") or 1) * case.replicas, case.fields.get("effective_batch")
    words = ramp if isinstance(ramp, list) else str(ramp).split()
    sizes = [int(word) for word in words[:2] if str(word).isdecimal()]
    if full and unit and len(sizes) == 2 and sizes[1] > 0 and not case.at("decrease_batch_size_if_needed"):
        bad = next((batch for batch in range(sizes[0], full + 1, sizes[1]) if batch % unit), None)
        if bad is not None or (full - sizes[0]) % sizes[1]:
            yield Issue.stop(
                f"the ramp's batch of {bad or full} samples does not divide",
                f"each stage must be a multiple of {case.fields.get('micro_batch')} × {case.replicas} "
                f"replicas, and the increments end at {full}",
                "megatron/core/num_microbatches_calculator.py: RampupBatchsizeNumMicroBatchesCalculator",
                ("" if full % unit == 0 else f"--global-batch-size {-(-full // unit) * unit} ")
                + f"--rampup-batch-size {unit} {unit} {words[-1]}",
            )
    yield Issue(
        "since core 0.18 the batch does not ramp: --rampup-batch-size has no effect",
        "the calculator that used it was replaced",
        "NVIDIA/Megatron-LM#4411",
        '--step-batch-size-schedule "0:START TOKENS:BATCH ..."',
    )
    if case.at("train_iters") is not None:
        yield Issue(
            "before core 0.18 the run stops: a batch ramp needs --train-samples",
            "--train-iters is given: expected no batch-size rampup for iteration-based training",
            "megatron/training/arguments.py at core_v0.16.0",
            f"--train-samples, --lr-decay-samples and --lr-warmup-samples: {case.command} --to megatron "
            "writes them",
            Weight.STOPS,
        )


MEGATRON = Tool(
    "megatron",
    "Megatron",
    Reader("core 0.6 to 0.19", read, check, _HARMLESS, _MATTERS),
    Writer(
        "core 0.10 to 0.19",
        "arguments.sh",
        ("sh",),
        write,
        render,
        runs_ragged=False,
        runs_ramps=True,
        is_part=True,
        leaves_out="ema_decay drop_last even_batches name image resume",
    ),
    settings=SETTINGS,
)
