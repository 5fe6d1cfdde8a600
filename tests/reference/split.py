"""The batch split by trying everything."""


def divisors(number: int) -> list[int]:
    """Every divisor in rising order, in pairs up to the root."""
    small = [d for d in range(1, int(number**0.5) + 2) if d * d <= number and number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def replicas_of(world_size: int, model_parallel: int) -> int | None:
    """Replicas, or None where a replica's GPUs do not divide the world."""
    return None if world_size % model_parallel else world_size // model_parallel


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
