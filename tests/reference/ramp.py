"""Runs with a growing batch, walked step by step."""

from collections.abc import Iterator

_SUFFIX = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def batches(ramp: str, full: int, seq_len: int | None = None) -> Iterator[tuple[int, int]]:
    """(samples consumed before the step, its batch) for step after step without end."""
    consumed = 0
    while True:
        batch = batch_at(ramp, full, consumed, seq_len)
        yield consumed, batch
        consumed += batch


def batch_at(ramp: str, full: int, consumed: int, seq_len: int | None = None) -> int:
    """The batch of the step after this many consumed samples."""
    if ":" in ramp:
        assert seq_len is not None
        batch = 0
        for pair in ramp.split():
            threshold, size = pair.split(":")
            tokens = (
                int(threshold[:-1]) * _SUFFIX[threshold[-1]] if threshold[-1] in _SUFFIX else int(threshold)
            )
            if consumed >= tokens // seq_len:
                batch = int(size)
        return batch
    start, increment, samples = map(int, ramp.split())
    if consumed > samples:
        return full
    increments = (full - start) // increment
    return start + (consumed * increments // samples) * increment if samples else full


def run(
    ramp: str, full: int, samples: int, *, floored: bool = True, seq_len: int | None = None
) -> tuple[int, int]:
    """(steps, their samples) of a run of so many samples; a last batch beyond the end is left out or
    counts.
    """
    for steps, (consumed, batch) in enumerate(batches(ramp, full, seq_len)):
        if consumed >= samples or (floored and consumed + batch > samples):
            return steps, consumed
    raise AssertionError


def sizes(ramp: str, full: int) -> list[int]:
    """Every batch of the ramp, the full one last."""
    if ":" in ramp:
        return [int(pair.split(":")[1]) for pair in ramp.split()]
    start, increment, _ = map(int, ramp.split())
    return [*range(start, full, increment), full]


def scaled(ramp: str, batch: int, tuned: int) -> str | None:
    """The ramp at another full batch: every batch by the same factor, at the same samples.

    None where that is not a whole number of samples.
    """
    whole = ramp.split() if ":" in ramp else ramp.split()[:2]
    sizes = [int(part.split(":")[-1]) for part in whole]
    if any(size * batch % tuned for size in sizes):
        return None
    moved = [size * batch // tuned for size in sizes]
    if ":" in ramp:
        return " ".join(f"{pair.split(':')[0]}:{size}" for pair, size in zip(whole, moved, strict=True))
    return f"{moved[0]} {moved[1]} {ramp.split()[2]}"
