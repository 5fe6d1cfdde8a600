"""The batch split by trying everything."""

from fractions import Fraction


def divisors(number: int) -> list[int]:
    """Every divisor in rising order, in pairs up to the root."""
    small = [d for d in range(1, int(number**0.5) + 2) if d * d <= number and number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def replicas_of(world_size: int, model_parallel: int) -> int | None:
    """Replicas, or None where a replica's GPUs do not divide the world."""
    return None if world_size % model_parallel else world_size // model_parallel


def split(batch: int, replicas: int, cap: int | None, multiple: int = 1) -> tuple[int, int] | None:
    """(micro_batch, accumulation) with the largest dividing micro-batch up to the cap, a multiple of
    `multiple`.
    """
    if batch % replicas:
        return None
    share = batch // replicas
    fits = [d for d in divisors(share) if (cap is None or d <= cap) and d % multiple == 0]
    return (fits[-1], share // fits[-1]) if fits else None


def nearest(values: list[int], to: int) -> int | None:
    """The value nearest to `to`, the smaller of two as near."""
    return min(values, key=lambda value: (abs(value - to), value)) if values else None


def ragged(batch: int, replicas: int, cap: int | None) -> list[list[int]] | None:
    """The micro-batches of each replica in a step, sizes apart by one sample over the replicas, the last one
    smaller.
    """
    if batch < replicas:
        return None
    shares = [batch // replicas + (rank < batch % replicas) for rank in range(replicas)]
    accumulation = 1
    while cap is not None and -(-shares[0] // accumulation) > cap:
        accumulation += 1
    micro = -(-shares[0] // accumulation)
    out = []
    for share in shares:
        sizes = []
        while share:
            sizes.append(min(micro, share))
            share -= sizes[-1]
        out.append(sizes)
    return out


def loss_weights(sizes: list[list[int]]) -> list[list[Fraction]]:
    """The factor of each micro-batch's mean loss: the mean over replicas is then a mean over samples."""
    total = sum(map(sum, sizes))
    return [[Fraction(n * len(sizes), total) for n in rank] for rank in sizes]
