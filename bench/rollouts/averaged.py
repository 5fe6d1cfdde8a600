"""Trainers whose ranks average their gradients: OpenRLHF, SkyRL, prime-rl, NeMo-RL, at a commit.

A worker's own lines of scaling are repeated here, with the place that they are from.
"""

from types import SimpleNamespace
from typing import Any

import torch

from rollouts.sources import Source
from rollouts.step import Batch, Passes, Settings, Step

REDUCTIONS = ("token_mean", "token_mean_legacy", "sequence_mean", "seq_mean_token_sum_norm", "prompt_mean")


def openrlhf(source: Source, *, token_level: bool = True, kind: str = "ppo", by_window: bool = True) -> Step:
    """OpenRLHF's actor: `PolicyLoss`, by the counts of each pass or of the step's window.

    DeepSpeed divides each pass's loss by the accumulation.
    """
    tensors = source.load("openrlhf/models/utils.py", "masked_mean", torch=torch)
    losses = source.load(
        "openrlhf/models/loss.py",
        "aggregate_loss",
        "PolicyLoss",
        **{"nn": torch.nn, "torch": torch, "masked_mean": tensors.masked_mean},
    )
    names = ("_get_dp_group", "get_loss_batch_info")
    windows = ("_optimizer_step_loss_norm", "iter_grad_accum_global_norm") if by_window else ()
    counts = source.load(
        "openrlhf/utils/loss_utils.py", *names, *windows, torch=torch, dist=torch.distributed
    )
    loss_of = losses.PolicyLoss(token_level_loss=token_level, policy_loss_type=kind)

    def step(passes: Passes) -> None:
        if by_window:
            pairs = counts.iter_grad_accum_global_norm(
                passes.parts, None, passes.count, lambda part: part["response_mask"]
            )
        else:
            pairs = ((part, counts.get_loss_batch_info(None, part["response_mask"])) for part in passes.parts)
        for part, info in pairs:
            batch = passes.forward(part)
            tensors = [batch[name] for name in ("log_probs", "old_log_probs", "advantages", "response_mask")]
            (loss_of(*tensors, **info)[0] / passes.count).backward()

    return step


def skyrl(source: Source, reduction: str, *, scales_advantages: bool = True) -> Step:
    """SkyRL's actor: `ppo_policy_loss`, with the reduction in the advantages or in the loss (worker.py)."""
    names = ("ppo_policy_loss", "reduce_loss")
    names += ("apply_loss_reduction_to_advantages_minibatch",) if scales_advantages else ()
    losses = _skyrl(source, *names)
    settings = Settings(
        policy_loss_type="regular",
        loss_reduction=reduction,
        eps_clip_low=0.2,
        eps_clip_high=0.2,
        max_seq_len=16,
    )

    def step(passes: Passes) -> None:
        if scales_advantages:
            boundaries = {"prompt_boundaries": [(at, at + 2) for at in range(0, passes.samples, 2)]}
            scaled = losses.apply_loss_reduction_to_advantages_minibatch(
                passes.whole["advantages"],
                passes.whole["response_mask"],
                reduction,
                passes.micro_batch,
                settings["max_seq_len"],
                **(boundaries if reduction == "prompt_mean" else {}),
            )
        own = passes.micro_batch * passes.count
        rank = torch.distributed.get_rank() if passes.ranks > 1 else 0
        for number, batch in enumerate(passes):
            at = rank * own + number * passes.micro_batch
            chosen = scaled[at : at + passes.micro_batch] if scales_advantages else batch["advantages"]
            loss, _ = losses.ppo_policy_loss(
                batch["log_probs"], batch["old_log_probs"], chosen, settings, batch["response_mask"]
            )
            (loss * (passes.ranks if scales_advantages else 1 / passes.count)).backward()

    return step


def skyrl_supervised(source: Source, *, sums: bool) -> Step:
    """SkyRL's `cross_entropy_loss` of masks as they come: a sum, by `microbatch_weight` or the ranks."""
    losses = _skyrl(source, "cross_entropy_loss", "reduce_loss")

    def step(passes: Passes) -> None:
        for batch in passes:
            loss, _ = losses.cross_entropy_loss(
                batch["log_probs"], None, None, Settings(), batch["response_mask"]
            )
            weight = passes.micro_batch / (passes.micro_batch * passes.count)
            (loss * (passes.ranks if sums else weight)).backward()

    return step


