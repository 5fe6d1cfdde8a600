"""OpenRLHF's arguments, with dots (from 0.10.2) and flat (before): a step has `train.batch_size` samples over all GPUs, in RL completions."""

from collections.abc import Iterator

from isobatch.tools.page import SettingsPage, length, value_at
from isobatch.tools.tool import STAYS, Case, Issue, Reader, Tool
from isobatch.tools.trainer import read_schedule
from isobatch.words import count, number_of, share

_ROLLOUT = "rollout.batch_size", "rollout_batch_size"
_EACH = "rollout.n_samples_per_prompt", "n_samples_per_prompt"
_BATCH = "train.batch_size", "train_batch_size"
_MICRO = "train.micro_batch_size", "micro_train_batch_size"
_HARMLESS = """
    actor.* actor_* critic.* critic_* ref.* ref_* reward.* reward_* rollout.* rollout_* vllm.* vllm_* algo.* data.* ds.* logger.* ckpt.* model.*
    train.colocate_* train.async_* train.full_determinism_enable train.partial_rollout_enable train.agent_func_path train.max_tokens_per_gpu
    train_max_tokens_per_gpu train.seed colocate_* async_* adam_offload agent_func_path apply_chat_template aux_loss_coef bf16 beta
    deepcompile deepspeed_enable_sleep disable_* dual_clip dynamic_filtering* enable_prefix_caching enable_vllm_* enforce_eager eps_clip*
    flash_attn full_determinism gamma generate_max_len grad_accum_dtype init_kl_coef input_* ipo kl_* label_* label_smoothing lambd load_in_4bit
    lora_* max_ckpt_* max_len max_samples micro_rollout_batch_size multiturn muon.* nll_loss_coef no_advantage_std_norm normalize_reward
    output_key overlap_comm overlong_* packing_samples pretrain pretrain_mode prompt_* ptx_coef remote_rm_url ring_head_stride
    tokenizer_chat_template top_p temperature use_* value_* zero_stage zpg chosen_key rejected_key compute_fp32_loss margin_loss
    eval.* address no_wait runtime_env_json working_dir teacher_model kd_coef data.max_samples eval.n_samples_per_prompt eval.steps
    rollout.micro_batch_size vllm.tensor_parallel_size vllm_tensor_parallel_size
    desirable_loss_weight undesirable_loss_weight entropy_loss_coef perf loss train_split muon.lr actor.muon.lr critic.muon.lr
    drop_max_length local_rank target_modules advantage_estimator policy_loss_type save_* stop_properly_penalty_factor
"""
"""Of OpenRLHF 0.9 to 0.11; what generates, scores or loads has no batch of the step."""


def read(page: SettingsPage) -> None:
    """Reads the step's batch, the GPUs that train, and the actor's (or the model's) optimizer; the critic's stays as it is."""
    is_rl = any(page.has(key) for key in (*_ROLLOUT, *_EACH, "actor.adam.lr", "actor_learning_rate"))
    page.whole(page.first(*_BATCH), "effective_batch", default=128)
    micro = page.whole(page.first(*_MICRO))
    if page.flag(page.first("train.dynamic_batch_enable", "use_dynamic_batch")):
        page.note("dynamic batches: micro-batches are filled by tokens, and their size is not read")
    elif micro:
        page.give("micro_batch", micro, page.first(*_MICRO))
    _gpus(page, is_rl)
    page.name_absent(micro_batch="micro_train_batch_size", lr="learning_rate")
    rate = page.first("actor.adam.lr", "adam.lr", "actor_learning_rate", "learning_rate")
    page.number(rate, "lr", default=1e-6 if is_rl else None)
    _optimizer(page)
    _lengths(page, is_rl)
    key = page.first("actor.lr_warmup_ratio", "lr_warmup_ratio")
    if ratio := page.number(key, default=0.03):
        page.give("warmup", share(ratio), key)
    key, floor = (page.first(f"actor.{name}", name) for name in ("lr_scheduler", "min_lr_ratio"))
    read_schedule(page, key, "cosine_with_min_lr")
    if page.word(key, "cosine_with_min_lr") == "cosine_with_min_lr":
        page.times_lr("min_lr", page.number(floor, default=0.1), floor)


