"""Trainers on Megatron-core's schedule and on a backend beside it: slime, miles, AReaL, at a commit.

Megatron-core itself is not started. What it does with a loss is repeated here: the schedule divides a loss by
the passes, and data-parallel ranks are averaged; with `calculate_per_token_loss` both are left out, and the
summed gradient is divided by the tokens of all ranks.
"""

from types import SimpleNamespace
from typing import Any

import torch

from rollouts.sources import Source
from rollouts.step import Batch, Passes, Settings, Step


def slime(source: Source, *, per_token: bool = True, counts_step: bool = False) -> Step:
    """slime's `loss_function` under Megatron; `counts_step`: it is given the samples of the step."""
    path = "slime/backends/megatron_utils"
    state: dict[str, int] = {}
    parallel = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1,
        get_data_parallel_world_size=lambda **_: state["ranks"],
    )
    means = source.load(f"{path}/cp_utils.py", "get_sum_of_sample_mean", torch=torch, mpu=parallel)
    losses = source.load(
        f"{path}/loss.py",
        "loss_function",
        torch=torch,
        mpu=parallel,
        get_sum_of_sample_mean=means.get_sum_of_sample_mean,
        policy_loss_function=lambda args, batch, logits, sum_of_sample_mean: _objective(
            batch, sum_of_sample_mean
        ),
    )

    def step(passes: Passes) -> None:
        state["ranks"] = passes.ranks
        args = Settings(
            loss_type="policy_loss", calculate_per_token_loss=per_token, global_batch_size=passes.samples
        )
        for batch in passes:
            further = [passes.samples] if counts_step else []
            loss, _, _ = losses.loss_function(args, _flat(batch), passes.count, *further, batch["logits"])
            (loss if per_token else loss / passes.count).backward()
        if per_token:
            passes.scale(passes.ranks / passes.summed(passes.own["response_mask"].sum()))

    return step


def miles(source: Source, *, per_token: bool) -> Step:
    """miles' `loss_function` by the FSDP backend, which calls `backward` on its first result."""
    path, state = "miles/backends/training_utils", SimpleNamespace(cp=SimpleNamespace(size=1))
    means = source.load(
        f"{path}/cp_utils.py", "get_sum_of_sample_mean", torch=torch, get_parallel_state=lambda: state
    )
    losses = source.load(
        f"{path}/loss.py",
        "loss_function",
        torch=torch,
        get_parallel_state=lambda: state,
        get_sum_of_sample_mean=means.get_sum_of_sample_mean,
        get_loss_function=lambda _: lambda args, batch, logits, mean: _objective(batch, mean),
        is_multi_lora_enabled=lambda _: False,
    )

    def step(passes: Passes) -> None:
        state.intra_dp = SimpleNamespace(size=passes.ranks)
        args = Settings(calculate_per_token_loss=per_token, global_batch_size=passes.samples)
        args |= {"use_dynamic_global_batch_size": False, "recompute_loss_function": False}
        for batch in passes:
            losses.loss_function(args, _flat(batch), passes.count, batch["logits"])[0].backward()

    return step


def areal(source: Source, *, level: str = "token", engine: str = "megatron", by_passes: bool = True) -> Step:
    """AReaL's actor: `ppo_actor_loss_fn` by a pass's share of all ranks' tokens.

    `by_passes`: the Megatron engine multiplies by the passes, by which the schedule divides.
    """
    losses = source.load(
        "areal/utils/functional/functional.py",
        *("ppo_actor_loss_fn", "_compute_sequence_level_ratio_and_advantages"),
        torch=torch,
    )
    counts = source.load(
        "areal/engine/core/train_engine.py",
        "compute_total_loss_weight",
        torch=torch,
        dist=SimpleNamespace(all_reduce=_summed),
    )

    def weight(part: Batch) -> torch.Tensor:
        return part["response_mask"].count_nonzero()

    def step(passes: Passes) -> None:
        total = counts.compute_total_loss_weight(SimpleNamespace(mbs=passes.parts), weight, None)
        of_schedule = 1.0 if engine == "fsdp" else (passes.count if by_passes else 1.0) / passes.count
        for batch in passes:
            loss, _ = losses.ppo_actor_loss_fn(
                batch["log_probs"],
                batch["old_log_probs"],
                batch["old_log_probs"],
                batch["advantages"],
                0.2,
                batch["response_mask"].bool(),
                importance_sampling_level=level,
            )
            (loss * weight(batch) / total * passes.ranks * of_schedule).backward()

    return step


def _objective(batch: Batch, sum_of_sample_mean: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A policy-gradient loss of each token, joined by the trainer's own mean."""
    losses = -batch["flat_log_probs"] * batch["flat_advantages"]
    loss = sum_of_sample_mean(losses)
    return loss, {"loss": loss.detach()}


def _flat(batch: Batch) -> Batch:
    """Lays responses out one after the other, as slime's and miles' batches have them."""
    lengths = [batch["log_probs"].shape[1]] * len(batch["log_probs"])
    return Batch(
        loss_masks=list(batch["response_mask"]),
        response_lengths=lengths,
        total_lengths=lengths,
        rollout_mask_sums=[mask.sum() for mask in batch["response_mask"]],
        flat_log_probs=batch["log_probs"].reshape(-1),
        flat_advantages=batch["advantages"].reshape(-1),
    )


def _summed(tensor: torch.Tensor, **_: Any) -> None:
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)
