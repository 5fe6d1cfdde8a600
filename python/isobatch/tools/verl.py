"""verl's configuration: Hydra's overrides in a script, or YAML.

An optimizer step has `ppo_mini_batch_size` prompts × `rollout.n` completions.
"""

from collections.abc import Iterator, Mapping

from isobatch.tools.losses import note_verl
from isobatch.tools.map import Setting, by_code, read_settings, write_settings
from isobatch.tools.page import SettingsPage, length
from isobatch.tools.sheet import Job, Planned, SettingsSheet, command_file, overrides
from isobatch.tools.tool import (
    STAYS,
    Case,
    Issue,
    Reader,
    Tool,
    Weight,
    Writer,
    inside,
    number,
    undivided_batch,
)
from isobatch.words import count, share

_ACTOR, _N = "actor_rollout_ref.actor", "actor_rollout_ref.rollout.n"
_PARALLEL = [f"megatron.{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context")]
_MODEL, _OPTIM = "actor_rollout_ref.model", f"{_ACTOR}.optim"
_MICRO = Setting(f"{_ACTOR}.ppo_micro_batch_size_per_gpu", "micro_batch")
_RATES = (
    Setting(f"{_OPTIM}.lr", "lr", default=1e-6),
    Setting(f"{_OPTIM}.weight_decay", "weight_decay", default=0.01),
    Setting(f"{_OPTIM}.betas", "betas", of="adamw adam"),
    Setting(f"{_ACTOR}.grad_clip", "clip_norm", older=f"{_OPTIM}.clip_grad", default=1.0, off=1e9),
    Setting(f"{_OPTIM}.min_lr", "min_lr", writes=False),
)
SETTINGS = (
    by_code(f"{_ACTOR}.ppo_mini_batch_size", "effective_batch"),
    by_code(_N, "effective_batch"),
    _MICRO,
    by_code("trainer.nnodes", "gpus"),
    by_code("trainer.n_gpus_per_node", "gpus"),
    by_code(f"{_OPTIM}.optimizer", "optimizer"),
    *_RATES,
    by_code(f"{_OPTIM}.muon_momentum", "momentum"),
    by_code("trainer.total_training_steps", "duration"),
    by_code("trainer.total_epochs", "duration"),
    by_code(f"{_OPTIM}.lr_warmup_steps", "warmup"),
    by_code(f"{_OPTIM}.lr_warmup_steps_ratio", "warmup"),
    by_code(f"{_OPTIM}.lr_scheduler_type", "schedule"),
    by_code(f"{_OPTIM}.min_lr_ratio", "min_lr"),
)
_LORA, _MTP = f"{_MODEL}.lora", f"{_MODEL}.mtp"
_DATA = """apply_chat_template_kwargs audio_key custom_cls.name custom_cls.path dataloader_num_workers
    filter_overlong_prompts filter_overlong_prompts_workers function_tool_path image_key
    image_patch_size max_prompt_length max_response_length mm_processor_kwargs prompt_key return_full_prompt
    return_multi_modal_inputs return_raw_chat return_raw_input_ids reward_fn_key seed shuffle tokenizer
    tool_config_path train_files train_max_samples truncation trust_remote_code use_shm val_batch_size
    val_files val_max_samples validation_shuffle video_key"""
_OF_OPTIM = """exp_avg_dtype exp_avg_sq_dtype lr_wsd_decay_steps lr_wsd_decay_style main_grads_dtype
    muon_coefficient_type muon_extra_scale_factor muon_fp32_matmul_prec muon_match_adamw_update_rms
    muon_nesterov muon_num_ns_steps muon_scalar_optimizer muon_scale_mode muon_split_qkv muon_tp_mode
    optimizer_impl total_training_steps use_layer_wise_distributed_optimizer use_precision_aware_optimizer
    weight_decay_incr_style zero_indexed_step"""
