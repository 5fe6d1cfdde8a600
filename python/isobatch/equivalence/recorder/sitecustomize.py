"""Python imports this file in every process started by `isobatch same`; it waits for torch."""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))  # pathlib would cost every start its import


def _install(_: ModuleType) -> None:
    from isobatch_recorder import install  # type: ignore[import-not-found]

    install()


def _import_own_sitecustomize() -> None:
    """Imports the user's own sitecustomize, hidden by this file."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ISOBATCH_SAME"):
    from isobatch_recorder.after_import import AfterImport  # type: ignore[import-not-found]

    sys.meta_path.insert(0, AfterImport("torch", _install))
_import_own_sitecustomize()
