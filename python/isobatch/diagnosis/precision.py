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
    """Matrix products of float32 tensors in full precision, or in TensorFloat-32, which rounds to 10 bits.

    torch has switches of two generations, from 2.9 on, and torch.compile asks the older ones, which raise where the newer ones say
    something else: so both are set, and put back.
    """
    before = [(thing, name, _read(thing, name)) for thing, name in _SWITCHES]
    try:
        products = torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer ones were set apart from it: it is torch's default
        products = "highest"
    try:
        torch.set_float32_matmul_precision("highest" if mode == "ieee" else "high")
        for thing, name in _SWITCHES:
            if _read(thing, name) is not None:
                setattr(thing, name, mode if name == "fp32_precision" else mode == "tf32")
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        for thing, name, value in before:
            if value is not None:
                setattr(thing, name, value)


_BACKENDS: Any = torch.backends
_SWITCHES: list[tuple[Any, str]] = [
    (_BACKENDS.cudnn, "allow_tf32"),
    (_BACKENDS.cuda.matmul, "fp32_precision"),
    *((getattr(_BACKENDS.cudnn, name, None), "fp32_precision") for name in ("conv", "rnn")),
]
"""The older one first: it sets the newer ones, too."""


def _read(thing: Any, name: str) -> Any:
    """A switch; None where this torch has none of the name, or refuses to tell, since the other generation was set."""
    try:
        return getattr(thing, name, None)
    except RuntimeError:
        return None
