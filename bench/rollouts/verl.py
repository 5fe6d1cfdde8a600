"""verl: its losses, and the passes of its FSDP engine, at a commit."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from rollouts.sources import Source
from rollouts.step import Batch, Passes, Settings, Step

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
CORE, ENGINE = "verl/trainer/ppo/core_algos.py", "verl/workers/engine/fsdp/transformer_impl.py"
TENSORS = "verl/utils/torch_functional.py"


def policy(source: Source, mode: str = "token-mean", losses: str = "verl/workers/utils/losses.py") -> Step:
    """The actor: `ppo_loss` by the engine."""
    settings = _actor(mode)
    settings["loss_scale_factor"] = 16 if mode.endswith("norm") else None
    functions = source.load(losses, "ppo_loss", **_losses(source))
    return _by_engine(source, lambda batch: functions.ppo_loss(settings, batch, batch))


def critic(source: Source, mode: str = "token-mean") -> Step:
    """The critic: `value_loss` by the engine."""
    settings = Settings(loss_agg_mode=mode, cliprange_value=0.5)
    functions = source.load("verl/workers/utils/losses.py", "value_loss", **_losses(source))
    return _by_engine(
        source, lambda batch: functions.value_loss(settings, {"values": batch["new_values"]}, batch)
    )


def supervised(source: Source, losses: str) -> Step:
    """Supervised fine-tuning: `sft_loss` by the engine."""
    functions = source.load(losses, "sft_loss", **_losses(source))
    return _by_engine(source, lambda batch: functions.sft_loss(Settings(), batch, batch))


def distillation(source: Source) -> Step:
    """Distillation without task rewards: `distillation_loss` by the engine, of a loss of each token."""

    def token_losses(model_output: Any, **_: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        return (model_output["ref_log_prob"] - model_output["log_probs"]).pow(2), {}

    settings = _actor("token-mean")
    wanted = Settings(distillation_loss=Settings(loss_mode="squares"))
    functions = source.load(
        "verl/trainer/distillation/losses.py",
        "distillation_loss",
        get_distillation_loss_fn=lambda _: token_losses,
        compute_distillation_loss_range=lambda **_: {},
        agg_loss=_core(source).agg_loss,
    )
    return _by_engine(source, lambda batch: functions.distillation_loss(settings, wanted, batch, batch))


def legacy(source: Source) -> Step:
    """The actor before the engine: `agg_loss` of each pass by the factor of `update_policy`, dp_actor.py."""
    loss_of, settings = _core(source).compute_policy_loss_vanilla, _actor("token-mean")

    def step(passes: Passes) -> None:
        for batch in passes:
            loss, _ = loss_of(
                old_log_prob=batch["old_log_probs"],
                log_prob=batch["log_probs"],
                advantages=batch["advantages"],
                response_mask=batch["response_mask"],
                config=settings,
            )
            (loss / passes.count).backward()

    return step


def aggregated(source: Source, mode: str) -> Step:
    """`agg_loss` alone with what the engine knows of the whole step."""
    functions = source.load(CORE, "agg_loss", verl_F=_tensors(source), torch=torch)

    def step(passes: Passes) -> None:
        for batch in passes:
            functions.agg_loss(
                -batch["log_probs"] * batch["advantages"],
                batch["response_mask"],
                mode,
                dp_size=passes.ranks,
                batch_num_tokens=passes.whole["response_mask"].sum(),
                global_batch_size=passes.samples,
                loss_scale_factor=16,
            ).backward()

    return step


def _actor(mode: str) -> Settings:
    return Settings(
        loss_agg_mode=mode, clip_ratio=0.2, clip_ratio_c=3.0, policy_loss={}, entropy_coeff=0.0,
        use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="mse", global_batch_info={},
    )  # fmt: skip


def _tensors(source: Source) -> SimpleNamespace:
    return source.load(TENSORS, "masked_sum", "masked_mean", torch=torch)


def _core(source: Source) -> SimpleNamespace:
    names = (
        "agg_loss",
        "compute_policy_loss_vanilla",
        "compute_value_loss",
        "kl_penalty",
        "kl_penalty_forward",
    )
    clip = source.load(TENSORS, "clip_by_value", torch=torch).clip_by_value
    stubs = {"verl_F": SimpleNamespace(**vars(_tensors(source)), clip_by_value=clip), "torch": torch}
    return source.load(CORE, *names, **stubs, AlgoConfig=type("AlgoConfig", (), {}))


def _losses(source: Source) -> dict[str, Any]:
    """The imports of the file of losses; rows are padded already, and a metric is a number."""
    core, tensors = _core(source), _tensors(source)

    class Metric(SimpleNamespace):
        from_dict = staticmethod(lambda metrics, **_: metrics)

    return {
        **vars(core),
        **vars(tensors),
        "torch": torch,
        "get_policy_loss_fn": lambda _: core.compute_policy_loss_vanilla,
        "no_padding_2_padding": lambda tensor, _: tensor,
        "AggregationType": SimpleNamespace(SUM="sum", MEAN="mean"),
        "Metric": Metric,
        "DatasetPadMode": SimpleNamespace(NO_PADDING="no_padding"),
        "tu": SimpleNamespace(get_non_tensor_data=lambda **_: "padded"),
    }


def _by_engine(source: Source, loss_of: Any) -> Step:
    """Takes the passes by the engine's own `forward_backward_batch`."""

    def step(passes: Passes) -> None:
        known = {"global_batch_size": passes.samples, "dp_size": passes.ranks, "batch_num_tokens": None}
        data = Batch(passes.own | known | {"loss_mask": passes.own["response_mask"]})

        class Engine:
            ulysses_sequence_parallel_size, scaler = 1, None
            get_data_parallel_group = staticmethod(lambda: None)
            get_data_parallel_size = staticmethod(lambda: passes.ranks)
            _gradient_sync_context = staticmethod(lambda **_: nullcontext())

            @staticmethod
            def forward_step(batch: Batch, **_: Any) -> Any:
                return loss_of(Batch(passes.forward(batch) | {name: data[name] for name in known}))

        engine = source.load(
            ENGINE,
            "FSDPEngine.forward_backward_batch",
            torch=_Torch(),
            nullcontext=nullcontext,
            get_device_id=lambda: "cpu",
            prepare_micro_batches=lambda **_: (passes.parts, None),
            postprocess_batch_func=lambda **_: None,
            tu=SimpleNamespace(
                assign_non_tensor=lambda data, **values: data.update(values),
                get_non_tensor_data=lambda default=None, **_: default,
            ),
        )
        engine.forward_backward_batch(Engine(), data, None)

    return step


class _Torch:
    """torch, whose sums over ranks are left out where there is one process."""

    def __getattr__(self, name: str) -> Any:
        if name == "distributed" and not torch.distributed.is_initialized():
            return SimpleNamespace(all_reduce=lambda *_, **__: None, ReduceOp=torch.distributed.ReduceOp)
        return getattr(torch, name)