def _gpus(page: SettingsPage, is_rl: bool) -> None:
    """Counts the GPUs of the actor; those of the reference, the reward, the critic and of engines that only generate are none of them."""
    if is_rl:
        nodes = page.whole(page.first("actor.num_nodes", "actor_num_nodes"), default=1)
        key = page.first("actor.num_gpus_per_node", "actor_num_gpus_per_node")
        each = page.whole(key, default=8)
        if nodes and each:
            page.give("gpus", nodes * each, key)
        page.note("gpus are the actor's: those that only generate, score or hold the critic are none of them")
    else:
        page.read_launch_line()
    page.read_parallel(
        page.first("ds.ring_attn_size", "ring_attn_size"),
        page.first("ds.tensor_parallel_size", "ds_tensor_parallel_size"),
    )


def _optimizer(page: SettingsPage) -> None:
    key = page.first("actor.optim", "optim")
    if page.word(key, "adam") == "muon":
        page.ask("optimizer", "muon has a learning rate of its own, which is not read", key)
    else:
        page.give("optimizer", "adamw", key)  # DeepSpeed's, which decouples the decay
    betas = page.first("actor.adam.betas", "adam.betas", "adam_betas")
    page.give("betas", (0.9, 0.95), betas)
    page.pair(betas)
    page.number(page.first("actor.adam.eps", "adam.eps"), "eps", default=1e-8)
    decay = page.first("actor.adam.weight_decay", "adam.weight_decay", "l2")
    page.number(decay, "weight_decay", default=0.0)
    page.clip(page.first("actor.max_norm", "max_norm"), default=1.0)
    key = page.first("train.ema_beta", "ema_beta")
    beta = page.number(key, default=0.992)
    if page.flag(page.first("train.enable_ema", "enable_ema")):
        page.give("ema_decay", beta, key)
    key = page.first("ds.lora.rank", "lora_rank")
    if (page.number(key, default=0) or 0) > 0:
        page.give("adapter", "lora", key)


def _lengths(page: SettingsPage, is_rl: bool) -> None:
    """Reads the epochs: in RL each episode trains `max_epochs` times on the completions of all prompts."""
    key = page.first("train.max_epochs", "max_epochs")
    epochs = page.number(key, default=1 if is_rl else None)
    episodes = page.number(page.first("train.num_episodes", "num_episodes"), default=1)
    each = page.whole(page.first(*_EACH), default=1)
    if epochs:
        page.give("duration", length(epochs * ((episodes or 1) if is_rl else 1), "ep"), key)
    page.give("drop_last", True, "")
    page.give("convention", "exact", "")
    if is_rl:
        page.note(f"a sample is a completion: dataset_size is the prompts × n_samples_per_prompt {each}")


def check(case: Case) -> Iterator[Issue]:
    """Finds steps that are smaller than asked for: the accumulation is rounded down."""
    batch, micro = case.fields.get("effective_batch"), case.fields.get("micro_batch")
    if batch and micro and case.replicas and batch % (micro * case.replicas):
        steps = batch // (micro * case.replicas)
        got = f"has {count(steps * micro * case.replicas)} samples" if steps else "is every micro-batch"
        yield Issue(
            f"a step {got}, not {count(batch)}",
            f"the accumulation is {batch} / ({micro} × {case.replicas} replicas), rounded down",
            "OpenRLHF, utils/deepspeed/deepspeed.py: accumulated_gradient",
            "isobatch plan --from lists the micro-batches and batches that fit",
        )
    prompts, each = (_number(case, keys) for keys in (_ROLLOUT, _EACH))
    completions = int(prompts * (each or 1))
    if batch and completions % batch:
        yield Issue(
            f"a rollout has {count(completions)} completions, no whole number of steps of {count(batch)}",
            "what is left of a rollout trains in no step of that size",
            "OpenRLHF, trainer/ppo_utils/replay_buffer.py",
            f"a rollout batch that × {each or 1:g} is a multiple of {batch}",
        )


def _number(case: Case, keys: tuple[str, ...]) -> float:
    values = (value_at(case.reading.settings, key) for key in keys)
    return number_of(str(next((value for value in values if value is not None), 0))) or 0


OPENRLHF = Tool(
    "openrlhf",
    "OpenRLHF",
    Reader(
        "0.9 to 0.11",
        read,
        check,
        _HARMLESS,
        {STAYS: "critic.adam.lr critic.lr_* critic_learning_rate freezing_actor_steps actor.freezing_steps"},
    ),
)
