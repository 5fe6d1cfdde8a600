"""isobatch: tune once, train the same at any GPU count."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """Reads every public name and its module from the stub beside this file, which type checkers read too."""
    stub = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    lines = (line.split() for line in stub.splitlines() if line.startswith("from isobatch"))
    return {words[3]: words[1] for words in lines}


# A name is imported from its module when it is first used: `isobatch --help` need not load NumPy.
_HOMES = _homes()

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isobatch' has no attribute {name!r}")
    home = _HOMES[name]
    value = import_module(f"isobatch.{name}") if home == "isobatch" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Registers how a notebook shows our values, where isobatch was imported before it ran: `%load_ext isobatch`."""
    from isobatch.notebook import register

    register(shell)


if hasattr(sys.modules.get("IPython"), "get_ipython"):
    load_ipython_extension(sys.modules["IPython"].get_ipython())
