"""The messages of a run's ranks, with a type for each, and their signatures.

Messages are JSON with checked fields; nothing that a peer sends is ever executed. A message is signed for its
place: the run's name, the crew, the purpose and the writing rank. A copy in another place, or signed with
another key, counts as not written. No clocks are involved.
"""

import hashlib
import hmac
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import torch.distributed as dist

from isobatch.errors import InputError
from isobatch.training.exchange import gather_bytes

T = TypeVar("T")

NEW, OUT, HALF = -1, -2, -3
"""Votes of ranks without a step's state: a new one, one that was left out, and one with a half-applied step.
"""

MAX_BYTES = 1 << 22
"""The most bytes of a value in the store; a larger one was not written by a rank and is ignored."""

_Id = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"(?s)^.+\|.+:\d{1,5}\|[0-9a-f]{32}$")]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 16)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


# ---- messages ----


class Seat(NamedTuple):
    """A process in a crew's list: its id, and its vote (the steps it has applied, or NEW, OUT or HALF).

    Key {crew}/in: the process wants to be in the next crew.
    """

    id: _Id
    vote: Annotated[int, msgspec.Meta(ge=HALF)]

    @property
    def name(self) -> str:
        """The rank's own name."""
        return name_of(self.id)


class Roster(NamedTuple):
    """A crew's closed list: its number, and its seats in the order of their ranks; or an error and no seats.

    Key {previous crew}/next; the newest list is also at {first crew}/crew.
    """

    number: Annotated[int, msgspec.Meta(ge=-1)]
    seats: tuple[Seat, ...]
    error: _Text | None = None

    @property
    def ids(self) -> list[str]:
        """The processes' ids, in the order of their ranks."""
        return [seat.id for seat in self.seats]

    @property
    def mark(self) -> str:
        """The crew's prefix in keys: number and digest of the list, so that no other crew's message fits."""
        return f"{self.number}-{hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]}"


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Beat(_Message):
    """A rank's heartbeat; after its last one the rank takes no further part. Key beat/{id}."""

    count: _Count
    is_last: bool = False


class RunFacts(_Message):
    """Facts shared by all ranks of a run. Key facts."""

    facts: dict[str, Any]


class Note(_Message):
    """A text of a rank: why it was refused (key refused), or why a crew is over (key {crew}/over)."""

    name: _Text
    text: _Text


class Here(_Message):
    """A rank reached a point: it is about to form the crew's group (key {crew}/here), or at the run's end
    (key {crew}/end), or it has seen the whole crew at the end (key {crew}/done)."""

    id: _Id


class Saved(_Message):
    """A state was saved at this step. Key saved."""

    step: _Count


class Held(NamedTuple):
    """A summary of a rank's state: the steps applied (or OUT), whether it is trained, its checksum, and the
    run's state. Exchanged in the crew's group."""

    step: Annotated[int, msgspec.Meta(ge=OUT)]
    trained: bool
    checksum: _Text
    run: dict[str, Any] | None


class Announced(_Message):
    """Bytes of a state: their size and SHA-256; the SHA-256 of tensors follows once they are sent."""

    size: _Count
    digest: _Text


class Parcel(_Message):
    """A state about to be sent: first its layout, then its tensors; or the error that prevents it. Exchanged
    in the crew's group."""

    pieces: tuple[Announced, Announced] | None = None
    error: _Text | None = None


class StateLayout(_Message):
    """The parts of a state: its tree, with numbers in the place of tensors, and each tensor's type and
    shape."""

    tree: Any
    tensors: list[tuple[str, list[_Count]]]


def name_of(member: str) -> str:
    """Returns the name in a process's id.

    >>> name_of("node|1/0|10.0.0.1:4711|5f2c")
    'node|1/0'
    """
    return member.rsplit("|", 2)[0]


def address_of(member: str) -> str:
    """Returns the address in a process's id, where it answers."""
    return member.rsplit("|", 2)[1]


# ---- signatures ----