def _skyrl(source: Source, *names: str) -> SimpleNamespace:
    tensors = source.load(
        "skyrl/backends/skyrl_train/utils/torch_utils.py", "masked_mean", "safe_exp_delta", torch=torch
    )
    return source.load(
        "skyrl/backends/skyrl_train/utils/ppo_utils.py",
        *names,
        torch=torch,
        apply_off_policy_correction=lambda loss, old, rollout, mask, settings: (loss, mask, {}),
        **vars(tensors),
    )


def prime(source: Source, *, over_ranks: bool) -> Step:
    """prime-rl's trainer: `compute_loss` by the tokens of the rank or of all ranks (rl/train.py)."""
    inputs = lambda **values: SimpleNamespace(**{"loss_weights": None, **values})  # noqa: E731
    losses = source.load(
        "src/prime_rl/trainer/rl/loss.py",
        *("compute_loss", "default_loss_fn", "_safe_mean"),
        torch=torch,
        LossInputs=inputs,
        LossOutputs=SimpleNamespace,
        sft_loss_fn=None,
    )
    settings = Settings(dppo_mask_high=0.2, dppo_mask_low=0.2, adv_tau=1.0, kl_tau=0.1, teacher_tau=0.0)

    def step(passes: Passes) -> None:
        local = float(passes.own["response_mask"].sum())
        scale = passes.summed(local) if over_ranks else local
        for batch in passes:
            loss, _ = losses.compute_loss(
                list(batch["log_probs"]),
                list(batch["old_log_probs"]),
                None,
                list(batch["advantages"]),
                list(batch["response_mask"].bool()),
                lambda values: losses.default_loss_fn(values, settings),
                scale,
            )
            loss.backward()
        if over_ranks:  # fsdp_gradient_divide_factor
            passes.scale(passes.ranks)

    return step


def prime_clipped(source: Source, *, of_step: bool) -> Step:
    """prime-rl's `grpo_loss_clip`: by a pass's tokens and the accumulation, or by the step's (train.py)."""
    names = ("grpo_loss_clip", "selective_log_softmax", "_masked_sum" if of_step else "_apply_mask")
    losses = source.load("src/prime_rl/trainer/loss.py", *names, torch=torch, F=torch.nn.functional)

    def step(passes: Passes) -> None:
        total = passes.own["response_mask"].sum()
        for batch in passes:
            tokens = {} if of_step else {"max_tokens": int((batch["input_ids"] != 0).sum())}
            loss, _ = losses.grpo_loss_clip(
                logits=batch["logits"],
                input_ids=batch["input_ids"],
                advantages=_from_first(batch["advantages"]),
                original_logprobs=batch["old_log_probs"],
                loss_mask=_from_first(batch["response_mask"]),
                temperature=1.0,
                epsilon_low=0.2,
                epsilon_high=0.2,
                clip_ratio=4.0,
                highest_entropy_percentage=1.0,
                **tokens,
            )
            (loss / (total if of_step else passes.count)).backward()

    return step


def prime_supervised(*, of_step: bool) -> Step:
    """prime-rl's sft/train.py, whose loss is inside of `train`: its lines are repeated here."""

    def step(passes: Passes) -> None:
        for batch in passes:
            losses = -batch["log_probs"][batch["response_mask"].bool()]
            ((losses.sum() if of_step else losses.mean()) / passes.count).backward()
        if of_step:
            tokens = passes.summed(passes.own["response_mask"].sum())
            passes.scale(passes.ranks * passes.count / tokens)

    return step


def nemo(source: Source, *, token_level: bool = True, likelihood: float = 0.0) -> Step:
    """NeMo-RL's `ClippedPGLossFn` with the counts of all ranks, × ranks (dtensor_policy_worker.py)."""
    tensors = source.load("nemo_rl/algorithms/utils.py", "masked_mean", torch=torch)
    path = "nemo_rl/algorithms/loss/loss_functions.py"
    kinds = SimpleNamespace(TOKEN_LEVEL="token", SEQUENCE_LEVEL="sequence")
    norms = SimpleNamespace(TOKENS=0, SEQUENCES=1, NONE=2)
    inputs = SimpleNamespace(LOGPROB="logprob")
    stubs = {"LossFunction": object, "LossType": kinds, "MetricNormalizer": norms, "torch": torch}
    stubs["LossInputType"] = inputs
    losses = source.load(
        path,
        "ClippedPGLossFn",
        masked_mean=tensors.masked_mean,
        calculate_kl=lambda logprobs, **_: torch.zeros_like(logprobs),
        **stubs,
    )
    settings = Settings(
        ratio_clip_min=0.2,
        ratio_clip_max=0.2,
        reference_policy_kl_penalty=0,
        token_level_loss=token_level,
        positive_example_nll_weight=likelihood,
    )
    loss_of = losses.ClippedPGLossFn(settings)

    def step(passes: Passes) -> None:
        tokens = torch.tensor(passes.summed(passes.own["response_mask"].sum()))
        for batch in passes:
            data = _shifted(batch) | {"rewards": batch["advantages"].sum(1)}
            loss, _ = loss_of(batch["log_probs"], data, torch.tensor(float(passes.samples)), tokens)
            (loss * passes.ranks).backward()

    return step


