"""Python imports this file in every process started by `isobatch same`; it waits for torch."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # pathlib would cost every start its import


def _import_own_sitecustomize() -> None:
    """Imports the user's own sitecustomize, hidden by this file."""
    elsewhere = [place for place in sys.path if os.path.abspath(place or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ISOBATCH_SAME"):
    from isobatch_recorder import watch  # type: ignore[import-not-found]

    watch()
_import_own_sitecustomize()
