"""What the device can do at best: matrix products in each format, copies in its memory, to and from the host, and a launch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from gpu_parts.tools import CUDA, DEVICE, seconds_of
from isobatch.diagnosis.tensors import float32_as

LIMIT_SECONDS = 120


def run(small: bool) -> dict[str, Any]:
    """TFLOP/s, GB/s (1e9 bytes) and microseconds."""
    n, repeats = (256, 3) if small else (8192, 10)
    products = {}
    for name, dtype in (
        ("fp32", torch.float32),
        ("tf32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
    ):
        a = torch.randn(n, n, device=DEVICE).to(dtype)
        out = torch.empty_like(a)
        with float32_as("tf32" if name == "tf32" else "ieee") if dtype == torch.float32 else nullcontext():
            seconds = seconds_of(
                lambda a=a, out=out: [torch.matmul(a, a, out=out) for _ in range(5)], repeats
            )
        products[name] = 5 * 2 * n**3 / seconds / 1e12
    size = 1 << 24 if small else 4 << 30
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * size / seconds_of(lambda: target.copy_(source), repeats) / 1e9
    host = torch.empty(min(size, 1 << 30), dtype=torch.uint8, pin_memory=CUDA)
    part = source[: host.numel()]
    one = torch.zeros(1, device=DEVICE)
    return {
        "matmul_tflops": products,
        "copy_gb_s": copied,
        "to_device_gb_s": host.numel() / seconds_of(lambda: part.copy_(host), repeats) / 1e9,
        "from_device_gb_s": host.numel() / seconds_of(lambda: host.copy_(part), repeats) / 1e9,
        "launch_us": seconds_of(lambda: [one.add_(1) for _ in range(1000)], repeats) * 1e3,
    }
