"""The signals by which a cluster asks a run to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))


class Signals:
    """Notes SIGTERM (torchrun, Slurm) and SIGUSR1 (Slurm's --signal) while it is entered, and then puts back the handlers before.

    A handler that was there is called too. Only the main thread can have handlers: in another nothing is noted.
    """

    def __init__(self) -> None:
        self.received = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: it was not set by Python, and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
