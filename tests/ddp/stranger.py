"""A stranger who reaches the store of a run and has no key: he reads all, and writes, deletes and replays."""

import os
import pickle
import random
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import torch.distributed as dist

from isobatch.elastic.membership import START, Membership
from isobatch.elastic.messages import Beat, Here, Note, Roster, Seal, Seat
from isobatch.elastic.store import Store

ABSENT = b"\0none"
PURPOSES = ("next", "crew", "in", "here", "over", "end", "done")


class Canary:
    """Touches a file when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "CANARY")

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Stranger(threading.Thread):
    """Attacks the run's keys in the store, one every `pause` seconds, until `end`; signs by a foreign key."""

    def __init__(self, address: str, folder: Path, alike: Seal, seed: int = 0, pause: float = 0.02) -> None:
        super().__init__(name="stranger", daemon=True)
        host, port = address.rsplit(":", 1)
        self.store, self.seal = dist.TCPStore(host, int(port), is_master=False), alike
        self.chance, self.pause, self.ended = random.Random(seed), pause, threading.Event()
        self.evil = pickle.dumps(Canary(folder))
        self.seen: dict[str, list[bytes]] = {}
        self.attacks = 0
        options = {"ranks": 1, "min_ranks": 1, "lease": 2.0, "timeout": 5.0}
        self.member = Membership(Store(address, 5.0, alike), "a-stranger", **options)

    def read(self, key: str) -> bytes | None:
        value = self.store.compare_set(f"run/{key}", ABSENT, ABSENT)
        return None if value == ABSENT else value

    def keys(self) -> list[str]:
        """All keys but gloo's, by the lists that anybody can read."""
        keys, marks, members, table = ["facts", "refused", "saved", "key"], [START.mark], set(), START
        while True:
            for value in (self.read(f"{table.mark}/next"), *self.seen.get(f"{table.mark}/next", [])):
                with suppress(Exception):
                    after = msgspec.json.decode(value[65:], type=Roster)
                    break
            else:
                break
            if after.mark in marks:
                break
            marks.append(after.mark)
            members |= {*after.ids}
            table = after
        keys += [f"{mark}/{purpose}" for mark in marks for purpose in PURPOSES]
        return keys + [f"beat/{member}" for member in members]

    def forged(self, key: str) -> bytes:
        """Signs the message of a rank that is far ahead, for this place."""
        seat = Seat(self.member.id, 10**6)
        messages = {
            "next": Roster(9, (seat,)),
            "crew": Roster(99, (seat,)),
            "in": seat,
            "over": Note("r0", "it is over"),
            "refused": Note("r0", "it is refused"),
        }
        kind = key.rsplit("/", 1)[-1]
        message = (
            Beat(0, is_last=True) if key.startswith("beat/") else messages.get(kind, Here(self.member.id))
        )
        return self.seal.write(key, message)

    def attack(self) -> None:
        keys = self.keys()
        for key in keys:
            value = self.read(key)
            if value is not None and len(value) < 1 << 16 and value not in self.seen.setdefault(key, []):
                self.seen[key].append(value)
        key, recorded = self.chance.choice(keys), [value for values in self.seen.values() for value in values]
        match self.chance.randrange(6):
            case 0:
                self.store.set(
                    f"run/{key}", self.chance.choice([self.evil, b"", b"\0nothing", b"\xff" * 99, b"9" * 99])
                )
            case 1:
                self.store.set(f"run/{key}", b"x" * (5 << 20))
            case 2:
                self.store.append(f"run/{key}", b"\n" + self.forged(key) + b"\n")
            case 3:
                self.store.set(f"run/{key}", self.forged(key))
            case 4 if recorded:  # An old message, of this place or of another.
                self.store.set(f"run/{key}", self.chance.choice(self.seen.get(key) or recorded))
                self.store.append(f"run/{self.chance.choice(keys)}", self.chance.choice(recorded) + b"\n")
            case 5:
                self.store.delete_key(f"run/{key}")
        self.attacks += 1

    def run(self) -> None:
        while not self.ended.wait(self.pause):
            with suppress(RuntimeError):
                self.attack()

    def end(self) -> None:
        self.ended.set()
        self.join(10)
        self.member.leave()


class Poisoner(threading.Thread):
    """Overwrites all that ranks tell gloo, as fast as the store takes it, for a moment after each list."""

    def __init__(self, address: str, value: bytes) -> None:
        super().__init__(name="poisoner", daemon=True)
        host, port = address.split(":")
        self.store, self.value = dist.TCPStore(host, int(port), is_master=False), value
        self.writes, self.ended, self.firsts = 0, threading.Event(), dict[str, int]()

    def run(self) -> None:
        with suppress(RuntimeError):
            while not self.ended.wait(0.0005):
                for key in self.store.list_keys():
                    if "/group/" in key and self.firsts.setdefault(key, 0) < 400:
                        self.firsts[key] += 1
                        self.store.set(key.lstrip("/"), self.value)
                        self.writes += 1

    def end(self) -> None:
        self.ended.set()
        self.join(10)