def nemo_by_pass(source: Source) -> Step:
    """NeMo-RL before counts of the step: `ClippedPGLossFn` of a pass / the passes (the policy worker)."""
    names = {"LossFunction": object, "torch": torch}
    path = "nemo_rl/algorithms"
    tensors = source.load(
        f"{path}/utils.py", "masked_mean", torch=torch, surpress_user_warnings=lambda function: function
    )
    losses = source.load(
        f"{path}/loss_functions.py", "ClippedPGLossFn", masked_mean=tensors.masked_mean, **names
    )
    loss_of = losses.ClippedPGLossFn(_clipped())

    def step(passes: Passes) -> None:
        for batch in passes:
            (loss_of(batch["logits"], _shifted(batch))[0] / passes.count).backward()

    return step


def nemo_by_step(source: Source) -> Step:
    """NeMo-RL's first counts of the step: `ClippedPGLossFn` by all ranks' tokens, × ranks."""
    kinds = SimpleNamespace(TOKEN_LEVEL="token", SEQUENCE_LEVEL="sequence")
    tensors = source.load("nemo_rl/algorithms/utils.py", "masked_mean", torch=torch)
    losses = source.load(
        "nemo_rl/algorithms/loss_functions.py",
        "ClippedPGLossFn",
        **{"LossFunction": object, "LossType": kinds, "torch": torch, "masked_mean": tensors.masked_mean},
    )
    loss_of = losses.ClippedPGLossFn(_clipped())

    def step(passes: Passes) -> None:
        tokens = torch.tensor(passes.summed(passes.own["response_mask"].sum()))
        for batch in passes:
            (loss_of(batch["logits"], _shifted(batch), tokens)[0] * passes.ranks).backward()

    return step


def nemo_distillation(source: Source) -> Step:
    """NeMo-RL's distillation over tokenizers with `dynamic_loss_scaling`: how it joins its two terms."""
    losses = source.load(
        "nemo_rl/algorithms/loss/loss_functions.py",
        "CrossTokenizerDistillationLossFn.__call__",
        torch=torch,
        next_token_accuracy=lambda *_, **__: torch.zeros(()),
    )

    class Terms:
        kd_loss_mode, dynamic_loss_scaling = "sum", True
        _compute_ce = staticmethod(
            lambda logits, batch, tokens: -(batch["log_probs"] * batch["response_mask"]).sum() / tokens
        )

        @staticmethod
        def _sum_kd(logits: Any, batch: Batch, teachers: Any, aligns: Any, tokens: Any, **_: Any) -> Any:
            apart = (batch["log_probs"] - batch["ref_log_prob"]).pow(2)
            return (apart * batch["response_mask"]).sum() / tokens, {}

    def step(passes: Passes) -> None:
        tokens = passes.summed(passes.own["response_mask"].sum())
        aligned = {0: Settings()}
        for batch in passes:
            data = Batch(batch | {"sample_mask": None})
            loss, _ = vars(losses)["__call__"](Terms(), data, None, tokens, None, None, {}, aligned)
            (loss * passes.ranks).backward()

    return step


def _clipped() -> dict[str, Any]:
    return {
        "ratio_clip_min": 0.2,
        "ratio_clip_max": 0.2,
        "ratio_clip_c": None,
        "reference_policy_kl_penalty": 0,
        "use_on_policy_kl_approximation": False,
        "use_importance_sampling_correction": False,
        "token_level_loss": True,
    }


def _shifted(batch: Batch) -> Batch:
    """Names the tensors as NeMo-RL does, each with a first place that its losses leave out."""
    return Batch(
        input_ids=batch["input_ids"],
        sample_mask=torch.ones(batch.batch_size),
        token_mask=_from_first(batch["response_mask"]),
        advantages=_from_first(batch["advantages"]),
        prev_logprobs=_from_first(batch["old_log_probs"]),
        generation_logprobs=_from_first(batch["old_log_probs"]),
        reference_policy_logprobs=_from_first(batch["ref_log_prob"]),
    )


def _from_first(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(tensor, (1, 0))
