"""Notices a step without zero_grad."""

from torch import Tensor, nn

from isobatch.diagnosis.causes import Cause
from isobatch.guard.optimizer import Optimizers
from isobatch.guard.run import Run, outside_of_graphs


class ZeroGradCheck:
    """Notices gradients left over from the last step.

    The smallest parameter is looked at: if it still has a gradient when a step's first one arrives, zero_grad did
    not clear it.
    """

    def __init__(self, run: Run, model: nn.Module, optimizers: Optimizers) -> None:
        self._run, self._kept, owned = run, False, optimizers.owned()
        params = [p for p in model.parameters() if p.requires_grad]
        self._param = min([p for p in params if id(p) in owned] or params, key=Tensor.numel)
        # A sharded parameter's hook is never called: then this check sees nothing.
        self._handle = self._param.register_hook(self._arriving)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Removes the hook."""
        self._handle.remove()

    @outside_of_graphs
    def _arriving(self, _: Tensor) -> None:
        run, before = self._run, self._param.grad
        if run.since and run.micro == 1 and not run.own and before is not None and bool((before != 0).any()):
            self._kept = True

    def check(self) -> None:
        """Checks before an optimizer step."""
        if self._kept:
            text = (
                "the first gradient of this step was added to the last step's, which zero_grad had not "
                "cleared"
            )
            self._run.stop(Cause.GRADIENTS_KEPT, text)
