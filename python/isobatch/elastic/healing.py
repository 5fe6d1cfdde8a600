"""Heals ranks behind: the furthest rank sends them its state, which they receive whole, load, and check by
checksum.
"""

import hashlib
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from isobatch.elastic.messages import OUT, Announced, Circle, Held, Parcel, name_of
from isobatch.elastic.training import TrainingState
from isobatch.errors import InputError

_PIECE = 1 << 24
"""Bytes sent at once."""
_MAX_LAYOUT = 1 << 28
"""The most bytes of a state's layout."""


class NoReplica(InputError):
    """No rank of the crew can go on: the shards left of the state are not all of the same step."""


def heal(training: TrainingState, own: Held, lease: float, circle: Circle) -> Held:
    """Brings all ranks of the new group to the state of the furthest replica, sent shard by shard to ranks
    behind; each part may take `lease` seconds. Without a whole replica all ranks raise NoReplica."""
    states, shards = circle.held("held", own), training.shards

    def worth(first: int) -> tuple[bool, bool, int, int]:
        replica = states[first : first + shards]
        steps = [state.step for state in replica]
        return min(steps) != OUT, all(state.trained for state in replica), min(steps), -first

    first = max(range(0, len(states), shards), key=worth)
    best = states[first + dist.get_rank() % shards]
    whole, trained = worth(first)[:2]
    if not whole or (not trained and any(state.trained for state in states)):
        raise NoReplica("no replica is left with all of its shards at the same step: go on from a checkpoint")
    begins = {state.step for state in states if not state.trained and state.step != OUT}
    if not best.trained and len(begins) > 1:
        raise InputError(
            f"the ranks begin at steps {sorted(begins)}: start all of them with the same checkpoint",
            field="state",
        )
    sources = {}
    for rank, state in enumerate(states):
        source = first + rank % shards
        if (state.step, state.checksum) != (states[source].step, states[source].checksum):
            sources[rank] = source
    _name_drift(states, sources, circle)
    if sources:
        _send(training, sources, best.checksum, timedelta(seconds=lease), circle)
    return best


def _name_drift(states: list[Held], sources: dict[int, int], circle: Circle) -> None:
    """Warns of ranks with different weights at the same step, before their weights are overwritten."""
    names = circle.table.ids
    for rank, source in sources.items():
        state, reference = states[rank], states[source]
        if state.trained and reference.trained and state.step == reference.step:
            warnings.warn(
                f"rank {name_of(names[rank])} had other weights than {name_of(names[source])} at the same "
                f"step, {state.step:,}, and now takes those: the ranks did not train alike, as without "
                "crew.wrap",
                stacklevel=4,
            )


def _send(
    training: TrainingState, sources: dict[int, int], checksum: str, patience: timedelta, circle: Circle
) -> None:
    """Sends the layout of the state to the ranks behind, then the tensors if all can take them."""
    parcel, parts = Parcel(), list[torch.Tensor]()
    behind = [receiver for receiver, sender in sources.items() if sender == dist.get_rank()]
    if behind:
        try:
            layout, tensors = training.write()
            parts = [torch.frombuffer(bytearray(layout), dtype=torch.uint8), tensors]
            digest = hashlib.sha256(layout).hexdigest()
            parcel = Parcel((Announced(len(layout), digest), Announced(tensors.numel(), "")))
        except InputError as error:
            parcel = Parcel(error=str(error))
    parcels_ = _without_error(circle.gather("parcel", parcel))
    source = sources.get(dist.get_rank())
    pieces = None if source is None else parcels_[source].pieces
    answer, received = Parcel(), None
    if parts:
        _pass_on(parts[0], dist.isend, behind, patience)
    elif source is not None:
        try:
            if pieces is None or pieces[0].size > _MAX_LAYOUT or pieces[1].size > training.room:
                raise InputError(
                    f"the others' state is larger than this rank can use: {training.room:,} bytes"
                )
            written, digest = _received(pieces[0].size, source, patience)
            _check_digest(digest, pieces[0].digest)
            received = training.check_layout(bytes(written.numpy()), pieces[1].size)
        except InputError as error:
            answer = Parcel(error=str(error))
    _without_error(circle.gather("answer", answer))
    digest = ""
    if parts:
        digest = _pass_on(parts[1], dist.isend, behind, patience)
    elif pieces is not None and source is not None:
        tensors, digest = _received(pieces[1].size, source, patience)
    sent = circle.gather("sent", Announced(0, digest))
    if source is not None and received is not None:
        _check_digest(digest, sent[source].digest)
        # The state is complete here: from now on only this process's own end can leave it half loaded.
        training.read(received, tensors)
        if training.checksum() != checksum:
            raise InputError("the others' state changed while it was loaded here: its checksum differs")


def _without_error(messages: list[Parcel]) -> list[Parcel]:
    for message in messages:
        if message.error is not None:
            raise InputError(message.error)
    return messages


def _received(size: int, source: int, patience: timedelta) -> tuple[torch.Tensor, str]:
    """Receives bytes; returns them with their digest."""
    written = torch.empty(size, dtype=torch.uint8)
    return written, _pass_on(written, dist.irecv, [source], patience)


def _check_digest(own: str, signed: str) -> None:
    """Raises a RuntimeError for received bytes with another digest than the sender signed."""
    if own != signed:
        raise RuntimeError("gloo: what came is not the state that was announced")


def _pass_on(
    written: torch.Tensor, begin: Callable[[torch.Tensor, int], Any], ranks: list[int], patience: timedelta
) -> str:
    """Sends or receives bytes, part by part, each part to or from all `ranks` at once; returns their SHA-256.

    gloo waits for a send or a receive as long as ranks may take to connect, and does not notice that the
    receiver died. So each part has a time-out of its own. The digest is computed during the transfer: of the
    part being sent, or of the part received before.
    """
    digest, sends = hashlib.sha256(), begin is dist.isend
    ready = torch.empty(0, dtype=torch.uint8)
    for part in torch.split(written, _PIECE):
        works = [begin(part, rank) for rank in ranks]
        digest.update((part if sends else ready).numpy().data)
        for work in works:
            work.wait(patience)
        ready = part
    if not sends:
        digest.update(ready.numpy().data)
    return digest.hexdigest()