_OF_MODEL = """custom_chat_template enable_activation_offload enable_gradient_checkpointing exclude_modules
    external_lib hf_config_path lora_adapter_path lora_alpha lora_rank override_config path target_modules
    tokenizer_path trust_remote_code use_fused_kernels use_liger use_remove_padding use_shm
    fused_kernel_options.impl_backend tiled_mlp.enabled tiled_mlp.num_shards"""
_OF_LORA = """a2a_experimental adapter_path alpha dropout dropout_position dtype exclude_modules
    freeze_language_model freeze_vision_model freeze_vision_projection lora_A_init_method lora_B_init_method
    merge rank target_modules type"""
_OF_MTP = """detach_encoder enable enable_rollout enable_train method mtp_loss_scaling_factor
    num_speculative_tokens speculative_algorithm speculative_eagle_topk speculative_num_draft_tokens
    speculative_num_steps"""
_HARMLESS = f"""
    actor_rollout_ref.* algorithm.* trainer.* actor_rollout_ref.actor.megatron.expert_model_parallel_size
    actor_rollout_ref.actor.megatron.expert_tensor_parallel_size
    actor_rollout_ref.actor.megatron.virtual_pipeline_model_parallel_size
    actor_rollout_ref.actor.megatron.sequence_parallel {inside("data", _DATA)} {inside(_OPTIM, _OF_OPTIM)}
    {inside(_MODEL, _OF_MODEL)} {inside(_LORA, _OF_LORA)} {inside(_MTP, _OF_MTP)}
"""
_MATTERS = {
    STAYS: f"critic.optim.lr critic.ppo_m*_size* {_OPTIM}.override_optimizer_config "
    f"{_OPTIM}.use_checkpoint_opt_param_scheduler",
    "micro_batch": f"{_ACTOR}.ppo_micro_batch_size",
    "schedule": f"{_ACTOR}.optim.num_cycles {_ACTOR}.optim.lr_decay_steps {_ACTOR}.optim.lr_warmup_init",
    "model_parallel": f"{_ACTOR}.megatron.dynamic_context_parallel",
    "": f"""{_ACTOR}.fsdp_config.turbo_config.*
    actor_rollout_ref.rollout.* actor_rollout_ref.ref.* *.profiler.* critic.* reward* distillation.*
    global_profiler.* skip.* custom_reward_function.* sandbox_fusion.* transfer_queue.* ray_kwargs.*
    ray_init.*""",
}
"""Of verl 0.3 to 0.9; what generates, rewards, scores or profiles has tables of its own."""


def read(page: SettingsPage) -> None:
    """Reads the actor's batch and optimizer, and the trainer's GPUs; the critic's stay as they are."""
    actor = page.table(_ACTOR)
    each = page.whole(_N, default=1) or 1
    prompts = actor.whole("ppo_mini_batch_size", default=256)
    if prompts:
        actor.give("effective_batch", prompts * each, "ppo_mini_batch_size")
    page.reading.multiple = each
    page.note(f"a sample is a completion: ppo_mini_batch_size {prompts} × rollout.n {each} in a step")
    if actor.flag("use_dynamic_bsz"):
        actor.raw("ppo_micro_batch_size_per_gpu")
        page.note(
            "use_dynamic_bsz: verl fills micro-batches by ppo_max_token_len_per_gpu; their size is not read"
        )
    else:
        read_settings(page, (_MICRO,))
    nodes = page.whole("trainer.nnodes", default=1)
    per_node = page.whole("trainer.n_gpus_per_node", default=8)
    if nodes and per_node:
        page.give("gpus", nodes * per_node, "trainer.n_gpus_per_node")
    if alone := page.whole("actor_rollout_ref.rollout.nnodes", default=0):
        page.note(f"rollout.nnodes {alone}: these nodes only generate, and do not count as gpus")
    actor.read_parallel("ulysses_sequence_parallel_size", *_PARALLEL)
    tensor = "megatron.expert_tensor_parallel_size"
    actor.read_experts("megatron.expert_model_parallel_size", *_PARALLEL[:2], tensor=tensor)
    actor.table("fsdp_config").read_parallel("ulysses_sequence_parallel_size")
    read_settings(page, _RATES)
    name = (actor.word("optim.optimizer", "adamw") or "").lower()
    actor.optimizer("optim.optimizer", "adamw" if name == "adam" else name)  # Megatron's decouples the decay
    actor.number("optim.muon_momentum", "momentum" if name == "muon" else None)
    note_verl(page, f"{_ACTOR}.loss_agg_mode")
    _lengths(page, actor)


