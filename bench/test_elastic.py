"""ib.elastic against DeepSpeed's compute_elastic_config, in one run.

Each cap has the configurations that DeepSpeed's own default serves: every count from 1 to 10,000, and one to five
micro-batches; `usual` draws these from 1, 2, 3, 4, 6, 8, 12 … 64, `any` from all numbers up to 64.

`python bench/test_elastic.py` prints the ratios, both sides in turns.
"""

import random
import time

import numpy as np
import pytest

import isobatch as ib
from peers import deepspeed_elasticity

COUNT = 1000
PEER_COUNT = {"256": COUNT, "4096": COUNT}  # of the others, which take it seconds, the first 60
USUAL = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
CAPS = {
    "256": (250, 262),
    "4096": (4000, 4192),
    "65536": (64_000, 67_000),
    "1e6": (950_000, 1_000_000),
    "64 to 1e6": (64, 1_000_000),
}


def configurations(caps, kind, count):
    rng = random.Random(0)
    low, high = np.log(CAPS[caps])
    sizes = USUAL if kind == "usual" else range(1, 65)
    return [(int(np.exp(rng.uniform(low, high))), rng.sample(sizes, rng.randint(1, 5))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["usual", "any"])
@pytest.mark.parametrize("caps", CAPS)
def test_isobatch(benchmark, caps, kind):
    batches, micros = zip(*configurations(caps, kind, COUNT), strict=True)
    benchmark.group = f"elastic, {kind} micro-batches, cap {caps}"
    benchmark.extra_info["rows"] = COUNT
    benchmark(ib.elastic, max_batch=batches, micro_batches=micros, gpus=range(1, 10_001))


def peer_rows(caps, kind):
    """DeepSpeed's own form of the configurations; it refuses a micro-batch above the cap."""
    return [
        {
            "elasticity": {
                "enabled": True,
                "max_train_batch_size": cap,
                "micro_batch_sizes": micros,
                "version": 0.1,
            }
        }
        for cap, micros in configurations(caps, kind, COUNT)[: PEER_COUNT.get(caps, 60)]
        if max(micros) <= cap
    ]


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["usual", "any"])
@pytest.mark.parametrize("caps", CAPS)
def test_deepspeed(benchmark, caps, kind):
    elasticity, rows = deepspeed_elasticity(), peer_rows(caps, kind)
    benchmark.group = f"elastic, {kind} micro-batches, cap {caps}"
    benchmark.extra_info["rows"] = len(rows)
    benchmark.pedantic(lambda: [elasticity.compute_elastic_config(row, "0.19.7") for row in rows], rounds=3)


def least(work, rounds):
    seen = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        seen.append(time.perf_counter() - start)
    return min(seen)


def ratios():
    """Wall time a configuration, the least of all turns."""
    elasticity = deepspeed_elasticity()
    print(
        f"{'cap':10} {'micros':6} {'DeepSpeed':>10} {'isobatch':>9} {'ratio':>6} {'and splits':>10}   µs each"
    )
    for caps in CAPS:
        for kind in ("usual", "any"):
            batches, micros = map(list, zip(*configurations(caps, kind, COUNT), strict=True))
            peers = peer_rows(caps, kind)

            def ours(batches=batches, micros=micros):
                return ib.elastic(max_batch=batches, micro_batches=micros, gpus=range(1, 10_001))

            def theirs(peers=peers):
                return [elasticity.compute_elastic_config(row, "0.19.7") for row in peers]

            seen = [
                (least(theirs, 1), least(ours, 20), least(lambda: ours().accumulation, 20))
                for _ in range(20 if caps in PEER_COUNT else 3)
            ]
            peer, mine, split = np.min(seen, 0) * 1e6 / (len(peers), COUNT, COUNT)
            print(f"{caps:10} {kind:6} {peer:10.1f} {mine:9.3f} {peer / mine:6.0f} {split:10.3f}", flush=True)


if __name__ == "__main__":
    ratios()
