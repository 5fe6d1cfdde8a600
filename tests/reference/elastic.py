"""The best elastic batch by trying every batch, count and micro-batch."""

from collections.abc import Sequence


def elastic(
    gpus: Sequence[int],
    max_batch: int,
    micro_batches: Sequence[int],
    model_parallel: int = 1,
    gpus_per_node: int | None = None,
    prefer_larger: bool = True,
    weights: Sequence[float] | None = None,
) -> tuple[int | None, float, list[tuple[int, int, int]]]:
    """The batch, the weight of the counts that work at it, and (count, micro-batch, accumulation) of each."""

    def splits(batch: int) -> list[tuple[int, int, int]]:
        found = []
        for count in sorted(gpus):
            if count % model_parallel or count % (gpus_per_node or 1):
                continue
            replicas = count // model_parallel
            works = [m for m in micro_batches if batch % (replicas * m) == 0]
            if works:
                found.append((count, max(works), batch // (replicas * max(works))))
        return found

    weight_of = dict(zip(gpus, weights if weights is not None else [1.0] * len(gpus), strict=True))
    best: tuple[int | None, float, list[tuple[int, int, int]]] = None, 0.0, []
    for batch in range(1, max_batch + 1):
        found = [s for s in splits(batch) if weight_of[s[0]] > 0]
        weight = sum(weight_of[count] for count, _, _ in found)
        tie = abs(weight - best[1]) <= 1e-12 * best[1]
        if weight > 0 and ((weight > best[1] and not tie) or (tie and prefer_larger)):
            best = batch, weight, found
    return best