def _lengths(page: SettingsPage, actor: SettingsPage) -> None:
    """Reads the run and its warmup, counted in rollouts of `data.train_batch_size` prompts."""
    rollout = page.whole("data.train_batch_size", default=1024)
    prompts = actor.whole("ppo_mini_batch_size", default=256)
    repeats = actor.whole("ppo_epochs", default=1) or 1
    # Search-R1's own: each prompt again, and steps of ppo_mini_batch_size completions.
    agents = page.whole("actor_rollout_ref.rollout.n_agent", default=1) or 1
    steps = repeats * agents * (rollout or 0) // (prompts or 1)
    rollouts = page.whole("trainer.total_training_steps")
    generated = page.whole("data.gen_batch_size", default=rollout)
    is_filtered = page.flag("algorithm.filter_groups.enable")
    if rollout and generated and generated != rollout and not is_filtered:
        rollout = generated  # all that was generated at once is trained on
        steps = repeats * agents * rollout // (prompts or 1)
    if rollouts and steps:
        page.give("duration", length(rollouts * steps, "st"), "trainer.total_training_steps")
    elif is_filtered:
        text = (
            f"algorithm.filter_groups keeps some of {generated} prompts at a time until {rollout} are a "
            f"rollout of {steps} steps: how many an epoch has is known in the run alone; give it in steps "
            f"(at most {steps} for every {generated} prompts)"
        )
        page.ask("duration", text, "trainer.total_epochs")
    else:
        epochs = page.number("trainer.total_epochs", default=30)
        page.give("duration", length((epochs or 0) * repeats, "ep"), "trainer.total_epochs")
        each = page.reading.multiple * agents
        name = "n_agent" if agents > 1 else "rollout.n"
        text = f"an epoch has the prompts × {name} samples: dataset_size is the prompts × {each}"
        page.note_assumed("duration", text)
        page.leave_out_rest(
            lambda _: (rollout or 0) * each,
            f"verl leaves out prompts that do not fill a rollout of {rollout}",
        )
    page.give("drop_last", True, "")
    page.give("convention", "exact", "")  # one loader, of the driver, deals out the rollouts
    warmup, ratio = actor.number("optim.lr_warmup_steps"), actor.number("optim.lr_warmup_steps_ratio")
    if warmup is not None and warmup > 0 and steps:
        page.give("warmup", length(warmup * steps, "st"), f"{_ACTOR}.optim.lr_warmup_steps")
    elif ratio:
        page.give("warmup", share(ratio), f"{_ACTOR}.optim.lr_warmup_steps_ratio")
    key = actor.first("optim.lr_scheduler_type", "optim.warmup_style", "optim.lr_decay_style")
    kind = actor.word(key, "constant")
    actor.give("schedule", kind, key)
    if kind not in ("constant", "cosine", "linear"):
        actor.unsupported(key, f"the scheduler {kind!r}")
    elif steps > 1 and (kind == "cosine" or warmup or ratio):
        page.note_assumed(
            "schedule", f"verl moves the learning rate once a rollout, which has {steps} optimizer steps"
        )
    actor.times_lr("min_lr", actor.number("optim.min_lr_ratio"), "optim.min_lr_ratio")


