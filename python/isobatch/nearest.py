"""What an unknown name may have meant: another tool's name for the same thing, or a slip of the finger."""

from __future__ import annotations

from collections.abc import Iterable

OURS = {
    "allocation": "cluster",
    "base_lr": "lr",
    "batch": "effective_batch",
    "batch_size": "effective_batch",
    "clip_grad": "clip_norm",
    "dp": "data_parallel",
    "dp_size": "data_parallel",
    "epochs": "duration",
    "global_batch": "effective_batch",
    "global_batch_size": "effective_batch",
    "gpus_per_host": "gpus_per_node",
    "gradient_accumulation": "accumulation",
    "gradient_accumulation_steps": "accumulation",
    "gradient_clip_val": "clip_norm",
    "grad_clip": "clip_norm",
    "hosts": "nodes",
    "iterations": "total_steps",
    "learning_rate": "lr",
    "local_batch_size": "micro_batch",
    "lr_scheduler": "schedule",
    "lr_scheduler_type": "schedule",
    "max_duration": "duration",
    "max_epochs": "duration",
    "max_grad_norm": "clip_norm",
    "max_lr": "lr",
    "max_steps": "duration",
    "micro_batch_size": "micro_batch",
    "nnodes": "nodes",
    "nproc_per_node": "gpus_per_node",
    "num_epochs": "duration",
    "num_gpus": "gpus",
    "num_nodes": "nodes",
    "num_processes": "gpus",
    "num_replicas": "data_parallel",
    "num_samples": "dataset_size",
    "num_train_epochs": "duration",
    "num_warmup_steps": "warmup",
    "optim": "optimizer",
    "peak_lr": "lr",
    "per_device_batch_size": "batch_per_gpu",
    "per_device_train_batch_size": "batch_per_gpu",
    "per_gpu_train_batch_size": "batch_per_gpu",
    "scaling_rule": "rule",
    "sequence_length": "seq_len",
    "max_seq_length": "seq_len",
    "step_size": "duration",
    "tensor_model_parallel_size": "model_parallel",
    "train_batch_size": "effective_batch",
    "train_iters": "duration",
    "train_micro_batch_size_per_gpu": "micro_batch",
    "train_samples": "duration",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
    "wd": "weight_decay",
}
"""Names of other tools, and ours for the same thing."""


def nearest(name: str, known: Iterable[str], alike: float = 0.7) -> str | None:
    """The known name that an unknown one means, or None.

    Args:
        name: what was typed.
        known: the names that are known here.
        alike: how alike two names must be, from 0 to 1.

    >>> nearest("optimiser", ["optimizer", "lr"]), nearest("per_device_train_batch_size", ["batch_per_gpu", "lr"])
    ('optimizer', 'batch_per_gpu')
    >>> nearest("--micro-batchs", ["--micro-batches"]), nearest("zebra", ["lr"])
    ('--micro-batches', None)
    """
    import difflib

    every = list(dict.fromkeys(known))
    plain = name.lower().strip().lstrip("-").replace("-", "_").replace(" ", "_")
    ours = OURS.get(plain)
    for candidate in every:
        if candidate.lstrip("-").replace("-", "_").lower() in (ours, plain):
            return candidate
    # The comparison takes the product of the lengths.
    close = difflib.get_close_matches(name[:100], every, 1, alike)
    return close[0] if close else None
