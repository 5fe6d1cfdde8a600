"""What a tool does by itself, without a word in the file: a function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isobatch.doctor.finding import Case, Finding
from isobatch.tools.reading.common import share
from isobatch.words import count, real


def check(case: Case) -> Iterator[Finding]:
    """The tool's own."""
    yield from _TOOLS.get(case.found.tool, _nothing)(case)


def _nothing(case: Case) -> Iterator[Finding]:  # noqa: ARG001
    return iter(())


def _at(case: Case, *path: str) -> Any:
    value: Any = case.found.settings
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _trainer(case: Case) -> Iterator[Finding]:
    """transformers' Trainer, and what is built on it."""
    steps, ratio = _number(_at(case, "max_steps")), _at(case, "warmup_ratio")
    for epochs in ("num_train_epochs", "num_epochs"):
        if steps > 0 and _at(case, epochs) is not None:
            yield Finding(
                f"{epochs} {_at(case, epochs)} has no effect",
                "max_steps wins over it",
                "transformers TrainingArguments",
                f"remove {epochs}",
            )
    if ratio and _number(_at(case, "warmup_steps")) > 0:
        yield Finding(
            f"warmup_ratio {ratio} has no effect",
            "warmup_steps wins over it",
            "transformers TrainingArguments",
            "remove warmup_ratio",
        )
    elif ratio and case.found.tool == "transformers":
        yield Finding(
            "warmup_ratio is unknown to transformers 5",
            "a warmup_steps below 1 is the ratio there",
            "huggingface/transformers, TrainingArguments",
            f"warmup_steps: {ratio}",
        )
    if _at(case, "lr_scheduler_type") == "constant" and (ratio or _at(case, "warmup_steps")):
        yield Finding(
            "the warmup has no effect",
            "the scheduler constant has none",
            "transformers get_scheduler",
            "lr_scheduler_type: constant_with_warmup",
        )
    if _at(case, "max_grad_norm") is None:
        yield Finding(
            "gradients are clipped at norm 1",
            "max_grad_norm is not in the file, and 1.0 is its default",
            "transformers TrainingArguments",
            "max_grad_norm: 0.0  (for none)",
        )
    if _at(case, "average_tokens_across_devices") is False and case.gpus > 1:
        yield Finding(
            "samples on a GPU with few tokens weigh more: a mean of means",
            "average_tokens_across_devices is off: each GPU divides by its own tokens",
            "huggingface/transformers#34242",
            "average_tokens_across_devices: true",
        )
    elif (case.fields.get("accumulation") or 1) > 1:
        yield Finding(
            "before transformers 4.46 a step under accumulation is a mean of means: micro-batches with few tokens weigh more",
            f"{case.key('accumulation')} is {case.fields['accumulation']}, and older Trainers divide each micro-batch by its own tokens",
            "huggingface/transformers#34191",
            "transformers>=4.46",
        )
    if _at(case, "auto_find_batch_size"):
        yield Finding(
            "the batch may halve during the run",
            "auto_find_batch_size retries with a smaller one",
            "huggingface/transformers#33281",
            "auto_find_batch_size: false",
        )


def _accelerate(case: Case) -> Iterator[Finding]:
    if case.gpus > 1:
        yield Finding(
            f"a scheduler that accelerator.prepare wraps takes {case.gpus} steps for each step of the optimizer",
            "Accelerate steps it once for every process",
            "huggingface/accelerate#2926, huggingface/diffusers#3954",
            f"build it for total_steps × {case.gpus}, or Accelerator(step_scheduler_with_optimizer=False) and step it yourself",
        )
    if _at(case, "gradient_accumulation_steps") is not None:
        yield Finding(
            "gradient_accumulation_steps in this file is rejected",
            "the launcher's configuration has no such key",
            "huggingface/accelerate, config_args.py",
            "export ACCELERATE_GRADIENT_ACCUMULATION_STEPS=...",
        )
    written = _at(case, "num_processes")
    if written is not None and written != case.gpus:
        yield Finding(
            f"{written} processes start, not {case.gpus}",
            "num_processes counts all machines together",
            "",
            f"num_processes: {case.gpus}",
        )


