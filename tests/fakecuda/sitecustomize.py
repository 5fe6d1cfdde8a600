"""Puts the simulated CUDA into torch at its import, if the environment asks for it."""

import importlib.abc
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as ever, and changes it once it is executed: a mere look for it is no use."""

    looking = False

    def find_spec(self, name, path, target=None):
        if name != "torch" or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.looking = False
        execute = spec.loader.exec_module

        def exec_module(module):
            sys.meta_path.remove(self)
            execute(module)
            import cuda_on_cpu

            cuda_on_cpu.install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("FAKE_GPUS"):
    sys.meta_path.insert(0, _AfterTorch())
