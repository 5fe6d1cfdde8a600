"""Signed messages between the ranks of a crew, inside their process group."""

from typing import NamedTuple, TypeVar

import torch.distributed as dist

from isobatch.integrations.torch.elastic.messages import OUT, Held, Roster, Seal, name_of
from isobatch.integrations.torch.exchange import gather_bytes

T = TypeVar("T")


class Circle(NamedTuple):
    """Exchanges signed messages among the ranks of a crew."""

    seal: Seal
    table: Roster

    def gather(self, purpose: str, message: T) -> list[T]:
        """Returns the messages of all ranks, in the order of the ranks."""
        ids, kind = self.table.ids, type(message)
        places = [f"{self.table.mark}/{purpose}/{member}" for member in ids]
        parts = gather_bytes(self.seal.write(places[dist.get_rank()], message))
        messages = [self.seal.read(place, part, kind) for place, part in zip(places, parts, strict=True)]
        for member, read in zip(ids, messages, strict=True):
            if read is None:
                raise RuntimeError(f"gloo: what {name_of(member)} says is not signed with the run's key")
        return messages  # type: ignore[return-value]

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
