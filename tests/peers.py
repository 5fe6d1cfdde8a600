"""Single modules of peers whose whole package does not import everywhere; a test that needs one is skipped
visibly where it is not installed."""

import importlib
import importlib.util
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(spec.origin).parent


def _module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


def deepspeed_elasticity() -> Any:
    """``deepspeed.elasticity.elasticity``: the package itself wants a GPU toolkit and a compiler."""
    root = "_deepspeed_for_comparison"
    if root not in sys.modules:
        folder = _package("deepspeed")
        logger = logging.getLogger(root)
        logger.setLevel(logging.WARNING)
        _module(root, __path__=[str(folder)])
        _module(f"{root}.elasticity", __path__=[str(folder / "elasticity")])
        _module(f"{root}.git_version_info", version="0.19.7")
        _module(f"{root}.utils", logger=logger)
    return importlib.import_module(f"{root}.elasticity.elasticity")


def adaptdl_goodput() -> Any:
    """``adaptdl.goodput``; where autograd is missing, its prediction works and its fit does not."""
    root = "_adaptdl_for_comparison"
    if root not in sys.modules:
        _module(root, __path__=[str(_package("adaptdl"))])
        if importlib.util.find_spec("autograd") is None:
            _module("autograd", numpy=np)
    module = importlib.import_module(f"{root}.goodput")
    if not hasattr(np, "int"):
        module.np.int = int  # It predates NumPy 1.24.
    return module
