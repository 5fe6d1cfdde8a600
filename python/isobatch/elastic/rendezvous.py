"""The store of a crew's process groups: gloo and NCCL read from it only what a rank of the run has signed."""

from collections.abc import Callable
from datetime import timedelta
from time import monotonic, sleep
from typing import Any, Self, TypeVar

import torch.distributed as dist

from isobatch.elastic.store import Store, StoreGone
from isobatch.errors import first_line

T = TypeVar("T")

_C10D: Any = dist
_PERIOD = 0.01
"""Seconds between two looks for a value that is not there yet."""


class Rendezvous(_C10D.Store):  # type: ignore[misc]
    """The values for torch's C++ to connect the ranks of a crew, each signed for its key.

    The C++ parses them unchecked: one of a wrong length ends the process. So a value that is not signed
    counts as not written, and a rank writes its own again where they were overwritten. All errors here are
    torch's, and cost the crew: if the store is gone, the rank's next question to it says so.
    """

    def __init__(self, store: Store, mark: str, lease: float, check: Callable[[], None]) -> None:
        """Connects to the store of a run, for the crew with this mark.

        Args:
            store: the rank's own connection.
            mark: the crew's.
            lease: how long to wait for a value, if torch would give up earlier.
            check: raises if the crew is over.
        """
        super().__init__()
        self._store, self._place, self._lease, self._check = store.another(), f"{mark}/group", lease, check
        self._own: dict[str, bytes] = {}

    def keep(self, store: Store) -> None:
        """Writes this rank's values again where they were overwritten: other ranks may still need them."""
        for key, value in [*self._own.items()]:
            if store.read(f"{self._place}/{key}", bytes) is None:
                store.write(f"{self._place}/{key}", value)

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except StoreGone as error:
            raise _C10D.DistStoreError(first_line(error)) from None

    def _read(self, key: str) -> bytes | None:
        return self._ask(lambda: self._store.read(f"{self._place}/{key}", bytes))

    def _waited(self, key: str, seconds: float) -> bytes:
        until = monotonic() + max(seconds, self._lease)
        while (value := self._read(key)) is None:
            self._check()
            if monotonic() > until:
                raise _C10D.DistStoreError(f"no rank wrote {key} for the process group")
            self._ask(lambda: self.keep(self._store))
            sleep(_PERIOD)
        return value

    # ---- what torch calls ----

    def set(self, key: str, value: bytes | str) -> None:
        """Writes a value."""
        self._own[key] = own = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(lambda: self._store.write(f"{self._place}/{key}", own))

    def get(self, key: str) -> bytes:
        """Waits for a value."""
        return self._waited(key, self._lease)

    def wait(self, keys: list[str], timeout: timedelta = timedelta()) -> None:
        """Waits until values are there."""
        for key in keys:
            self._waited(key, timeout.total_seconds())

    def check(self, keys: list[str]) -> bool:
        """Returns whether values are there."""
        return all(self._read(key) is not None for key in keys)

    def add(self, key: str, value: int) -> int:
        """Adds to a number; returns the sum."""
        return self._ask(lambda: self._store.add_to(f"{self._place}/{key}", value))

    def delete_key(self, key: str) -> bool:
        """Deletes a value."""
        self._own.pop(key, None)
        return self._ask(lambda: self._store.delete(f"{self._place}/{key}"))

    def has_extended_api(self) -> bool:
        """Returns False: torch then asks for one value at a time."""
        return False

    def clone(self) -> Self:
        """Returns this store: its calls may come from several threads."""
        return self
