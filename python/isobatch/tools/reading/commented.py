"""JSON with comments and trailing commas, as DeepSpeed's own reader (hjson) takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_STRING = r'"(?:\\.|[^"\\\n])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|#[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")
_DEEPSPEEDS = ("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization")


def without_comments(text: str) -> str:
    """The JSON that is left without `//`, `#` and `/* */`, and without commas before a closing bracket; texts stay as they are.

    >>> without_comments('{"a": "//x", // one\\n "b": [1, 2,], }')
    '{"a": "//x",  \\n "b": [1, 2] }'
    """
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    return _COMMA.sub(lambda found: found[1] or "", plain)


def is_deepspeeds(data: Any) -> bool:
    """Whether a table is a configuration of DeepSpeed, which may have comments."""
    return isinstance(data, Mapping) and any(key in data for key in _DEEPSPEEDS)