def write(plan: Planned, _job: Job) -> SettingsSheet:
    """Writes the actor's batch and optimizer, and the GPUs; the rollouts stay the user's own."""
    sheet, each = SettingsSheet(), plan.settings.batch_multiple or 1
    own = write_settings(plan, (_MICRO, *_RATES))["actor_rollout_ref"]["actor"]
    actor = {"ppo_mini_batch_size": plan.effective_batch // each, **own}
    if plan.recipe.optimizer != "adamw":
        sheet.note(
            f"optim.optimizer is not set: name the class of {plan.recipe.optimizer}; verl's own is AdamW"
        )
    sheet.settings = {
        "actor_rollout_ref": {"actor": actor, "rollout": {"n": each}},
        "trainer": {"nnodes": plan.cluster.nodes, "n_gpus_per_node": plan.cluster.gpus_per_node},
    }
    todo = "set data.train_batch_size anew, to" if plan.batch_change else "keep data.train_batch_size"
    sheet.note(
        f"rollout.n is the plan's batch_multiple; {todo} a multiple of {plan.effective_batch // each} prompts"
    )
    sheet.note(
        f"{plan.total_steps} optimizer steps, {plan.warmup_steps} of them warming up: verl counts "
        "total_training_steps and lr_warmup_steps in rollouts, each data.train_batch_size / "
        "ppo_mini_batch_size × ppo_epochs of these"
    )
    return sheet


def render(sheet: SettingsSheet, remarks: Mapping[str, str], top: str, _job: Job) -> str:
    """Writes Hydra's overrides after the trainer's module."""
    words = [["python", "-m", "verl.trainer.main_ppo"], *overrides(sheet.settings)]
    return command_file(top, remarks, words)


def check(case: Case) -> Iterator[Issue]:
    """Finds batches refused by verl's own validation and workers."""
    yield from undivided_batch(case, "verl, workers: normalized ppo_mini_batch_size")
    rollout = int(number(case.at("data", "train_batch_size")) or 1024)
    prompts = int(number(case.at("actor_rollout_ref", "actor", "ppo_mini_batch_size")) or 256)
    each, gpus = case.reading.multiple, case.gpus
    if rollout * each % gpus and not case.at("actor_rollout_ref", "actor", "use_dynamic_bsz"):
        yield Issue.stop(
            f"a rollout has {count(rollout * each)} completions, not a multiple of {gpus} GPUs",
            f"data.train_batch_size {rollout} × rollout.n {each} is dealt out to all of them",
            "verl, utils/config.py: validate_config",
            f"data.train_batch_size: a multiple of {prompts} for which that holds",
        )
    tensor = int(number(case.at("actor_rollout_ref", "rollout", "tensor_model_parallel_size")) or 1)
    if gpus % tensor:
        yield Issue.stop(
            f"{gpus} GPUs are not a multiple of rollout.tensor_model_parallel_size {tensor}",
            f"each engine that generates runs on {tensor} GPUs",
            "verl, workers: the device mesh of the rollout",
            "actor_rollout_ref.rollout.tensor_model_parallel_size: a divisor of the GPUs",
        )
    if rollout % prompts:
        text = f"a rollout of {rollout} prompts is not a whole number of steps of {prompts}"
        yield Issue(
            text
            if rollout > prompts
            else f"the run stops: a rollout has {rollout} prompts, a step {prompts}",
            "data.train_batch_size must be a multiple of ppo_mini_batch_size",
            "verl, workers/config/actor.py: validate",
            f"data.train_batch_size: {-(-rollout // prompts) * prompts}",
            Weight.STOPS,
        )


VERL = Tool(
    "verl",
    "verl",
    Reader(
        "0.3 to 0.9",
        read,
        check,
        _HARMLESS,
        _MATTERS,
        tables="data actor_rollout_ref actor_rollout_ref.actor trainer",
    ),
    Writer(
        "0.3 to 0.9",
        "verl.sh",
        ("sh", "yaml"),
        write,
        render,
        runs_ragged=False,
        runs_ramps=False,
        is_part=True,
        leaves_out="min_lr warmup_lr schedule eval_steps save_steps log_steps eps momentum "
        "ema_decay precision seq_len drop_last even_batches name command image resume",
    ),
    settings=SETTINGS,
)
