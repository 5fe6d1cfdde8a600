"""The guard's error, with advice. Without torch: a launcher can catch it."""

from typing import Any

from isobatch.equivalence.laws import Cause, Diagnosis


class GuardError(RuntimeError):
    """Says how a training departs from its plan.

    It is raised inside the training loop, by `attach`, `optimizer.step()`, the model's forward or `finish`;
    on all ranks if all of them see the fault, else on those that do. Nobody needs to catch it: uncaught, it
    ends the process with exit code 1, and torchrun then ends the others.

    Attributes:
        step: the optimizer step before which it was noticed, counted as the plan counts.
        text: what was seen, and what was planned.
        cause: the likely cause, a `Cause`.
        diagnosis: the same in words with their figures; where several causes look the same, all of them.
        advice: what to do about it, in the words of the trainer that takes the steps.
        ranks: the data-parallel ranks unlike the others; empty if all see the fault, or no majority agrees.

    >>> from isobatch.guard import Cause
    >>> raise GuardError(3, Cause.ANOTHER_LR, "learning rate 0.2, 0.1 planned")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isobatch.guard.GuardError: isobatch guard, before step 3: learning rate 0.2, 0.1 planned → another ...
    """

    def __init__(
        self,
        step: int,
        diagnosis: Cause | Diagnosis,
        text: str,
        ranks: tuple[int, ...] = (),
        trainer: str = "",
    ) -> None:
        self._diagnosis = diagnosis.likely() if isinstance(diagnosis, Cause) else diagnosis
        self.step, self.text, self.ranks, self._trainer = step, text, ranks, trainer
        self.cause, self.diagnosis = self._diagnosis.cause, self._diagnosis.text
        self.advice = self._diagnosis.advise(trainer)
        advice = f"{self.advice[0].upper()}{self.advice[1:]}"
        super().__init__(f"isobatch guard, before step {step}: {text} → {self.diagnosis}. {advice}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self._diagnosis, self.text, self.ranks, self._trainer)


GuardError.__module__ = "isobatch.guard"  # where it is public
