"""TRL's configurations (SFT, DPO, GRPO, RLOO …): transformers' arguments, and the completions that a step is made of."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight, number
from isobatch.tools.trainer import HARMLESS, MATTERS, NAMES
from isobatch.tools.trainer import check as check_trainer
from isobatch.tools.transformers import TRANSFORMERS
from isobatch.tools.transformers import read as read_trainer

_HARMLESS = f"""{HARMLESS}
    activation_offloading assistant_only_loss beta beta_* bnb_* cast_lm_head_to_fp32 center_rewards_coefficient completion* delta
    *desirable_weight discopop_tau ds3_gather_for_generation entropy_* epsilon* f_alpha_* f_divergence_* importance_* ld_alpha loss_*
    mask_truncated_completions max_completion_length max_prompt_length max_new_tokens max_tool_calling_iterations min_p multi_objective_aggregation
    normalize_advantages num_completions_to_print num_generations_eval off_policy_* packing_strategy pad_to_multiple_of padding_free
    precompute_* ref_model_* reference_* repetition_penalty reward_* router_aux_* sapo_* scale_rewards shuffle_dataset streaming
    sync_ref_model system_prompt teacher_* temperature top_* transformers_continuous_* truncation_mode use_adaptive_entropy
    use_bias_correction_kl use_bnb_* use_dora use_rslora use_transformers_* use_weighting vespo_* vllm_* vllm_tensor_parallel_size use_vllm num_iterations steps_per_generation benchmarks callbacks config
    cosine_* stop_token code_language code_eval_test_batch_size code_eval_scoring_mode
"""
"""Of TRL 1.16, and of open-r1's scripts. vLLM's own parallelism is of GPUs that do not train."""


def read(page: SettingsPage) -> None:
    """Reads transformers' arguments; where a prompt has several completions, these are the samples."""
    read_trainer(page)
    if page.flag("use_peft"):
        page.give("adapter", "lora", "use_peft")
    if page.flag("packing"):
        page.note("packing: dataset_size is the number of packed sequences")
    each = page.whole("num_generations")
    if each is None:
        return
    page.reading.multiple = each
    page.note(f"num_generations {each}: a batch must be a multiple of it (--batch-multiple {each})")
    repeats = page.whole("num_iterations", default=1) or 1
    if str(page.reading.fields.get("duration")).endswith("ep"):
        page.note(f"a sample is a completion: dataset_size is the prompts × {each * repeats}")
    if page.flag("use_vllm") and page.word("vllm_mode", "server") == "server":
        page.note("vllm_mode server: its GPUs do not train, and are none of gpus")
    _rollouts(page)


def _rollouts(page: SettingsPage) -> None:
    """Notes what follows the accumulation or the batch: TRL generates completions of several steps at once, or of a part of one."""
    steps, fields = page.whole("steps_per_generation"), page.reading.fields
    if steps and (parts := fields.get("accumulation")) and steps != parts:
        page.note(
            f"steps_per_generation {steps}: set it to {steps / parts:g} × the gradient_accumulation_steps that is written"
        )
    if page.whole("generation_batch_size"):
        page.note(
            "generation_batch_size stays: it must be a multiple of per_device_train_batch_size × GPUs; check it by isobatch doctor"
        )


def check(case: Case) -> Iterator[Issue]:
    """Finds the Trainer's silent behaviour, and a batch that TRL refuses."""
    yield from check_trainer(case)
    if case.at("generation_batch_size") is not None and case.at("steps_per_generation") is not None:
        yield _stops(
            "generation_batch_size and steps_per_generation are both given",
            "each follows from the other",
            "remove steps_per_generation",
        )
    each, micro = case.reading.multiple, number(case.fields.get("batch_per_gpu"))
    pass_of_all = int(micro) * case.replicas
    rollout = case.at("generation_batch_size") or pass_of_all * int(
        number(case.at("steps_per_generation")) or number(case.fields.get("accumulation")) or 1
    )
    if pass_of_all and type(rollout) is int and rollout % pass_of_all:
        yield _stops(
            f"generation_batch_size {rollout} is no multiple of {int(micro)} × {case.replicas} GPUs",
            "completions are dealt out in passes over all GPUs",
            f"generation_batch_size: {-(-rollout // math.lcm(pass_of_all, each)) * math.lcm(pass_of_all, each)}",
        )
    if each > 1 and pass_of_all and type(rollout) is int and rollout % each:
        yield _stops(
            f"{rollout} completions on {case.gpus} GPUs are no multiple of num_generations {each}",
            "what is generated at once has all completions of each of its prompts",
            f"isobatch plan --from ... --batch-multiple {each}",
        )


def _stops(what: str, cause: str, change: str) -> Issue:
    return Issue(
        f"the run stops: {what}", cause, "trl, trainer/grpo_config.py: __post_init__", change, Weight.STOPS
    )


assert TRANSFORMERS.writer is not None
TRL = Tool(
    name="trl",
    title="TRL",
    reader=Reader(
        versions="0.15 to 1.16", read=read, check=check, names=NAMES, harmless=_HARMLESS, matters=MATTERS
    ),
    writer=dataclasses.replace(
        TRANSFORMERS.writer, versions="0.15 to 1.16", file="config.yaml", forms=("yaml",)
    ),
)
