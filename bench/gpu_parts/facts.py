"""What the machine is, in its own words."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import torch

from gpu_parts.tools import CUDA
from isobatch.validate.ranks.facts import nccl_version

LIMIT_SECONDS = 60


def _said(*words: str) -> str | None:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout[:8000]
    except (OSError, subprocess.SubprocessError):
        return None


def run(small: bool) -> dict[str, Any]:
    """The driver's tables, torch's build, NCCL, processors and memory."""
    return {
        "nvidia_smi": _said("nvidia-smi", "-q"),
        "topology": _said("nvidia-smi", "topo", "-m"),
        "processors": _said("lscpu"),
        "memory": _said("free", "-g"),
        "gpus": torch.cuda.device_count(),
        "nccl": nccl_version() if CUDA else None,
        "build": torch.__config__.show(),
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "NCCL_"))
        },
    }
