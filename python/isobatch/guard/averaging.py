"""Compares the ranks' gradients with each other: before a step, or by the weights after it."""

from typing import Any

from torch import Tensor

from isobatch.equivalence.laws import Cause
from isobatch.guard.run import Run, local

APART = "gradients differ between ranks"
INSIDE = "equal gradients on all ranks, and their size: the optimizer averages them in its step"


class Averaging:
    """Stops for gradients of one rank alone. An optimizer of the script's own may average in its step."""

    def __init__(self, run: Run, optimizer: Any) -> None:
        self._run, self._optimizer = run, optimizer
        self._apart = list[int]()  # the ranks with other gradients than most, until the step is done

    def check(self, grads: list[Tensor]) -> bool:
        """Checks before a step; False: it is judged after the step, and has no reference."""
        self._apart = self._run.unlike("gradients", grads)
        if self._apart and type(self._optimizer).__module__.startswith("torch.optim"):
            self._run.stop(Cause.NEVER_AVERAGED, APART, self._apart)
        return not self._apart

    def stepped(self) -> None:
        """Checks after the step: the optimizer averaged if the weights are equal."""
        run, ranks, self._apart = self._run, self._apart, []
        if not ranks:
            return
        owned = [local(p) for group in self._optimizer.param_groups for p in group["params"]]
        if run.unlike("weights", owned):
            run.stop(Cause.NEVER_AVERAGED, APART, ranks, step=run.step - 1)
        run.leave(INSIDE)
