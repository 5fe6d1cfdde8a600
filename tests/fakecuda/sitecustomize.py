"""Puts the made-up CUDA into torch when it is imported, in a process whose environment asks for it; and counts its lines, where asked."""

import importlib.abc
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as ever, and changes it once it is there."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            import cuda_on_cpu

            cuda_on_cpu.install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("FAKE_GPUS"):
    sys.meta_path.insert(0, _AfterTorch())
