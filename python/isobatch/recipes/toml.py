"""TOML text: Python's library reads it, and does not write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(fields: Mapping[str, Any]) -> str:
    """A table as TOML; values that are None are left out.

    >>> print(toml_of({"lr": 1e-5, "betas": (0.9, 0.95), "duration": "90ep", "batch_norm": True}), end="")
    lr = 1e-05
    betas = [0.9, 0.95]
    duration = "90ep"
    batch_norm = true
    """
    return "".join(f"{_key(k)} = {_value(v)}\n" for k, v in fields.items() if v is not None)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(it) for it in value)}]"
    return repr(value).lower()
