"""The store of a run that survives its ranks, in a process that trains nothing; and by what a rank is known to live."""

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import torch.distributed as dist

from isobatch.errors import InputError
from isobatch.words import shown

_C10D: Any = dist  # Its types do not know all of its stores.

LEFT = "left"
"""The last beat of a rank that takes no further part."""


class StoreGone(InputError):
    """The store does not answer: nobody can know who trains."""


class Store:
    """The store, in a process that trains nothing. Nothing waits in it: it is asked again, since its own waiting is loud."""

    def __init__(self, address: str, seconds: float) -> None:
        self.address = address
        host, port = host_and_port(address)
        try:
            self._connect(host, port, seconds)
        except RuntimeError:
            raise StoreGone(
                f"no store answers at {address} in {seconds:.0f} s: run isobatch store --port {port} there, in a process that outlives all ranks",
                field="store",
            ) from None

    def _connect(self, host: str, port: int, seconds: float) -> None:
        self.seconds = seconds
        self._store: Any = _connected(host, port, seconds)
        _limit_waits(port, seconds)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RuntimeError as error:
            raise StoreGone(
                f"the store at {self.address} is gone ({str(error).splitlines()[0][:80]}); its process must outlive all ranks",
                field="store",
            ) from None

    def another(self) -> Any:
        """Returns a connection of its own, for another thread or for a process group."""
        made = object.__new__(Store)
        made.address = self.address
        self._ask(lambda: made._connect(*host_and_port(self.address), self.seconds))
        return made

    @property
    def raw(self) -> Any:
        """torch's own store."""
        return self._store

    def has(self, key: str) -> bool:
        """Returns whether a key has a value."""
        return bool(self._ask(lambda: self._store.check([key])))

    def get(self, key: str) -> str | None:
        """Returns a value; None where there is none."""
        if not self.has(key):
            return None
        found: bytes = self._ask(lambda: self._store.get(key))
        return found.decode()

    def set(self, key: str, value: str) -> None:
        """Sets a value."""
        self._ask(lambda: self._store.set(key, value))

    def add(self, key: str, line: str) -> None:
        """Adds a line to a value."""
        self._ask(lambda: self._store.append(key, f"{line}\n"))

    def lines(self, key: str) -> list[str]:
        """Returns the lines that were added to a value."""
        return (self.get(key) or "").splitlines()

    def number(self, key: str) -> int:
        """Counts up, and returns the count."""
        return int(self._ask(lambda: self._store.add(key, 1)))

    def once(self, key: str, value: str) -> str:
        """Sets a value that has none; returns the one that it has then."""
        found: bytes = self._ask(lambda: self._store.compare_set(key, "", value))
        return found.decode()


def host_and_port(address: str) -> tuple[str, int]:
    """Splits "host:port".

    Raises:
        InputError: it is something else.

    >>> host_and_port("node0:29400")
    ('node0', 29400)
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"store must be 'host:port', got {shown(address)}", field="store")
    return host, int(port)


def _connected(host: str, port: int, seconds: float) -> Any:
    """Connects to the store, in several attempts: torch 2.15 lets every 25th connection of a process wait five seconds, though the store
    answers, and some of these fail where the time-out is shorter; the next one is there at once.

    Raises:
        RuntimeError: no store answers in that time.
    """

    def attempt(patience: float) -> Any:
        store = _C10D.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience))
        store.set_timeout(timedelta(seconds=seconds))
        return store

    for patience in (min(1.0, seconds / 4), seconds / 4):
        with suppress(RuntimeError):
            return attempt(patience)
    return attempt(seconds / 2)


def _limit_waits(port: int, seconds: float) -> None:
    """Limits how long an answer of the store is waited for: torch's time-out is none of a host that is cut off, or of a store that was
    stopped, and TCP's own takes a quarter of an hour. Only Linux lists a process's sockets."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for number in sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == port:
                for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
                    one.setsockopt(socket.SOL_SOCKET, option, limit)


def sockets() -> dict[int, str]:
    """Returns the file descriptors that are sockets, each with its inode, which unlike the descriptor's number no other gets; none where
    the system does not list them."""
    with suppress(OSError):
        found = ((int(path.name), inode(int(path.name))) for path in Path("/proc/self/fd").iterdir())
        return {number: name for number, name in found if name.startswith("socket:")}
    return {}


def inode(number: int) -> str:
    """Returns what a file descriptor is of; nothing where it is closed."""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{number}").readlink())
    return ""


class Lifeline:
    """A port that is there as long as its process is: who asks and is refused knows at once that it died. A paused process, or a
    host that is cut off, does not refuse."""

    def __init__(self, store: str) -> None:
        host, port = host_and_port(store)
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            host = probe.getsockname()[0]  # The address by which this host reaches the store.
        self._socket = socket.create_server((host, 0), family=family, backlog=64)
        self._socket.setblocking(False)
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def answer(self) -> None:
        """Takes and drops what has connected since."""
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    def close(self) -> None:
        """Closes the port: from now on who asks is refused."""
        self._socket.close()

    @staticmethod
    def refused(member: str) -> bool:
        """Returns whether the process with an id is known to be gone."""
        try:
            socket.create_connection(host_and_port(member.split("|")[1]), timeout=0.2).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False


class Beats:
    """The beats of others as this process sees them: a value that stays as it is for `lease` seconds is silence. No clocks are compared."""

    def __init__(self, store: Store, lease: float) -> None:
        self._store, self._lease = store, lease
        self._seen: dict[str, tuple[str | None, float]] = {}

    def gone(self, member: str) -> bool:
        """Returns whether a member left, died, or was silent for the lease."""
        value, now = self._store.get(f"beat/{member}"), monotonic()
        before, since = self._seen.setdefault(member, (value, now))
        if before != value:
            self._seen[member] = value, now
            return False
        return now - since > self._lease or self.left(member)

    def left(self, member: str) -> bool:
        """Returns whether a member left or died: it cannot come back."""
        return self._store.get(f"beat/{member}") == LEFT or Lifeline.refused(member)


def serve(port: int) -> None:
    """Runs the store until the process ends."""
    store = _C10D.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    print(f"the store listens on port {store.port}", flush=True)
    threading.Event().wait()
