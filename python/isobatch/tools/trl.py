"""TRL's configurations (SFT, DPO, GRPO, RLOO …): transformers' arguments, and the completions that a step is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import Case, Issue, Reader, Tool, Weight
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
    cosine_* stop_token
"""
"""Of TRL 1.16, and of open-r1's scripts. vLLM's own parallelism is of GPUs that do not train."""


def read(page: SettingsPage) -> None:
    """Reads transformers' arguments; where a prompt has several completions, these are the samples."""
    read_trainer(page)
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
    for key in ("generation_batch_size", "steps_per_generation"):
        if page.whole(key):
            page.note(f"{key} stays with the batch per GPU: TRL divides by it; check it on other GPUs")


def check(case: Case) -> Iterator[Issue]:
    """Finds the Trainer's silent behaviour, and a batch that TRL refuses."""
    yield from check_trainer(case)
    each = case.reading.multiple
    per_step = case.at("generation_batch_size") or case.batch
    if each > 1 and type(per_step) is int and per_step % each:
        yield Issue(
            f"the run stops: {per_step} completions are no multiple of num_generations {each}",
            "a step has all completions of each of its prompts",
            "trl, trainer/grpo_config.py: __post_init__",
            f"isobatch plan --from ... --batch-multiple {each}",
            Weight.STOPS,
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
