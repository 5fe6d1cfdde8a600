"""The budget: what the person waits, from the call to the answer. No torch."""

from __future__ import annotations

import time
from collections.abc import Callable

STOPPING = 0.15
"""Of the time that starting took, what stopping is allowed."""
LEAST_STOPPING = 0.5
MOST_STOPPING = 0.1
"""Of the budget, at most."""


class Budget:
    """Seconds that are left of a budget, which counts from the call: importing torch, starting the ranks, trials and stopping.

    Args:
        seconds: of the whole.
        clock: seconds; on one host `time.monotonic` is the same clock for all processes.
        begun: when the call came, by the clock; None: now.

    >>> ticks = iter([100.0, 104.0])
    >>> Budget(10.0, clock=lambda: next(ticks)).left()
    6.0
    """

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        begun: float | None = None,
    ) -> None:
        self.seconds, self.clock = seconds, clock
        self.begun = clock() if begun is None else begun
        self._reserved = 0.0

    def reserve_stopping(self) -> None:
        """Keeps time back for stopping ranks, which is known by how long starting them took."""
        likely = LEAST_STOPPING + STOPPING * self.spent()
        self._reserved = min(likely, MOST_STOPPING * self.seconds)

    def spent(self) -> float:
        """Since the call."""
        return self.clock() - self.begun

    def left(self) -> float:
        """For trials: without what stopping takes."""
        return self.seconds - self._reserved - self.spent()

    def expired(self) -> bool:
        """Whether trials must end."""
        return self.left() <= 0
