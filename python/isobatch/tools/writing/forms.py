"""Comments, and words of a shell. Names of others go in quotes wherever they need to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from isobatch.files.formats import scalar


def commented(text: str, mark: str = "#") -> str:
    """A comment of any text: no line of it leaves the comment."""
    return "\n".join(
        f"{mark} {line}".rstrip() for line in re.split(r"[\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+", text)
    )


def words(settings: Mapping[str, Any], *, dashes: bool = False) -> Iterator[list[str]]:
    """Each setting as the words of a command line: True is a flag alone, False none at all.

    >>> list(words({"lr": 2e-05, "bf16": True, "kwargs": {"power": 2.0}, "betas": [0.9, 0.95]}))
    [['--lr', '2.0e-05'], ['--bf16'], ['--kwargs', '{"power": 2.0}'], ['--betas', '0.9', '0.95']]
    """
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-') if dashes else name}"
        if value is True:
            yield [flag]
        elif isinstance(value, Mapping):
            yield [flag, json.dumps(value)]
        elif isinstance(value, list | tuple):
            yield [flag, *(item if isinstance(item, str) else scalar(item) for item in value)]
        elif value is not False and value is not None:
            yield [flag, value if isinstance(value, str) else scalar(value)]


def shell(parts: list[list[str]]) -> str:
    """A command over several lines, every word quoted where it needs to be.

    >>> print(shell([["torchrun", "my script.py"], ["--name", "$(rm -rf x)"]]))
    torchrun 'my script.py' \\
      --name '$(rm -rf x)'
    """
    return " \\\n  ".join(shlex.join(part) for part in parts)
