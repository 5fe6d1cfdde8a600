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


def _patch_objects(module: ModuleType) -> None:
    from isobatch_recorder import objects  # importing it imports torch, as the module has by its end

    objects.PATCHES[module.__name__](module)


def _patch_flags(module: ModuleType) -> None:
    from isobatch_recorder import flags

    flags.patch(module)


_OBJECTS = (
    *("transformers.training_args", "accelerate.accelerator", "deepspeed"),
    *("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
    *("lightning.fabric.fabric", "lightning_fabric.fabric"),
)
"""Modules with a class that says how a step is split, or where it runs."""


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

    sys.meta_path[:0] = [AfterImport("torch", _install), AfterImport("argparse", _patch_flags)]
    sys.meta_path[:0] = [AfterImport(name, _patch_objects) for name in _OBJECTS]
_import_own_sitecustomize()
