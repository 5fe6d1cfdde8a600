"""Ctrl-C interrupts bulk calls, and an impossible number of threads stops nothing."""

import os
import subprocess
import sys

import pytest

# A call of some seconds; the clock starts when the main thread is inside of it.
PROGRAM = """
import os, signal, threading, time
import numpy as np
import isobatch as ib

n = 4000
jobs = {"effective_batch": np.arange(1, n + 1) * 64, "lr": np.full(n, 0.1), "policy": np.full(n, "goodput"),
        "noise_scale": np.full(n, 1000.0), "duration": np.full(n, "1000st")}
links = {"intra_gb_s": 240, "inter_gb_s": 25}
profile = ib.Profile.estimate(parameters=10**8, flops_per_sample=8e11, gpu_tflops=312, **links)
sent = []

def interrupt():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)

ib.plan_fleet({name: column[:10] for name, column in jobs.items()}, [8], profile=profile)
threading.Timer(0.3, interrupt).start()
try:
    CALL
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
else:
    print("ran to its end")
"""


def interrupted(call):
    program = PROGRAM.replace("CALL", call)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    return process.stdout.strip() or process.stderr


@pytest.mark.alone
@pytest.mark.race("judges by the clock how soon a signal is heard, which a busy machine delays")
@pytest.mark.parametrize(
    "call",
    [
        "ib.plan_fleet(jobs, range(1, 4001), profile=profile, columns=['micro_batch'])",
        "ib.plan_fleet(jobs, range(1, 4001), profile=profile, select='goodput')",
        "ib.schedules.cosine(1.0, 10**9).values(np.arange(5e7))",
        "ib.schedule_matrix([ib.schedules.product(*[ib.schedules.polynomial(0.1, 10**9, 1.37).with_clock("
        "[(0, 0), (1, 1.01)])] * 60)] * 64, np.random.default_rng(0).uniform(0, 1e9, 200_000))",
    ],
    ids=["plan", "choose", "schedule", "matrix"],
)
def test_ctrl_c_ends_a_bulk_call(call):
    # 0.1 s between looks. A busy machine may hold up any one try, and for longer.
    tries = (interrupted(call) for _ in range(3))
    assert any(float(seconds) < 0.6 for seconds in tries)


def test_a_number_of_threads_that_no_machine_has():
    program = (
        "import numpy as np, isobatch as ib\n"
        "jobs = {'effective_batch': np.full(9000, 256), 'lr': np.full(9000, 0.1)}\n"
        "print((ib.plan_fleet(jobs, [8], columns=['micro_batch'])['micro_batch'] == 32).all())"
    )
    environment = {**os.environ, "RAYON_NUM_THREADS": "99999999"}
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment
    )
    assert process.stdout.strip() == "True", process.stderr
