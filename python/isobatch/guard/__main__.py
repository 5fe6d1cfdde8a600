"""`python -m isobatch.guard train.py …`: guards an unchanged script of transformers' Trainer.

Under `isobatch exec` the plan is the one that was handed over.
"""

import importlib.util
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from isobatch.errors import InputError
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
    """A finder to add the guard to the Trainer's default callbacks at the import of the Trainer.

    The recorder of `isobatch same` has one like it; it runs where isobatch may be missing.
    """

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


_USAGE = "usage: python -m isobatch.guard train.py [ARGUMENTS], or -m MODULE [ARGUMENTS]"


def main() -> int:
    """Runs the script, as `python train.py` or `python -m train` would; returns 2 where it does not start."""
    words = sys.argv[1:]
    if not words or words == ["-m"]:
        return _refused(_USAGE)
    if words[0] != "-m" and not Path(words[0]).exists():
        return _refused(f"isobatch guard: {words[0]}: there is no such script")
    try:
        handed_plan()  # none: better now than after the model is loaded
    except InputError as error:
        return _refused(f"isobatch guard: {error}")
    sys.meta_path.insert(0, _AfterTrainer())
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit:
        _say_unwatched()
        raise
    _say_unwatched()
    return 0


def _refused(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def _say_unwatched() -> None:
    """Says where the script has ended without a Trainer."""
    if not HandedGuard.count:
        print(
            "isobatch guard: the script made no Trainer of transformers: nothing was watched", file=sys.stderr
        )


if __name__ == "__main__":
    sys.exit(main())
