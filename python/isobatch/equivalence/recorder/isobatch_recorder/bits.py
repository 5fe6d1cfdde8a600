"""Writes the SHA of the weights after each optimizer step, and changes nothing in the script."""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from .record import Recorder
from .sketch import whole

_CHUNKS = "isobatch.elastic.equal_bits"


def install(recorder: Recorder) -> None:
    """Hashes an optimizer's parameters after each step; the script ends after the last one."""
    lines: list[str] = []

    def write(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                entries = whole(parameter).cpu().contiguous().reshape(-1)
                digest.update(entries.view(torch.uint8).numpy().data)
        module = sys.modules.get(_CHUNKS)
        in_chunks = module is not None and module.EqualBits.in_use
        lines.append(f"{digest.hexdigest()} {'chunks' if in_chunks else 'plain'}\n")
        if optimizer not in recorder.optimizers:
            recorder.optimizers.append(optimizer)
        is_over = len(lines) >= recorder.settings["steps"] * len(recorder.optimizers)
        if is_over and optimizer is recorder.optimizers[-1]:
            recorder.write(f"bits-{recorder.rank}.txt", "".join(lines))
            recorder.end("bits-{rank}.txt")

    register_optimizer_step_post_hook(write)
