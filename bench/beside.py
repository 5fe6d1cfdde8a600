"""Speed and memory of another commit's checkout beside this one's, in turns in one run.

Ratios hold on a busy machine, times do not.

python bench/beside.py CHECKOUT    # its extension built into its python/isobatch, as `maturin develop` does
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS = 7

SETUP = """
import json, resource, sys, time
import isobatch as ib
length = {"dataset_size": 1_281_167, "duration": "90ep", "warmup": "5ep", "schedule": "cosine"}
recipe = ib.Recipe.from_gpus(gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", **length)
def least(work, number, repeats=15):
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(number):
            work()
        times.append((time.process_time() - start) / number)
    return min(times)
def fleet(policy, select):
    import numpy as np
    draw = np.random.default_rng(0)
    jobs = {
        "effective_batch": draw.choice([256, 480, 1024, 1536, 4096, 8192], 5_000),
        "lr": draw.uniform(1e-4, 0.1, 5_000), "dataset_size": draw.integers(10**5, 10**7, 5_000),
        "duration": draw.choice(["90ep", "100000st", "300ep"], 5_000),
        "noise_scale": draw.uniform(1e3, 1e5, 5_000),
    }
    model = dict(parameters=10**8, flops_per_sample=1e12)
    profile = ib.Profile.estimate(**model, gpu_tflops=300, intra_gb_s=400, inter_gb_s=40)
    def work():
        ib.plan_fleet(jobs, list(range(1, 257)), policy=policy, select=select, profile=profile,
                      max_micro_batch=64, columns=["job", "world_size", "micro_batch", "hours"])
    work()
    return least(work, 1, 5)
def matrix(kind):
    import numpy as np
    count, steps = 1_000, 10_000
    s, out = ib.schedules, np.ones((count, steps), np.float32)
    body = {"cosine": lambda n: s.cosine(1e-3, n), "constant": lambda n: s.constant(1e-3)}[kind]
    rows = [s.warmup(body(9_500 - i), 500) for i in range(count)]
    def work():
        ib.schedule_matrix(rows, range(steps), out=out)
    work()
    return least(work, 1)
"""

CASES = {
    "one plan, keep, µs": "least(lambda: ib.plan(recipe, 64), 4000) * 1e6",
    "one plan, grow, µs": 'least(lambda: ib.plan(recipe, 64, policy="grow"), 4000) * 1e6',
    "one plan, grow, a named rule, µs": (
        'least(lambda: ib.plan(recipe, 64, policy="grow", rule="linear"), 4000) * 1e6'
    ),
    "a plan and its schedule, µs": "least(lambda: ib.plan(recipe, 64).lr_at(5), 1000) * 1e6",
    "lr_at, µs": "(lambda at: least(lambda: at(12345), 20000))(ib.plan(recipe, 64).lr_at) * 1e6",
    "5,000 jobs × 256 sizes, keep, ms": 'fleet("keep", "fastest") * 1e3',
    "… grow, ms": 'fleet("grow", "fastest") * 1e3',
    "… goodput, ms": 'fleet("goodput", "goodput") * 1e3',
    "1,000 × 10,000 float32, constant, ms": 'matrix("constant") * 1e3',
    "1,000 × 10,000 float32, cosine with warmup, ms": 'matrix("cosine") * 1e3',
    "the first plan in a process, processor ms": "(ib.plan(recipe, 64), time.process_time() * 1e3)[1]",
    "its memory at most, MiB": (
        "(ib.plan(recipe, 64), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)[1]"
    ),
}

PEERS = {
    "import numpy, processor ms": "import numpy, time; print(time.process_time() * 1e3)",
    "import numpy, memory at most, MiB": (
        "import numpy, resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    ),
}


def measure(python: Path, expression: str) -> float:
    """Evaluates a case in a process of its own, with the package of a checkout."""
    code = f"{SETUP}\nprint(json.dumps({expression}))"
    return float(output(code, python))


def output(code: str, python: Path | None = None) -> str:
    """Runs code in a process, on one thread of the core; returns what it prints."""
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    if python is not None:
        environment["PYTHONPATH"] = str(python)
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def main() -> None:
    """Prints a row a case: the least of the rounds on each side, and the median of the rounds' ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path)
    sides = [parser.parse_args().checkout / "python", Path(__file__).parent.parent / "python"]
    print(f"load {os.getloadavg()[0]:.1f}, {ROUNDS} rounds, one thread, processor time\n")
    print("| | before | now | now / before |\n|---|---|---|---|")
    for name, expression in CASES.items():
        turns = [[measure(side.resolve(), expression) for side in sides] for _ in range(ROUNDS)]
        before, now = (min(side) for side in zip(*turns, strict=True))
        print(f"| {name} | {before:.3g} | {now:.3g} | {statistics.median(b / a for a, b in turns):.2f} |")
    for name, code in PEERS.items():
        print(f"| {name} | | {min(json.loads(output(code)) for _ in range(ROUNDS)):.3g} | |")


if __name__ == "__main__":
    main()
