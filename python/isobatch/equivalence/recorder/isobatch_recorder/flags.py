"""Numbers of a split among the flags of argparse and jsonargparse: kept as typed, or replaced."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from . import installed

_NUMBERS = re.compile(r"bs|\w*batch\w*|(grad(ient)?_?)?accum\w*|(n|num)?_?(devices|gpus)", re.IGNORECASE)
_NOT_OF_TRAINING = re.compile(r"eval|valid|test|infer|sampl|number|num_batch", re.IGNORECASE)


def patch(module: ModuleType) -> None:
    """Watches the parsing of a command line, once torch is imported."""
    parser: Any = module.ArgumentParser
    parse = parser.parse_known_args

    @functools.wraps(parse)
    def parse_known_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        namespace, rest = parse(self, *args, **kwargs)
        _set(namespace, vars(namespace).items(), functools.partial(setattr, namespace))
        return namespace, rest

    parser.parse_known_args = parse_known_args


def patch_jsonargparse(module: ModuleType) -> None:
    """Watches the parsing of a tree of flags, such as `train.micro_batch_size`, at its root."""
    parser: Any = module.ArgumentParser
    parse = parser.parse_args
    depth = 0

    @functools.wraps(parse)
    def parse_args(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            tree = parse(self, *args, **kwargs)
        finally:
            depth -= 1
        if not depth:
            _set(tree, list(tree.items()), tree.__setitem__)
        return tree

    parser.parse_args = parse_args


def _set(flags: Any, values: Iterable[tuple[str, Any]], assign: Callable[[str, int], None]) -> None:
    for recorder in installed:
        numbers = {name: value for name, value in values if type(value) is int and _is_number(name)}
        if numbers:
            recorder.typed.made(flags, "flags", numbers=numbers)
        for name, number in recorder.settings["flags"].items():
            if name in numbers:
                split = recorder.settings["split"]
                batch = split["ranks"] * split["accumulation"] * split["micro_batch"]
                assign(name, {**split, "effective_batch": batch}[number])


def _is_number(name: str) -> bool:
    name = name.rpartition(".")[2]
    return bool(_NUMBERS.fullmatch(name)) and not _NOT_OF_TRAINING.search(name)
