"""Number formats: those of a recipe, as torch's autocast has them, and the steps between two numbers of a format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

AUTOCAST: dict[str | None, torch.dtype | None] = {
    None: None,
    "fp32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
"""The recipe's precisions, and the format of autocast for each; None where there is none."""


def ulp(number: Any) -> float:
    """The unit in the last place of 1, in the format of a number: a tensor's is mostly float32.

    >>> ulp(0.1) == 2**-52, ulp(torch.tensor(0.1)) == 2**-23
    (True, True)
    """
    return torch.finfo(number.dtype).eps if isinstance(number, Tensor) else 2.0**-52


@contextlib.contextmanager
def float32_as(mode: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Matrix products of float32 tensors in full precision, or in TensorFloat-32, which rounds to 10 bits."""
    backends: Any = torch.backends
    # From torch 2.9 on; it refuses to tell the older names once this is set.
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        switches = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
        name: str = "fp32_precision"
        value: str | bool = mode
    else:
        switches, name, value = [backends.cuda.matmul, backends.cudnn], "allow_tf32", mode == "tf32"
    before = [getattr(switch, name) for switch in switches]
    for switch in switches:
        setattr(switch, name, value)
    try:
        yield
    finally:
        for switch, old in zip(switches, before, strict=True):
            setattr(switch, name, old)
