"""Chunks of a step: the chunks of each rank, and the random numbers drawn in each chunk.

A chunk has the same samples and random numbers at any number of ranks.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset

from isobatch.errors import InputError, must_be
from isobatch.planning.plan import Plan
from isobatch.training.dealing import Pass, Span

_MASK = (1 << 64) - 1
_LOOP, _DATA = 0, 1
"""Separate keys for random numbers of the training loop and of the dataset, which a worker may read ahead."""


class Chunk(NamedTuple):
    """A chunk of a run's step, as a rank computes it: its `number` among the rank's `own` of all `chunks` of
    the step; None: a stand-in on a rank without chunks."""

    seed: int
    step: int
    number: int | None
    own: range
    chunks: int

    @property
    def last(self) -> bool:
        """Whether this is the rank's last chunk in the step."""
        return self.number is None or self.number == self.own[-1]

    def seeded(self) -> Any:
        """Seeds the global generators for the loop's draws in this chunk; restores their state after it."""
        number = self.chunks if self.number is None else self.number
        return seeded(self.seed, self.step, number, _LOOP)


def own_chunks(count: int, rank: int, ranks: int) -> range:
    """Returns the numbers of a rank's chunks, a contiguous range; ranges differ by at most one chunk.

    >>> [own_chunks(8, rank, 3) for rank in range(3)]
    [range(0, 2), range(2, 5), range(5, 8)]
    """
    return range(count * rank // ranks, count * (rank + 1) // ranks)


def chunk_of(span: Span, size: int, portion: Pass, seed: int, rank: int, ranks: int) -> Chunk:
    """Returns the chunk of a pass from `chunk_passes`, if the pass was dealt from offset 0."""
    count = -(-span.samples // size)
    number = None if portion.stand_in else portion.places.start // size
    return Chunk(seed, span.number, number, own_chunks(count, rank, ranks), count)


def chunk_passes(span: Span, size: int, rank: int, ranks: int) -> list[Pass]:
    """Lists the passes of a rank in a step, one for each of its chunks.

    A rank without chunks makes a stand-in, so that it takes part in the exchange. The last chunk of an
    epoch's short step may be smaller.

    >>> step = Span(0, 0, 0, 10, full=False, last_of_epoch=True)
    >>> [list(portion.places) for portion in chunk_passes(step, 4, 1, 2)]
    [[4, 5, 6, 7], [8, 9]]
    """
    stop = span.offset + span.samples
    own = own_chunks(-(-span.samples // size), rank, ranks)
    starts = [span.offset + number * size for number in own]
    places = [range(start, min(start + size, stop)) for start in starts]
    passes = [Pass(part, len(part), part is places[-1], stop) for part in places]
    return passes or [Pass(range(span.offset, span.offset + 1), 0, True, stop)]


# ---- the settings of a run in chunks ----


def chunk_settings(size: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a run with chunks as micro-batches."""
    if type(size) is not int or size < 1:
        raise must_be("a whole number from 1", size, field="chunk")
    if settings.get("policy", "keep") == "grow":
        raise InputError(
            "policy must be keep or a batch with chunk=, got 'grow': under it the batch follows the number "
            "of ranks, and so do the bits",
            field="policy",
        )
    fixed = {"max_micro_batch": size, "min_micro_batch": size, "split": "uneven"}
    for name, value in fixed.items():
        if settings.get(name, value) != value:
            raise InputError(
                f"{name} must be left out with chunk={size}, which is the micro-batch, got "
                f"{settings[name]!r}",
                field=name,
            )
    return {**settings, **fixed}


def check_chunks(size: int, plan: Plan, course: Plan, processes: int) -> None:
    """Refuses a step without the same chunks at every number of ranks."""
    policy = plan.settings.policy
    batches = [plan.recipe.effective_batch if isinstance(policy, str) else policy]
    if plan.status != "infeasible":
        batches = [stage.batch for stage in course.stages]
    for batch in batches:
        if batch % size:
            raise InputError(f"chunk must divide the batch, {batch:,}, got {size}", field="chunk")
    if plan.recipe.model_parallel > 1 or plan.data_parallel not in (None, processes):
        raise InputError(
            "chunk= needs the whole model on every rank: tensor and pipeline parallelism are not supported "
            "with it",
            field="chunk",
        )
    chunks = batches[-1] // size
    if chunks < processes:
        raise InputError(
            f"chunk={size} gives {chunks:,} chunks a step, too few for {processes:,} ranks: use fewer ranks, "
            "or a smaller chunk",
            field="chunk",
        )


# ---- random numbers ----


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seeds the global generators of torch, NumPy and Python by a key; restores their state afterwards."""
    words = np.random.SeedSequence([part & _MASK for part in key]).generate_state(4)
    cuda: Any = torch.cuda
    on_gpu = cuda.is_available() and cuda.is_initialized()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    gpu_state = cuda.get_rng_state() if on_gpu else None
    seed = int(words[0]) << 31 | int(words[1]) >> 1
    torch.default_generator.manual_seed(seed)
    np.random.seed(words[2:])
    random.seed(seed)
    if on_gpu:
        cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if gpu_state is not None:
            cuda.set_rng_state(gpu_state)


class ChunkPlaces(list[int]):
    """The samples of a chunk, with the seed key of their augmentation, also in a DataLoader's worker."""

    def __init__(self, places: Sequence[int], key: tuple[int, ...]) -> None:
        super().__init__(places)
        self.key = key

    def __reduce__(self) -> Any:
        return ChunkPlaces, ([*self], self.key)


def chunk_places(places: Sequence[int], size: int, seed: int, span: Span, portion: Pass) -> ChunkPlaces:
    """Returns the samples of a pass of `chunk_passes`, with their key."""
    number = (portion.places.start - span.offset) // size
    return ChunkPlaces(places, (seed, span.number, number, _DATA))


class SeededDataset(Dataset[Any]):
    """A dataset read chunk by chunk, with generators seeded for each chunk."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[place]

    def __getitems__(self, places: ChunkPlaces) -> list[Any]:
        """Reads the samples of a chunk."""
        with seeded(*places.key):
            read = getattr(self.dataset, "__getitems__", None)
            return list(read([*places]) if read else map(self.dataset.__getitem__, places))
