"""Megatron."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding
from isobatch.doctor.general import stops


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    yield from stops(case, "megatron/core/num_microbatches_calculator.py: ConstantNumMicroBatchesCalculator")
    if case.found.settings.get("clip_grad") is None:
        yield Finding(
            "gradients are clipped at norm 1",
            "--clip-grad is not there, and 1.0 is its default",
            "megatron/training/arguments.py: --clip-grad",
            "--clip-grad 0.0  (for none)",
        )
    if (
        case.found.settings.get("adam_beta2") is None
        and case.found.settings.get("optimizer", "adam") == "adam"
    ):
        yield Finding(
            "beta2 is 0.999",
            "--adam-beta2 is not there",
            "megatron/training/arguments.py: --adam-beta2",
            "--adam-beta2 0.95  (as most published runs)",
        )
    yield from _ramps(case)


def _ramps(case: Case) -> Iterator[Finding]:
    if case.at("step_batch_size_schedule") is not None and case.at("global_batch_size") is not None:
        yield Finding(
            "the run stops: --step-batch-size-schedule and --global-batch-size are both given",
            "the schedule has the full batch at its end",
            "megatron/training/arguments.py since core 0.18",
            "remove --global-batch-size",
        )
    if case.at("rampup_batch_size") is None:
        return
    yield Finding(
        "since core 0.18 the batch does not ramp: --rampup-batch-size has no effect",
        "the calculator that used it was replaced",
        "NVIDIA/Megatron-LM#4411",
        '--step-batch-size-schedule "0:START TOKENS:BATCH ..."',
    )
    if case.at("train_iters") is not None:
        yield Finding(
            "before core 0.18 the run stops: a batch ramp needs --train-samples",
            "--train-iters is given: expected no batch-size rampup for iteration-based training",
            "megatron/training/arguments.py at core_v0.16.0",
            "--train-samples, --lr-decay-samples and --lr-warmup-samples: isobatch plan --from ... --to megatron writes them",
        )
