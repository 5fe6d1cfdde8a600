"""Numbers of a split among the flags of argparse: kept as typed, or replaced."""

from __future__ import annotations

import functools
import re
from types import ModuleType
from typing import Any

from . import installed

_NUMBERS = re.compile(r"bs|\w*batch\w*|(grad(ient)?_?)?accum\w*", re.IGNORECASE)
_NOT_OF_TRAINING = re.compile(r"eval|valid|test|infer|sampl|number|num_batch", re.IGNORECASE)


def patch(module: ModuleType) -> None:
    """Watches the parsing of a command line, once torch is imported."""
    parser: Any = module.ArgumentParser
    parse = parser.parse_known_args

    @functools.wraps(parse)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse(self, *args, **kwargs)
        for recorder in installed:
            numbers = {
                name: value
                for name, value in vars(namespace).items()
                if type(value) is int and _NUMBERS.fullmatch(name) and not _NOT_OF_TRAINING.search(name)
            }
            if numbers:
                recorder.typed.made(namespace, "flags", numbers=numbers)
            for name, number in recorder.settings["flags"].items():
                if name in numbers:
                    setattr(namespace, name, recorder.settings["split"][number])
        return namespace, rest

    parser.parse_known_args = parse_known_args
