"""Single modules of peers whose whole package does not import everywhere; a test that needs one is skipped
visibly where it is not installed."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def _package(name: str) -> Path:
    root = name.partition(".")[0]
    spec = importlib.util.find_spec(root) and importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(spec.origin).parent


def _module(name: str, **members: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


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


def megatron_core(name: str) -> Any:
    """One module of ``megatron.core``: the package itself loads for half a minute."""
    root = "_megatron_for_comparison"
    if f"{root}.{name}" not in sys.modules:
        file = _package("megatron.core") / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"{root}.{name}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        utils = types.ModuleType("megatron.core.utils")
        vars(utils).update(log_single_rank=lambda *_, **__: None)
        with pytest.MonkeyPatch.context() as patch:
            for package in ("megatron", "megatron.core"):
                patch.setitem(sys.modules, package, types.ModuleType(package))
            patch.setitem(sys.modules, "megatron.core.utils", utils)
            spec.loader.exec_module(module)
        sys.modules[f"{root}.{name}"] = module
    return sys.modules[f"{root}.{name}"]
