"""`python -m isobatch.guard train.py …`: guards an unchanged script of transformers' Trainer.

Under `isobatch exec` the plan is the one that was handed over.
"""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from isobatch.guard import guard
from isobatch.planning.handed import handed_plan


class HandedGuard:
    """Makes the callback of a guard with the handed plan, a new one for each Trainer."""

    count = 0

    def __new__(cls) -> Any:
        """Returns the callback: transformers calls what is in its list of default callbacks."""
        cls.count += 1
        return guard().transformers()


class _AfterTrainer:
    """A finder to add the guard to the Trainer's default callbacks at the import of the Trainer."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        if name != "transformers.trainer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.DEFAULT_CALLBACKS.append(HandedGuard)  # as transformers adds its own

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def main() -> None:
    """Runs the script, as `python train.py` or `python -m train` would."""
    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m isobatch.guard train.py [ARGUMENTS], or -m MODULE [ARGUMENTS]")
    handed_plan()  # none: better now than after the model is loaded
    sys.meta_path.insert(0, _AfterTrainer())
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
    if not HandedGuard.count:
        print(
            "isobatch guard: the script made no Trainer of transformers: nothing was watched", file=sys.stderr
        )


if __name__ == "__main__":
    main()
