"""The tests that need a GPU, `pytest -m gpu`: those of function first, then those of memory alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from gpu_parts.tools import command

LIMIT_SECONDS = 590
ROOT = Path(__file__).parents[2]


def run(small: bool) -> dict[str, Any]:
    """How many passed, failed and were skipped, each with its reason."""
    found: dict[str, Any] = {"wrong": []}
    for name, chosen in (("function", "not memory and not fits"), ("memory", "memory or fits")):
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "gpu",
            "-k",
            chosen,
            "-p",
            "no:cacheprovider",
            "-rfEs",
            "tests/validate/test_gpu.py",
        ]
        code, said = command(words, 290, ROOT)
        counts = {
            word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", said)
        }
        reasons = re.findall(r"^(?:SKIPPED|FAILED|ERROR).*", said, re.MULTILINE)
        found[name] = {"exit_code": code, "counts": counts, "lines": reasons}
        if code or not counts:
            found["wrong"].append(f"{name}: exit code {code}: {said[-800:]}")
    return found