def _deepspeed(case: Case) -> Iterator[Finding]:
    autos = [key for key in _strings(case.found.settings) if key[1] == "auto"]
    if autos:
        yield Finding(
            f'{", ".join(key for key, _ in autos)}: "auto"',
            "another program fills these in when the run starts; alone DeepSpeed refuses them",
            "huggingface/transformers, DeepSpeed integration",
            "write the numbers down: isobatch plan --to deepspeed",
        )
    if _at(case, "scheduler", "type") and _at(case, "scheduler", "params", "warmup_type") != "linear":
        yield Finding(
            "the warmup is logarithmic",
            'warmup_type is "log" unless it is named',
            "DeepSpeed, lr_schedules.py",
            '"warmup_type": "linear"',
        )
    if (
        str(_at(case, "optimizer", "type")).lower() == "adam"
        and _at(case, "optimizer", "params", "adam_w_mode") is not False
    ):
        yield Finding(
            "Adam is AdamW",
            "adam_w_mode is on unless it is switched off",
            "DeepSpeed, FusedAdam",
            '"adam_w_mode": false',
        )
    total, micro, steps = (
        _at(case, key)
        for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    replicas = case.gpus // (case.fields.get("model_parallel") or 1)
    if all(type(value) is int for value in (total, micro, steps)) and total != micro * steps * replicas:
        yield Finding(
            f"DeepSpeed stops: {total} samples are not {micro} × {steps} × {replicas} replicas",
            "the three numbers must multiply out on these GPUs",
            "DeepSpeed, runtime/config.py",
            f'"train_batch_size": {micro * steps * replicas}, or a gradient_accumulation_steps that fits',
        )


def _strings(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        at = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _strings(value, at)
        elif isinstance(value, str):
            yield at, value


def _global(case: Case) -> Iterator[Finding]:
    """Megatron, torchtitan: a global batch that the GPUs must divide."""
    batch, micro = (
        case.fields.get("effective_batch"),
        case.fields.get("micro_batch") or case.fields.get("batch_per_gpu"),
    )
    replicas = case.gpus // (case.fields.get("model_parallel") or 1)
    if batch and micro and replicas and batch % (micro * replicas):
        yield Finding(
            f"the run stops: {count(batch)} samples are no multiple of {micro} × {replicas} replicas",
            f"{case.key('effective_batch')} must be a multiple of the micro-batch times the replicas",
            "Megatron, num_microbatches_calculator.py"
            if case.found.tool == "megatron"
            else "torchtitan, train.py",
            "isobatch plan --from lists the micro-batches and batches that fit",
        )


def _megatron(case: Case) -> Iterator[Finding]:
    yield from _global(case)
    if case.found.settings.get("clip_grad") is None:
        yield Finding(
            "gradients are clipped at norm 1",
            "--clip-grad is not there, and 1.0 is its default",
            "Megatron, arguments.py",
            "--clip-grad 0.0  (for none)",
        )
    if (
        case.found.settings.get("adam_beta2") is None
        and case.found.settings.get("optimizer", "adam") == "adam"
    ):
        yield Finding(
            "beta2 is 0.999",
            "--adam-beta2 is not there",
            "Megatron, arguments.py",
            "--adam-beta2 0.95  (as most published runs)",
        )


def _torchtitan(case: Case) -> Iterator[Finding]:
    yield from _global(case)
    yield Finding(
        "the warmup is one step ahead",
        "torchtitan computes (step + 1) / warmup_steps, so that no step is at 0",
        "torchtitan, components/lr_scheduler.py",
    )


def _lightning(case: Case) -> Iterator[Finding]:
    if _at(case, "lr_scheduler") is not None:
        yield Finding(
            "the scheduler moves once an epoch",
            "LightningCLI leaves interval at epoch",
            "Lightning, LightningCLI.configure_optimizers",
            'return {"scheduler": ..., "interval": "step"} from configure_optimizers',
        )
    trainer = _at(case, "trainer") or {}
    if _number(trainer.get("max_steps")) > 0 and trainer.get("max_epochs") is not None:
        yield Finding(
            "the run ends at max_steps or max_epochs, whichever is first",
            "both are given",
            "Lightning, Trainer",
            "remove one of them",
        )
    if trainer.get("max_steps") is None and trainer.get("max_epochs") is None:
        yield Finding(
            "the run takes 1,000 epochs",
            "neither max_steps nor max_epochs is given",
            "Lightning, Trainer",
            "trainer.max_epochs: ...",
        )
    if (case.fields.get("accumulation") or 1) > 1:
        yield Finding(
            "the last step of an epoch with fewer micro-batches is divided by all of accumulate_grad_batches",
            "Lightning divides each loss by accumulate_grad_batches",
            "Lightning-AI/pytorch-lightning#19987",
            "drop_last=True, or a dataset that divides",
        )


def _ultralytics(case: Case) -> Iterator[Finding]:
    settings = case.found.settings
    batch, nominal = settings.get("batch", 16), settings.get("nbs", 64)
    if settings.get("optimizer", "auto") == "auto":
        yield Finding(
            "lr0 and momentum have no effect",
            'optimizer "auto" chooses them by the number of steps',
            "ultralytics, trainer.py",
            "optimizer: SGD  (or AdamW)",
        )
    if type(batch) is int and type(nominal) is int and batch > 0:
        accumulation = max(round(nominal / batch), 1)
        yield Finding(
            f"a step has {batch * accumulation} samples, in {accumulation} batches of {batch}",
            f"ultralytics accumulates to about nbs {nominal}",
            "ultralytics, trainer.py",
        )
        if batch % case.gpus:
            yield Finding(
                f"a batch has {batch // case.gpus * case.gpus} samples, not {batch}",
                f"each of {case.gpus} GPUs takes {batch} // {case.gpus}",
                "ultralytics, trainer.py",
                f"batch: {-(-batch // case.gpus) * case.gpus}",
            )
        if batch * accumulation != nominal:
            decay = settings.get("weight_decay", 0.0005)
            yield Finding(
                f"weight_decay is {real(decay * batch * accumulation / nominal)}, not {real(decay)}",
                "ultralytics multiplies it by batch × accumulation / nbs",
                "ultralytics, trainer.py",
                f"nbs: {batch * accumulation}",
            )


def _detectron2(case: Case) -> Iterator[Finding]:
    workers = _at(case, "SOLVER", "REFERENCE_WORLD_SIZE")
    lr, batch = case.fields.get("lr"), case.fields.get("effective_batch")
    if type(workers) is int and workers > 0 and workers != case.gpus and lr and batch:
        k = case.gpus / workers
        yield Finding(
            f"a step has {count(batch * k)} samples at learning rate {real(lr * k)}",
            f"REFERENCE_WORLD_SIZE {workers} makes detectron2 rescale batch, learning rate and steps by {k:g}",
            "detectron2, DefaultTrainer.auto_scale_workers",
            f"SOLVER.REFERENCE_WORLD_SIZE: 0  (to keep {batch})",
        )
    elif not workers and batch and batch % case.gpus:
        yield Finding(
            f"detectron2 stops: {batch} images are no multiple of {case.gpus} GPUs",
            "IMS_PER_BATCH is split over the GPUs",
            "detectron2, build_batch_data_loader",
            f"SOLVER.IMS_PER_BATCH: {max(1, batch // case.gpus) * case.gpus}",
        )


def _mmengine(case: Case) -> Iterator[Finding]:
    base, enabled = _at(case, "auto_scale_lr", "base_batch_size"), _at(case, "auto_scale_lr", "enable")
    lr = case.fields.get("lr")
    if type(base) is int and case.batch is not None and base != case.batch and lr:
        scaled = f"{real(lr * case.batch / base)} with --auto-scale-lr"
        yield Finding(
            f"the learning rate is {scaled if enabled else real(lr) + ', and ' + scaled}",
            f"base_batch_size is {base}, a step here has {case.batch}; mmengine scales linearly, whatever the optimizer",
            "mmengine, Runner.scale_lr; open-mmlab/mmdetection#3800",
            f"optim_wrapper.optimizer.lr = {real(lr * case.batch / base)}",
        )


def _axolotl(case: Case) -> Iterator[Finding]:
    yield from _trainer(case)
    if _at(case, "warmup_steps") is None and _at(case, "warmup_ratio") is None:
        yield Finding(
            f"the warmup is {share(0.03)} of the steps, at most 100",
            "neither warmup_steps nor warmup_ratio is given",
            "axolotl, builders",
            "warmup_steps: 0  (for none)",
        )


_TOOLS: dict[str, Callable[[Case], Iterator[Finding]]] = {
    "transformers": _trainer,
    "checkpoint": _trainer,
    "llama_factory": _trainer,
    "axolotl": _axolotl,
    "accelerate": _accelerate,
    "deepspeed": _deepspeed,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "lightning": _lightning,
    "ultralytics": _ultralytics,
    "detectron2": _detectron2,
    "mmengine": _mmengine,
}
