"""The client of a run's store (its process trains nothing), and the ranks' signs of life."""

import os
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeVar

import torch.distributed as dist

from isobatch.elastic.messages import MAX_BYTES, Beat, RunFacts, Seal, address_of
from isobatch.errors import InputError, first_line
from isobatch.words import shown

T = TypeVar("T")

_C10D: Any = dist  # Its types do not know all of its stores.

KEY = "isobatch-key"
"""The store's own key, outside of all runs, for the fingerprint of the run key; set if a network reaches the
store."""
_NOTHING = b"\0nothing"
"""Not a message: swapping this value for itself reads a key without changing it."""


class StoreGone(InputError):
    """The store does not answer, so no rank can know the others' state."""


class Store:
    """A connection to the store; ranks poll it, as torch's own waiting prints warnings.

    Any process that reaches the store may write to it: a value not signed for its key counts as not written.
    """

    def __init__(self, address: str, seconds: float, seal: Seal | None = None) -> None:
        self.address, self.seal = address, seal or Seal()
        host, port = host_and_port(address)
        try:
            self._connect(host, port, seconds)
        except RuntimeError:
            raise StoreGone(
                f"no store answers at {address} in {seconds:.0f} s: run isobatch store --port {port} there, "
                "in a process that outlives all ranks, and pass the address that it prints",
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
                f"the store at {self.address} is gone ({first_line(error)}); its process must "
                "outlive all ranks",
                field="store",
            ) from None

    def another(self) -> Self:
        """Returns a separate connection, for another thread or for a process group."""
        connection = object.__new__(type(self))
        connection.address, connection.seal = self.address, self.seal
        self._ask(lambda: connection._connect(*host_and_port(self.address), self.seconds))
        return connection

    def _swap(self, key: str, expected: bytes, value: bytes) -> bytes:
        """Sets a value if the present one is as expected; returns the key's value afterwards, or `expected`
        if it has none."""
        written: bytes = self._ask(lambda: self._store.compare_set(f"{self.seal.run}/{key}", expected, value))
        return written

    def value(self, key: str) -> bytes | None:
        """Returns the value of a key, whoever wrote it; torch's own `get` would wait for a missing key."""
        written = self._swap(key, _NOTHING, _NOTHING)
        return None if written == _NOTHING else written

    def read(self, key: str, kind: type[T]) -> T | None:
        """Reads a message; None if no message is signed for this key."""
        written = self.value(key)
        return None if written is None else self.seal.read(key, written, kind)

    def write(self, key: str, message: Any) -> None:
        """Writes a message."""
        self._ask(lambda: self._store.set(f"{self.seal.run}/{key}", self.seal.write(key, message)))

    def once(self, key: str, message: T) -> T:
        """Writes a message unless there is one already; returns the message in place afterwards."""
        return self._once(
            key, self.seal.write(key, message), lambda value: self.seal.read(key, value, type(message))
        )

    def check_key(self) -> None:
        """Refuses this process if its key differs from the store's or the run's."""
        # Fingerprints are not signed, as ranks with another key must be able to read them. If the run's facts
        # are signed with this rank's key, it is the right one.
        written = self._ask(lambda: self._store.compare_set(KEY, _NOTHING, _NOTHING))
        if (fingerprint := _fingerprint(written)) is not None:
            self.seal.check(fingerprint, f"the store at {self.address}")
        if self.read("facts", RunFacts) is None:
            first = self._once("key", self.seal.fingerprint.encode(), _fingerprint)
            self.seal.check(first, f"the run {self.seal.run!r} of the store at {self.address}")

    def _once(self, key: str, own: bytes, read: Callable[[bytes], T | None]) -> T:
        expected = b""
        while True:
            written = self._swap(key, expected, own)
            if (message := read(written)) is not None:
                return message
            # An unsigned value is replaced. A stranger who keeps writing only delays this rank.
            expected = self._small(key, written)

    def _small(self, key: str, written: bytes) -> bytes:
        """Deletes a value too large for a rank to have written: every poll would transfer it."""
        if len(written) <= MAX_BYTES:
            return written
        self.delete(key)
        return b""

    def delete(self, key: str) -> bool:
        """Deletes a value; returns whether there was one."""
        return bool(self._ask(lambda: self._store.delete_key(f"{self.seal.run}/{key}")))

    def add_to(self, key: str, value: int) -> int:
        """Adds to a signed number, 0 at first; returns the sum."""
        while True:
            written = self.value(key) or b""
            total = (self.seal.read(key, written, int) or 0) + value
            own = self.seal.write(key, total)
            if self._swap(key, written, own) == own:
                return total

    def add(self, key: str, message: Any) -> None:
        """Adds a message to those of a key."""
        line = self.seal.write(key, message) + b"\n"
        self._ask(lambda: self._store.append(f"{self.seal.run}/{key}", line))

    def messages(self, key: str, kind: type[T], own: T | None = None) -> list[T]:
        """Returns the messages added to a key; adds `own` if it is missing, or was deleted."""
        lines = self._small(key, self.value(key) or b"").split(b"\n")
        messages = [message for line in lines if (message := self.seal.read(key, line, kind)) is not None]
        if own is not None and own not in messages:
            self.add(key, own)
            messages.append(own)
        return messages


