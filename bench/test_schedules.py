"""Schedules in bulk and one by one, beside the peers.

    pytest bench/test_schedules.py                     # two threads
    RAYON_NUM_THREADS=1 pytest bench/test_schedules.py
    python bench/test_schedules.py                     # ratios of processor time, in turns, minimum of many
    python bench/test_schedules.py fill                # cosine with warmup over NumPy's fill, wall time

The ratios are what counts: on a shared machine the two sides of one must be measured in turns.
"""

import math
import os
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import isobatch as ib
from isobatch import schedules as S

JOBS, STEPS = 1_000, 10_000
WARM = 500


def bodies(after_warmup, total):
    return {
        "constant": S.constant(0.1),
        "linear": S.linear(0.1, after_warmup),
        "cosine": S.cosine(0.1, after_warmup),
        "polynomial": S.polynomial(0.1, after_warmup, 2),
        "polynomial ½": S.polynomial(0.1, after_warmup, 0.5),
        "exponential": S.exponential(0.1, 0.01, after_warmup),
        "inverse_sqrt": S.inverse_sqrt(0.1, WARM),
        "step": S.step(0.1, 2_000, 0.3),
        "multistep": S.multistep(0.1, [3_000, 6_000]),
        "wsd": S.wsd(0.1, after_warmup, after_warmup // 5),
        "one_cycle": S.one_cycle(0.1, total, 3 * total // 10),
        "cosine_restarts": S.cosine_restarts(0.1, 1_000, 2, 0.8),
        "rex": S.rex(0.1, after_warmup),
        "tanh": S.tanh(0.1, after_warmup),
        "one_minus_sqrt": S.one_minus_sqrt(0.1, after_warmup),
        "table": S.table([0.1 / (1 + i / 1_000) for i in range(after_warmup)]),
        "goyal": S.goyal(0.1, total / 90, warmup_epochs=5),
        "vaswani": S.vaswani(512, 4_000),
    }


KINDS = list(bodies(1_000, 2_000))


def jobs(kind, count=JOBS):
    """`count` schedules of a kind (or of all in turn), of 20 different lengths, after a warmup."""
    schedules = []
    for index in range(count):
        total = STEPS - 100 * (index % 20)
        name = KINDS[index % len(KINDS)] if kind == "mixed" else kind
        if index < 20 * len(KINDS):
            body = bodies(total - WARM, total)[name]
            own = name in ("one_cycle", "goyal", "vaswani")
            schedules.append(body if own else S.warmup(body, WARM))
    return [schedules[index % len(schedules)] for index in range(count)]


def by_rows(out):
    """The honest opponent: NumPy, a row at a time, in place."""
    x = np.arange(STEPS, dtype=out.dtype)
    for index, row in enumerate(out):
        total = STEPS - 100 * (index % 20)
        np.multiply(x[WARM:total], math.pi / (total - WARM), out=row[WARM:total])
        row[WARM:total] -= math.pi * WARM / (total - WARM)
        np.cos(row[WARM:total], out=row[WARM:total])
        row[WARM:total] += 1
        row[WARM:total] *= 0.05
        np.multiply(x[:WARM], 0.1 / WARM, out=row[:WARM])
        row[total:] = 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["fill", "mixed", *KINDS])
def test_out(benchmark, kind, dtype):
    out = np.ones((JOBS, STEPS), dtype)
    if kind == "fill":
        benchmark(out.fill, 0.1)
    else:
        rows = jobs(kind)
        benchmark(ib.schedule_matrix, rows, range(STEPS), out=out)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fresh(benchmark, dtype):
    benchmark(ib.schedule_matrix, jobs("cosine"), range(STEPS), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_by_rows(benchmark, dtype):
    benchmark(by_rows, np.ones((JOBS, STEPS), dtype))


def test_optax_jit_vmap(benchmark):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")

    def one(lr, x):
        return optax.warmup_cosine_decay_schedule(0.0, lr, WARM, STEPS)(x)

    both = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    rates, steps = jax.numpy.full(JOBS, 0.1), jax.numpy.arange(STEPS)
    both(rates, steps).block_until_ready()
    benchmark(lambda: both(rates, steps).block_until_ready())


def test_at(benchmark):
    benchmark(jobs("cosine", 1)[0].at, 5_000)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_step(benchmark, library):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    if library == "torch":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    else:
        peer = pytest.importorskip("transformers")
        scheduler = peer.get_scheduler("cosine", optimizer, WARM, STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        benchmark(scheduler.step)


def clock(work, *arguments, **options):
    """Processor time of all threads: what others do on a shared machine does not count."""
    start = time.process_time()
    work(*arguments, **options)
    return time.process_time() - start


def ratios(rounds=15):
    """Every kind over a fill of the same warm memory by the same threads (a constant's rows), in turns."""
    steps, flat = range(STEPS), [S.constant(0.1)] * JOBS
    for dtype in ("float32", "float64"):
        out = np.ones((JOBS, STEPS), dtype)
        print(f"\n{dtype}: processor ns a value, over our fill, over NumPy's fill")
        for kind in ["mixed", *KINDS]:
            rows, readings = jobs(kind), []
            for _ in range(rounds):
                own_seconds = clock(ib.schedule_matrix, rows, steps, out=out)
                readings.append(
                    (own_seconds, clock(ib.schedule_matrix, flat, steps, out=out), clock(out.fill, 0.1))
                )
            own_seconds, fill, plain = np.min(readings, 0)
            print(
                f"{kind:16} {own_seconds / out.size * 1e9:6.3f}  {own_seconds / fill:5.2f} ×  "
                f"{own_seconds / plain:5.2f} ×"
            )
        rows, readings = jobs("cosine"), []
        for _ in range(5):
            readings.append((clock(by_rows, out), clock(ib.schedule_matrix, rows, steps, out=out)))
        numpy_seconds, own_seconds = np.min(readings, 0)
        print(
            f"NumPy by rows    {numpy_seconds / out.size * 1e9:6.3f}  "
            f"{numpy_seconds / own_seconds:5.2f} × ours (cosine)"
        )


def over_fill(rounds=150):
    """Wall time of a cosine with warmup over NumPy's fill of the same warm float32 memory by as many threads,
    in turns."""
    threads = int(os.environ.get("RAYON_NUM_THREADS", os.cpu_count()))
    out = np.ones((JOBS, STEPS), np.float32)
    pool, parts = ThreadPoolExecutor(threads), np.array_split(out, threads)
    rows = jobs("cosine")
    readings = []
    for _ in range(rounds):
        begun = time.perf_counter()
        list(pool.map(lambda part: part.fill(0.1), parts))
        filled = time.perf_counter()
        ib.schedule_matrix(rows, range(STEPS), out=out)
        readings.append((filled - begun, time.perf_counter() - filled))
    fill, cosine = np.array(readings).T / out.size * 1e9
    print(
        f"{threads} threads: fill {fill.min():.3f} ns a value, least; cosine with warmup {cosine.min():.3f}, "
        "least"
    )
    print(
        f"of fill: {fill.min() / cosine.min():.2f} by the least of both, "
        f"{np.median(fill / cosine):.2f} by the "
        "median of turns"
    )


if __name__ == "__main__":
    over_fill() if sys.argv[1:] == ["fill"] else ratios()
