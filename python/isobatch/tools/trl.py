"""TRL's configurations (SFT, DPO, GRPO, RLOO …): transformers' arguments, and a step's completions."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from isobatch.errors import InputError
from isobatch.tools import trainer
from isobatch.tools.losses import note_trl
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.sheet import Job, Planned, SettingsSheet
from isobatch.tools.tool import Case, Issue, Reader, Tool
from isobatch.tools.transformers import SETTINGS, WRITER
from isobatch.tools.transformers import read as read_trainer
from isobatch.tools.transformers import write as write_trainer

HARMLESS = f"""
    {trainer.HARMLESS} activation_offloading assistant_only_loss beta beta_* bnb_* cast_lm_head_to_fp32
    center_rewards_coefficient completion* delta *desirable_weight discopop_tau ds3_gather_for_generation
    entropy_* epsilon* f_alpha_* f_divergence_* importance_* ld_alpha loss_* mask_truncated_completions
    max_completion_length max_prompt_length max_new_tokens max_tool_calling_iterations min_p
    multi_objective_aggregation normalize_advantages num_completions_to_print num_generations_eval
    off_policy_* packing_strategy pad_to_multiple_of padding_free precompute_* ref_model_* reference_*
    repetition_penalty reward_* router_aux_* sapo_* scale_rewards shuffle_dataset sync_ref_model system_prompt
    teacher_* temperature top_* transformers_continuous_* truncation_mode use_adaptive_entropy
    use_bias_correction_kl use_bnb_* use_dora use_rslora use_transformers_* use_weighting vespo_* vllm_*
    vllm_tensor_parallel_size use_vllm num_iterations steps_per_generation benchmarks callbacks config
    cosine_* code_language code_eval_test_batch_size code_eval_scoring_mode lmbda seq_kd simpo_gamma cpo_alpha
    rpo_alpha trl_config
"""
"""Of TRL 1.16, and of open-r1's scripts. vLLM's own parallelism is of GPUs that do not train."""


_OF_GROUPS = "generation_batch_size steps_per_generation num_iterations num_generations_eval reward_funcs"
"""Settings of GRPO and RLOO alone."""


_RATES = {
    "SFT": "2e-5",
    "GKD": "2e-5",
    "Reward": "1e-4",
    "OnlineDPO": "5e-7",
    "XPO": "5e-7",
    "NashMD": "5e-7",
}
_RATES |= dict.fromkeys(("DPO", "GRPO", "RLOO", "KTO", "ORPO", "CPO"), "1e-6")
"""Default learning rates of TRL 1.16, by the trainer."""
_OF_TRAINER = {
    "GRPO": f"num_generations {_OF_GROUPS}",
    "KTO": "desirable_weight undesirable_weight",
    "Reward": "center_rewards_coefficient",
    "GKD": "lmbda seq_kd teacher_model_name_or_path",
    "CPO": "simpo_gamma cpo_alpha",
    "DPO": "precompute_ref_log_probs f_divergence_type rpo_alpha ld_alpha label_smoothing",
    "SFT": "completion_only_loss assistant_only_loss packing dataset_text_field packing_strategy "
    "neftune_noise_alpha",
}
"""Settings that tell TRL's trainers apart."""


def _trainer(page: SettingsPage) -> str:
    """Names the trainer, by its configuration's class or by settings of its own."""
    kinds = (name for name, keys in _OF_TRAINER.items() if any(map(page.has, keys.split())))
    return (page.word("trl_config") or "").removesuffix("Config") or next(kinds, "")


def _own_rate(page: SettingsPage) -> str:
    """Names the default learning rate of TRL's trainer."""
    name = _trainer(page)
    if name in _RATES:
        return f"{name}Config's own default is {_RATES[name]}"
    return (
        "TRL's own default is 2e-5 (SFT), 1e-4 (Reward), 5e-7 (OnlineDPO) or 1e-6 (DPO, GRPO, RLOO, KTO, "
        "ORPO, CPO)"
    )


