"""Mutations of each message of a run: all but the signed message, to the last bit, is refused.

python tests/ddp/mutations.py 1000000
"""

import json
import random
import sys
import time
from collections import Counter

import msgspec
import torch

from isobatch.elastic import parcels
from isobatch.elastic.messages import (
    Announced,
    Beat,
    Held,
    Here,
    Note,
    Parcel,
    Roster,
    RunFacts,
    Saved,
    Seal,
    Seat,
)
from isobatch.errors import InputError

MEMBER = "node|1/0|10.0.0.1:4711|" + "5f" * 16
TABLE = Roster(7, (Seat(MEMBER, 41), Seat(MEMBER.replace("node", "elsewhere"), -1)))
MESSAGES = {
    f"beat/{MEMBER}": Beat(3),
    "facts": RunFacts({"recipe's lr": 0.1, "settings": {"seed": "1"}}),
    "refused": Note("node/0", "seed is 1 on this rank"),
    f"{TABLE.mark}/over": Note("node/0", "gloo: the connection was closed"),
    f"{TABLE.mark}/next": Roster(8, TABLE.seats),
    f"{TABLE.mark}/crew": TABLE,
    f"{TABLE.mark}/in": Seat(MEMBER, 41),
    f"{TABLE.mark}/here": Here(MEMBER),
    f"{TABLE.mark}/end": Here(MEMBER),
    f"{TABLE.mark}/done": Here(MEMBER),
    "saved": Saved(40),
    f"{TABLE.mark}/held/{MEMBER}": Held(41, True, "0123456789abcdef", {"step": 41, "legs": [[0, 2, 24, 0]]}),
    f"{TABLE.mark}/parcel/{MEMBER}": Parcel((Announced(812, "ab" * 32), Announced(4096, ""))),
    f"{TABLE.mark}/sent/{MEMBER}": Announced(0, "ef" * 32),
    f"{TABLE.mark}/answer/{MEMBER}": Parcel(error="net.0.weight is float32 (3,) there, missing here"),
}
OWN = Seal(b"the key of this run", "run")
FOREIGN = Seal(b"the key of another", "run"), Seal(b"the key of this run", "elsewhere"), Seal()
STATE = {
    "net": torch.nn.BatchNorm1d(2).state_dict(),
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0)}},
        "param_groups": [{"betas": (0.9, 0.99), "lr": 1e-3}],
    },
    "extra": {"scaler": {"scale": float("inf"), "at": -(2**80), "on": True, "no": None}},
}


def mutate(written: bytes, chance: random.Random) -> bytes:
    """Returns the bytes with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(written) + 1)
        end = min(len(written), at + chance.randint(1, 8))
        piece = written[at:end]
        match chance.randrange(7):
            case 0 if piece:
                piece = bytes([piece[0] ^ 1 << chance.randrange(8)]) + piece[1:]
            case 1:
                piece = b""
            case 2:
                piece *= 2
            case 3:
                piece = chance.randbytes(chance.randint(1, 8))
            case 4:
                piece = chance.choice(
                    [b"-1", b"1e999", b"null", b'"', b"{", b"[" * 50, b"\n", b" ", b"9" * 30, b"\\u0000"]
                )
            case 5:
                piece += bytes(8)
            case 6:
                end = len(written)
                piece = b""
        written = written[:at] + piece + written[end:]
    return written


def read(place: str, written: bytes):
    return OWN.read(place, written, type(MESSAGES[place]))


def play(count: int, seed: int = 0) -> Counter:
    """Plays so many mutations; counts the refused and the read ones, and fails at any other outcome."""
    chance, outcomes = random.Random(seed), Counter()
    places = [*MESSAGES]
    layout = msgspec.json.encode(parcels.layout_of(STATE)[0])
    for turn in range(count):
        place = places[turn % len(places)]
        message = MESSAGES[place]
        written = OWN.write(place, message)
        match chance.randrange(6):
            case 0:  # The message of another place, another run or another key.
                elsewhere = chance.choice(places)
                seal = chance.choice([OWN, *FOREIGN])
                written = seal.write(elsewhere, MESSAGES[elsewhere])
                same = elsewhere == place and seal is OWN
                outcome = read(place, written)
                assert outcome == (message if same else None), (place, written)
            case 1:  # A signature of another message.
                elsewhere = OWN.write(chance.choice(places), message)
                outcome = read(place, elsewhere[:65] + mutate(written[65:], chance))
                assert outcome is None or elsewhere == written, (place, written)
            case 2:  # Nonsense signed with the key: the fields are checked.
                outcome = read(place, _signed(place, mutate(written[65:], chance)))
                assert outcome is None or type(outcome) is type(message)
            case 3:  # A layout whose digest was right.
                changed = mutate(layout, chance)
                try:
                    outcome, specs = parcels.read_layout(changed)
                    assert all(
                        kind in parcels.TYPES and min(shape, default=0) >= 0 for kind, shape in specs.values()
                    )
                except InputError:
                    outcome = None
            case _:
                changed = mutate(written, chance)
                outcome = read(place, changed)
                assert outcome == (message if changed == written else None), (place, changed)
        outcomes["refused" if outcome is None else "read"] += 1
    return outcomes


def _signed(place: str, body: bytes) -> bytes:
    return OWN._sign(place, body) + b" " + body


if __name__ == "__main__":
    begun = time.monotonic()
    print(json.dumps({**play(int(sys.argv[1])), "seconds": round(time.monotonic() - begun, 1)}))
