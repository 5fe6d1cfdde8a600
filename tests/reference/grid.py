"""Which batches can be laid out evenly, and how, by trying every micro-batch in every stage."""

from functools import lru_cache
from math import lcm
from typing import Any

from reference import ramp, split

_divisors = lru_cache(maxsize=1 << 14)(split.divisors)


def stages(recipe: dict[str, Any], batch: int) -> list[int]:
    """Every batch of a run whose full batch this is; none where one of them is not whole."""
    if not recipe.get("ramp"):
        return [batch]
    text = ramp.scaled(recipe["ramp"], batch, recipe["effective_batch"])
    return ramp.sizes(text, batch) if text else []


def demand(options: dict[str, Any]) -> int:
    """What every micro-batch must be a multiple of."""
    multiple: int = options.get("micro_batch_multiple", 1)
    return fixed(options) or multiple


def fixed(options: dict[str, Any]) -> int | None:
    """The one micro-batch that is allowed, if it is one."""
    least, most = options.get("min_micro_batch", 1), options.get("max_micro_batch")
    return most if least == most and least > 1 else None


def micro_batch(
    recipe: dict[str, Any], options: dict[str, Any], replicas: int, batch: int, cap: int | None, multiple: int
) -> int | None:
    """The largest micro-batch with which every stage comes out even; None where there is none."""
    sizes = stages(recipe, batch)
    groups = options.get("batch_multiple", 1)
    if not sizes or any(size % replicas or size % groups for size in sizes):
        return None
    shares = [size // replicas for size in sizes]

    def fits(micro: int) -> bool:
        passes = [divmod(share, micro) for share in shares]
        return all(not rest and it % options.get("accumulation_multiple", 1) == 0 for it, rest in passes)

    found = (
        d
        for d in reversed(_divisors(min(shares)))
        if d % multiple == 0
        and (cap is None or d <= cap)
        and d >= options.get("min_micro_batch", 1)
        and fits(d)
    )
    return next(found, None)


def tolerated(
    recipe: dict[str, Any], options: dict[str, Any], replicas: int, batch: int, cap: int | None
) -> int | None:
    """The batch itself where it comes out even, else one that does within the tolerance; None is above `max_batch`.

    Of all of those whose micro-batch is at least three quarters of the largest, the nearest, the smaller of two.
    """
    highest, tolerance = options.get("max_batch") or 2**40, options.get("batch_tolerance", 0.0)

    def micro(of: int) -> int | None:
        return micro_batch(recipe, options, replicas, of, cap, demand(options)) if of <= highest else None

    if micro(batch):
        return batch
    unit = step(options, replicas)
    if options.get("split") == "smaller":
        return next((b for b in range(batch // unit * unit, 0, -unit) if micro(b)), None)
    # A tolerance of 0.3 means three tenths, so the change is rounded as the tolerance itself was.
    allowed = [
        b for b in range(unit, int(batch * (1 + tolerance)) + 2, unit) if abs(b - batch) / batch <= tolerance
    ]
    found = {b: size for b in allowed if (size := micro(b))}
    good = [b for b in found if 4 * found[b] >= 3 * max(found.values())]
    return split.nearest(good, batch)


def step(options: dict[str, Any], replicas: int) -> int:
    """Something that every full batch is a multiple of."""
    return lcm(
        replicas * demand(options) * options.get("accumulation_multiple", 1), options.get("batch_multiple", 1)
    )


def nearest_batch(
    recipe: dict[str, Any], options: dict[str, Any], replicas: int, batch: int, cap: int | None
) -> int | None:
    """The next batch that comes out even, below or above."""
    unit, highest = step(options, replicas), options.get("max_batch") or 2**40
    below = range(min(batch, highest) // unit * unit, 0, -unit)
    last = (batch + unit) * recipe["effective_batch"]
    last *= options.get("min_micro_batch", 1)
    above = range(batch // unit * unit + unit, min(highest, last) + 1, unit)

    def even(of: int) -> bool:
        return bool(micro_batch(recipe, options, replicas, of, cap, demand(options)))

    near = [next((b for b in side if even(b)), None) for side in (below, above)]
    return split.nearest([b for b in near if b], batch)


def nearest_replicas(
    recipe: dict[str, Any],
    options: dict[str, Any],
    ends: tuple[int, int],
    group: int,
    batch: int,
    cap: int | None,
) -> list[int]:
    """The counts of replicas in whole groups next to these, the first downwards and the second upwards, on which some batch
    within the tolerance comes out even.
    """
    down, up = ends
    tolerance, highest = options.get("batch_tolerance", 0.0), options.get("max_batch") or 2**40

    def works(count: int) -> bool:
        if count % group:
            return False
        if micro_batch(recipe, options, count, batch, cap, demand(options)):
            return True
        if not tolerance:
            return False
        unit = step(options, count)
        low = max(unit, -(-int(batch * (1 - tolerance) - 1) // unit) * unit)
        return any(
            abs(b - batch) / batch <= tolerance
            and b <= highest
            and micro_batch(recipe, options, count, b, cap, demand(options))
            for b in range(low, int(batch * (1 + tolerance)) + 2, unit)
        )

    below = next((c for c in range(down, 0, -1) if works(c)), None)
    above = next((c for c in range(up, int(batch * (1 + tolerance)) + 2) if works(c)), None)
    return [count for count in (below, above) if count]