def read(page: SettingsPage) -> None:
    """Reads transformers' arguments; if a prompt has several completions, these are the samples."""
    read_trainer(page, _own_rate(page))
    note_trl(page, _trainer(page))
    if page.flag("use_peft"):
        page.give("adapter", "lora", "use_peft")
    if page.flag("packing"):
        page.note("packing: dataset_size is the number of packed sequences")
    each = _group(page)
    if each is None:
        return
    steps, parts = page.whole("steps_per_generation"), page.reading.fields.get("accumulation") or 1
    page.reading.multiple = multiple = _batch_multiple(each, steps, parts)
    page.note(
        f"num_generations {each}: a batch must be a multiple of {multiple} (--batch-multiple {multiple})"
    )
    repeats = page.whole("num_iterations", default=1) or 1
    if str(page.reading.fields.get("duration")).endswith("ep"):
        text = f"a sample is a completion: dataset_size is the prompts × {each * repeats}"
        page.note_assumed("duration", text)
    count_rollouts(page, each)
    if page.flag("use_vllm") and (mode := page.word("vllm_mode")) in ("server", None):
        older = "" if mode else ", the default before TRL 1.0"
        page.note(f"vllm_mode server{older}: its GPUs do not train, and do not count as gpus")
    if steps and steps != parts:
        page.note(
            f"steps_per_generation {steps}: set it to {steps / parts:g} × the gradient_accumulation_steps "
            "that is written"
        )
    if rollout := page.whole("generation_batch_size"):
        page.note(
            f"generation_batch_size {rollout}: set it anew where the batch moves, as --to trl does, to a "
            "multiple of per_device_train_batch_size × GPUs"
        )