def _fingerprint(written: bytes) -> str | None:
    return written.decode() if re.fullmatch(rb"[0-9a-f]{16}", written) else None


def host_and_port(address: str) -> tuple[str, int]:
    """Splits "host:port".

    >>> host_and_port("node0:29400")
    ('node0', 29400)
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"store must be 'host:port', got {shown(address)}", field="store")
    return host, int(port)


def _connected(host: str, port: int, seconds: float) -> Any:
    """Connects to the store, in several attempts.

    In torch 2.15 every 25th connection of a process waits five seconds although the store answers, and some
    of these fail with a shorter time-out; the next attempt connects at once.
    """
    for patience in (min(1.0, seconds / 4), seconds / 4, seconds / 2):
        try:
            store = _C10D.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=patience))
        except RuntimeError as error:
            refusal = error
        else:
            store.set_timeout(timedelta(seconds=seconds))
            return store
    raise refusal


def _limit_waits(port: int, seconds: float) -> None:
    """Limits the wait for an answer of the store, on Linux: torch's time-out does not apply if the host is
    cut off or the store's process is stopped, and TCP's own takes a quarter of an hour."""
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for number in sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] == port:
                for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO:
                    connection.setsockopt(socket.SOL_SOCKET, option, limit)


def sockets() -> dict[int, str]:
    """Returns the file descriptors of sockets with their inodes, never reused; empty if the system does not
    list them."""
    with suppress(OSError):
        descriptors = ((int(path.name), inode(int(path.name))) for path in Path("/proc/self/fd").iterdir())
        return {number: name for number, name in descriptors if name.startswith("socket:")}
    return {}


def inode(number: int) -> str:
    """Returns the target of a file descriptor, such as "socket:[4711]"; an empty text if it is closed."""
    with suppress(OSError):
        return str(Path(f"/proc/self/fd/{number}").readlink())
    return ""


class Lifeline:
    """A port open as long as its process lives: unlike a paused process, or a host that is cut off, a dead
    one refuses connections at once."""

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
        """Accepts and drops new connections."""
        with suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    @staticmethod
    def answers(member: str, seconds: float) -> bool:
        """Returns whether a process drops a new connection, as `answer` does; a paused one keeps it open."""
        try:
            with socket.create_connection(host_and_port(address_of(member)), timeout=0.2) as connection:
                connection.settimeout(seconds)
                return connection.recv(1) == b""
        except (OSError, InputError):
            return False

    def close(self) -> None:
        """Closes the port: from now on connections are refused."""
        self._socket.close()

    @staticmethod
    def refused(member: str) -> bool:
        """Returns whether the process with an id is known to be gone."""
        try:
            socket.create_connection(host_and_port(address_of(member)), timeout=0.2).close()
        except (OSError, InputError) as error:
            return isinstance(error, ConnectionRefusedError)
        return False


class Beats:
    """Follows the heartbeats of other ranks: a count that stays the same for `lease` seconds is silence, so
    the clocks of two hosts are never compared."""

    def __init__(self, store: Store, lease: float) -> None:
        self._store, self._lease = store, lease
        self._seen: dict[str, tuple[int, float]] = {}

    def gone(self, member: str) -> bool:
        """Returns whether a member left, died, or was silent for the lease. A stranger may overwrite
        heartbeats, so a silent member is also asked directly."""
        beat, now = self._store.read(f"beat/{member}", Beat), monotonic()
        before, since = self._seen.setdefault(member, (-1, now))
        if beat is not None and beat.count > before:
            self._seen[member] = beat.count, now
        elif now - since > self._lease:
            if not Lifeline.answers(member, min(2.0, self._lease / 4)):
                return True
            self._seen[member] = before, monotonic()
        return self._has_ended(member, beat)

    def ended(self, member: str) -> bool:
        """Returns whether a member left or died: it cannot come back."""
        return self._has_ended(member, self._store.read(f"beat/{member}", Beat))

    def _has_ended(self, member: str, beat: Beat | None) -> bool:
        return (beat is not None and beat.is_last) or Lifeline.refused(member)
