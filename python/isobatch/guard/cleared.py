"""Whether the gradients of a step are cleared before those of the next one are added to them."""

from __future__ import annotations

from torch import Tensor, nn

from isobatch.diagnosis.causes import Cause
from isobatch.guard.run import Run


class Cleared:
    """Looks at the smallest parameter's gradient when the first one of a step arrives: what is there then is of the last step."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        self._run, self._kept = run, False
        self._param = min((p for p in model.parameters() if p.requires_grad), key=Tensor.numel)
        # A sharded parameter's own hook is never called: then nothing is seen.
        self._handle = self._param.register_hook(self._arriving)  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Takes the hook out."""
        self._handle.remove()

    def _arriving(self, _: Tensor) -> None:
        run, before = self._run, self._param.grad
        if run.since and run.micro == 1 and not run.own and before is not None and bool((before != 0).any()):
            self._kept = True

    def check(self) -> None:
        """Before an optimizer step."""
        if self._kept:
            text = "the first gradient of this step was added to the last step's, which zero_grad had not cleared"
            self._run.stop(Cause.GRADIENTS_KEPT, text)