def count_rollouts(page: SettingsPage, each: int) -> None:
    """Leaves out the prompts of an incomplete rollout, as TRL's sampler does."""
    repeats = page.whole("num_iterations", default=1) or 1
    steps, rollout = page.whole("steps_per_generation"), page.whole("generation_batch_size")

    def samples(fields: Mapping[str, Any]) -> int:
        parts = fields.get("accumulation") or 1
        return int(repeats * (rollout or fields["effective_batch"] * (steps or parts) // parts))

    page.leave_out_rest(
        samples, f"TRL leaves out prompts that do not fill a rollout (num_generations {each})"
    )


def _group(page: SettingsPage) -> int | None:
    """Counts the completions of a prompt; None for a configuration without such groups."""
    each = page.whole("num_generations")
    if each is None and (page.word("rlhf_type") == "grpo" or any(map(page.has, _OF_GROUPS.split()))):
        page.note("num_generations is not in the file: 8, the default of GRPO (of RLOO: 2)")
        return 8
    return each


def _batch_multiple(each: int, steps: int | None, parts: int) -> int:
    """Returns the required divisor of a batch: a rollout of this many steps of parts has whole groups."""
    ratio = Fraction(steps or parts, parts)
    return max(1, each * ratio.denominator // math.gcd(ratio.numerator, each))


def write(plan: Planned, job: Job) -> SettingsSheet:
    """Writes the Trainer's arguments, and a rollout of as many optimizer steps as in the tuned file."""
    sheet, own = write_trainer(plan, job), _page(job.own)
    each = _group(own)
    if each is None:
        return sheet
    parts = own.whole("gradient_accumulation_steps", default=1) or 1
    steps, rollout = own.whole("steps_per_generation"), own.whole("generation_batch_size")
    ratio = Fraction(rollout, plan.recipe.effective_batch) if rollout else Fraction(steps or parts, parts)
    if (ratio * plan.accumulation).denominator > 1:
        raise InputError(
            f"TRL generates for a whole number of micro-batches, and a rollout of {float(ratio):g} steps has "
            f"{float(ratio * plan.accumulation):g} at gradient_accumulation_steps {plan.accumulation}: plan "
            f"with --accumulation-multiple {ratio.denominator}"
        )
    if steps:
        sheet.settings["steps_per_generation"] = int(ratio * plan.accumulation)
    if rollout:
        sheet.settings["generation_batch_size"] = int(ratio * plan.effective_batch)
    evaluated, groups = own.whole("per_device_eval_batch_size", default=8) or 8, _groups_evaluated(own, each)
    if evaluated * plan.world_size % groups:
        unit = groups // math.gcd(groups, plan.world_size)
        sheet.settings["per_device_eval_batch_size"] = max(1, evaluated // unit) * unit
    for issue in _refusals(_page({**job.own, **sheet.settings}), each, plan.world_size):
        raise InputError(
            f"TRL would refuse this: {issue.what.partition(': ')[2]} ({issue.cause}). Change: {issue.change}"
        )
    return sheet


def _groups_evaluated(page: SettingsPage, each: int) -> int:
    """Counts the completions of a prompt in an evaluation; 1 if nothing is evaluated."""
    key = page.first("eval_strategy", "evaluation_strategy")
    return (page.whole("num_generations_eval") or each) if page.word(key, "no") != "no" else 1


def _page(settings: Mapping[str, Any]) -> SettingsPage:
    return SettingsPage(settings, Reading("trl", "TRL", "", dict(settings)))


def check(case: Case) -> Iterator[Issue]:
    """Finds the Trainer's silent behaviour, and settings refused by TRL."""
    yield from trainer.check(case)
    names = {"batch_per_gpu": "per_device_train_batch_size", "accumulation": "gradient_accumulation_steps"}
    batches = {name: case.fields[field] for field, name in names.items() if case.fields.get(field)}
    page = _page({**case.reading.settings, **batches})
    each = _group(page)
    if each and case.tool.name == "ms_swift":
        yield from _rollout_refusals(page, each, case.replicas)
    elif each:
        yield from _refusals(page, each, case.gpus)


def _refusals(page: SettingsPage, each: int, processes: int) -> Iterator[Issue]:
    """Finds the errors of GRPOConfig and RLOOConfig on a number of processes."""
    if page.flag("auto_find_batch_size"):
        cause, change = "a smaller batch cuts groups apart", "auto_find_batch_size: false"
        yield _stops("auto_find_batch_size is on", cause, change)
    cause = "they are generated inside the trainer"
    for key in ("cp_size", "sp_size"):
        if (page.table("parallelism_config").whole(key) or 1) > 1:
            yield _stops(f"{key} splits sequences", cause, f"parallelism_config.{key}: 1")
    if each < 2:
        cause = "a completion is compared with others of its prompt"
        yield _stops(f"num_generations is {each}", cause, "num_generations: 2")
        return
    yield from _rollout_refusals(page, each, processes)
    micro = page.whole("per_device_train_batch_size", default=8) or 0
    if micro * processes % each:
        yield Issue.note(
            f"before TRL 0.17 the run stops: {micro} × {processes} GPUs is not a multiple of {each}",
            "num_generations had to divide the completions of one pass, without the accumulation",
            "trl 0.16.1, trainer/grpo_trainer.py",
            f"trl>=0.17, or per_device_train_batch_size: a multiple of {each // math.gcd(each, processes)}",
        )
    groups = _groups_evaluated(page, each)
    evaluated = page.whole("per_device_eval_batch_size", default=8) or 8
    if evaluated * processes % groups:
        yield _stops(
            f"an evaluation of {evaluated} × {processes} completions is not a multiple of {groups}",
            "what is evaluated at once has all completions of each of its prompts",
            f"per_device_eval_batch_size: a multiple of {groups // math.gcd(groups, processes)}",
        )


def _rollout_refusals(page: SettingsPage, each: int, processes: int) -> Iterator[Issue]:
    rollout, steps = page.whole("generation_batch_size"), page.whole("steps_per_generation")
    if rollout is not None and steps is not None:
        yield _stops(
            "generation_batch_size and steps_per_generation are both given",
            "each follows from the other",
            "remove steps_per_generation",
        )
        return
    micro = page.whole("per_device_train_batch_size", default=8) or 0
    if not micro * processes:
        return
    key = "steps_per_generation" if steps else "gradient_accumulation_steps"
    completions = rollout or micro * processes * (steps or page.whole(key, default=1) or 1)
    whole = math.lcm(micro * processes, each)
    if completions % (micro * processes):
        yield _stops(
            f"generation_batch_size {completions} is not a multiple of {micro} × {processes} GPUs",
            "completions are dealt out in passes over all GPUs",
            f"generation_batch_size: {-(-completions // whole) * whole}",
        )
    elif completions % each:
        least = whole // micro // processes
        parts = page.whole("gradient_accumulation_steps", default=1) or 1
        multiple = _batch_multiple(each, steps, parts)
        yield _stops(
            f"{completions} completions on {processes} GPUs are not a multiple of num_generations {each}",
            "what is generated at once has all completions of each of its prompts",
            f"generation_batch_size: {-(-completions // whole) * whole}"
            if rollout
            else f"{key}: a multiple of {least}, or a plan with --batch-multiple {multiple}",
        )


def _stops(text: str, cause: str, change: str) -> Issue:
    return Issue.stop(text, cause, "trl, trainer/grpo_config.py: __post_init__", change)


TRL = Tool(
    "trl",
    "TRL",
    Reader("0.15 to 1.16", read, check, HARMLESS, trainer.MATTERS),
    replace(WRITER, versions="0.15 to 1.16", file="config.yaml", forms=("yaml",), write=write),
    settings=SETTINGS,
)
