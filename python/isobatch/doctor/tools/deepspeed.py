"""DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.doctor.finding import Case, Finding


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    autos = [key for key in _strings(case.found.settings) if key[1] == "auto"]
    if autos:
        yield Finding(
            f'{", ".join(key for key, _ in autos)}: "auto"',
            "another program fills these in when the run starts; alone DeepSpeed refuses them",
            "transformers, integrations/deepspeed.py: HfTrainerDeepSpeedConfig",
            "write the numbers down: isobatch plan --to deepspeed",
        )
    if case.at("scheduler", "type") and case.at("scheduler", "params", "warmup_type") != "linear":
        yield Finding(
            "the warmup is logarithmic",
            'warmup_type is "log" unless it is named',
            "deepspeed, runtime/lr_schedules.py: WARMUP_LOG_RATE",
            '"warmup_type": "linear"',
        )
    if case.at("scheduler", "type") in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        # The cosine itself counts from the step before, so that only the warmup of WarmupCosineLR is late.
        late = "the warmup" if case.at("scheduler", "type") == "WarmupCosineLR" else "the learning rate"
        yield Finding(
            f"{late} is one step late",
            "its schedulers start at step 0, and are asked once before the first step",
            "deepspeed, runtime/lr_schedules.py: WarmupLR.get_lr; measured in bench/results/exports.md",
            "leave it, or drive it by isobatch.integrations.torch.PlanLR",
        )
    if (
        str(case.at("optimizer", "type")).lower() == "adam"
        and case.at("optimizer", "params", "adam_w_mode") is not False
    ):
        yield Finding(
            "Adam is AdamW",
            "adam_w_mode is on unless it is switched off",
            "deepspeed, runtime/config.py: ADAM_W_MODE_DEFAULT",
            '"adam_w_mode": false',
        )
    total, micro, steps = (
        case.at(key)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    replicas = case.replicas
    if all(type(value) is int for value in (total, micro, steps)) and total != micro * steps * replicas:
        yield Finding(
            f"DeepSpeed stops: {total} samples are not {micro} × {steps} × {replicas} replicas",
            "the three numbers must multiply out on these GPUs",
            "deepspeed, runtime/config.py: _batch_assertion",
            f'"train_batch_size": {micro * steps * replicas}, or a gradient_accumulation_steps that fits',
        )


def _strings(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        at = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _strings(value, at)
        elif isinstance(value, str):
            yield at, value