class Seal:
    """Signs messages of a run, and reads signed ones.

    Attributes:
        fingerprint: a public digest of the key: it tells two keys apart, and reveals neither.
    """

    def __init__(self, key: bytes = b"", run: str = "run") -> None:
        self._key, self.run = hashlib.sha256(b"isobatch " + key).digest(), run
        self.fingerprint = hmac.new(self._key, b"fingerprint", "sha256").hexdigest()[:16]
        self._has_key = bool(key)

    def check(self, fingerprint: str, owner: str) -> None:
        """Refuses a key other than a store's or a run's."""
        if fingerprint != self.fingerprint:
            own = "another" if self._has_key else "none"
            holder = "no key" if fingerprint == Seal().fingerprint else "a key"
            raise InputError(f"{owner} has {holder}, and this rank has {own}: {_HOW}", field=_VARIABLE)

    def _sign(self, place: str, body: bytes) -> bytes:
        where = f"{self.run}/{place}".encode()
        return hmac.new(self._key, b"%d:%b%b" % (len(where), where, body), "sha256").hexdigest().encode()

    def write(self, place: str, message: Any) -> bytes:
        """Writes a message for a place, in one line."""
        body = msgspec.json.encode(message)
        return self._sign(place, body) + b" " + body

    def read(self, place: str, written: bytes, kind: type[T]) -> T | None:
        """Reads a message; returns None unless it was signed for this run and place and is of this kind."""
        signature, body = written[:64], written[65:]
        if len(written) > MAX_BYTES or written[64:65] != b" ":
            return None
        if not hmac.compare_digest(signature, self._sign(place, body)):
            return None
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            return msgspec.json.decode(body, type=kind)
        return None


class Circle(NamedTuple):
    """Exchanges signed messages among the ranks of a crew, inside their process group."""

    seal: Seal
    table: Roster

    def gather(self, purpose: str, message: T) -> list[T]:
        """Returns the messages of all ranks, in the order of the ranks."""
        ids, kind = self.table.ids, type(message)
        places = [f"{self.table.mark}/{purpose}/{member}" for member in ids]
        parts = gather_bytes(self.seal.write(places[dist.get_rank()], message))
        messages: list[T] = []
        for member, place, part in zip(ids, places, parts, strict=True):
            if (read := self.seal.read(place, part, kind)) is None:
                raise RuntimeError(f"gloo: what {name_of(member)} says is not signed with the run's key")
            messages.append(read)
        return messages

    def held(self, purpose: str, own: Held) -> list[Held]:
        """Returns a summary of each rank's state.

        Only ranks of the previous crew can have the run's state, at most one step further than the furthest
        vote. When a run begins no rank has it.
        """
        every, votes = self.gather(purpose, own), [seat.vote for seat in self.table.seats]
        if max(votes) < 0:
            return [state._replace(trained=False) for state in every]
        return [
            state if vote >= 0 and state.step <= max(votes) + 1 else state._replace(trained=False, step=OUT)
            for state, vote in zip(every, votes, strict=True)
        ]


# ---- keys ----

_VARIABLE, _FILE, _NONE = "ISOBATCH_RUN_KEY", "ISOBATCH_RUN_KEY_FILE", "none"
NO_KEY = f"{_VARIABLE}={_NONE}"
_MIN_LENGTH = 16
_HOW = f"set {_VARIABLE} to the key that isobatch store printed, or {_FILE} to a file that has it"


def find_key(environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Finds the run's key in the environment; b"": explicitly no key; None: the environment sets nothing."""
    path, key = environment.get(_FILE), environment.get(_VARIABLE)
    if key is None and path is None:
        return None
    return _checked(key, _VARIABLE) if key is not None else read_key(Path(path or ""))


def read_key(path: Path) -> bytes:
    """Reads the key in a file; says on stderr if its mode lets others at it."""
    try:
        with path.open("rb") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                why = "others on this host can read or change the run's key"
                print(f"isobatch: {path}: {why}: chmod 600", file=sys.stderr, flush=True)
            return _checked(file.read(4096).decode(), str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the key of the run cannot be read: {error}", file=str(path)) from None


def make_key(path: Path | None = None) -> str:
    """Makes a key; with a path, writes it into a new file readable by its owner only."""
    key = secrets.token_urlsafe(32)
    if path is not None:
        try:
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(f"{key}\n", encoding="ascii")
        except OSError as error:
            raise InputError(f"the key of the run cannot be written: {error}", file=str(path)) from None
    return key


def key_for(address: str, *, is_local: bool) -> bytes:
    """Returns the key of a rank, or b"" without one; only a store on this host may be used without a key."""
    key = find_key()
    if key is None and not is_local:
        raise InputError(
            f"the run's key is missing, and others may reach the store at {address}: {_HOW}; "
            f"{NO_KEY} trains without one, and whoever reaches the store may join",
            field=_VARIABLE,
        )
    return key or b""


def _checked(text: str, where: str) -> bytes:
    key = text.strip()
    if key == _NONE:
        return b""
    if len(key) < _MIN_LENGTH:
        # Never the key itself: the message is seen by others.
        raise InputError(
            f"{where} must have a key of {_MIN_LENGTH} characters or more, got {len(key)}", field=where
        )
    return key.encode()
