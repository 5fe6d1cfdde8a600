"""The number of a step's samples and their figures, by a clock of its own."""

import math
import statistics
import time
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from isobatch.validate.proofs import step_time
from isobatch.validate.ranks.group import Group


class Clock:
    """A clock, moved by work alone."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def work(self, seconds):
        self.now += seconds
        return seconds


class Alone(Group):
    """Rank 0 of one, without torch's groups."""

    def __init__(self, clock=None):
        self.rank, self.world_size, self._clock = 0, 1, clock
        self.device, self.limit = SimpleNamespace(type="cpu"), timedelta(seconds=60)
        self.pulse = SimpleNamespace(grant=lambda seconds: None)
        self.asked = 0

    def slowest(self, seconds):
        self.asked += 1
        return list(seconds)

    def from_first(self, value, kind=None):
        return value

    def time(self, work):
        begun = self._clock.now
        work()
        return self._clock.now - begun


def test_samples_end_with_their_time(monkeypatch):
    """Whatever a sample takes, and at most one of them later."""
    for each in (0.001, 0.03, 0.4, 5.0):
        clock, group = Clock(monkeypatch), Alone()
        samples = group.repeat(lambda: clock.work(each), 1.0, 1, 2, 10_000)  # noqa: B023
        assert len(samples) == max(2, math.ceil(1.0 / each) - 1)
        assert clock.now <= max(1.0 + each, 3 * each)


def test_all_the_time_is_used_where_nothing_is_to_be_known(monkeypatch):
    clock, group = Clock(monkeypatch), Alone()
    assert len(group.repeat(lambda: clock.work(0.01), 1.0, 0, 2, 1000)) == 100


class Works:
    """Parts of a step; each takes the next of some times."""

    def __init__(self, clock, times):
        self._clock, self._times = clock, times
        self.taken = 0

    def _one(self):
        self.taken += 1
        self._clock.work(next(self._times))

    alone = reduced = whole = _one

    def clear(self):
        pass


@pytest.fixture
def still(monkeypatch):
    """Memory is not looked at."""
    monkeypatch.setattr(step_time.PeakMemory, "__enter__", lambda self: self)
    monkeypatch.setattr(step_time.PeakMemory, "__exit__", lambda self, *_: None)


def constant(value):
    while True:
        yield value


def wild(seed):
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.choice([0.03, 0.09]))


@pytest.mark.parametrize("extent", ["quick", "usual"])
@pytest.mark.parametrize("source", [constant(0.03), wild(2)], ids=["quiet", "noisy"])
def test_all_of_the_time_is_used_and_no_more(monkeypatch, still, source, extent):
    clock = Clock(monkeypatch)
    seconds = step_time.SECONDS[extent]
    times = step_time._times(Alone(clock), Works(clock, source), seconds, 0.0)
    # To the end of a block, and what is discarded before.
    assert 0.9 * seconds <= clock.now <= 1.3 * seconds + 18 * 0.09
    assert all(len(samples) >= 6 for samples in (times.alone, times.reduced, times.whole))


def test_a_slow_step_ends_after_a_round(monkeypatch, still):
    clock = Clock(monkeypatch)
    works = Works(clock, constant(5.0))
    step_time._times(Alone(clock), works, 2.0, 0.0)
    assert works.taken == step_time.DISCARDED + 3 * step_time.MIN_SAMPLES


def test_steps_that_run_freely_keep_to_their_time(monkeypatch):
    for step in (0.001, 0.012, 0.019):
        clock = Clock(monkeypatch)
        works = Works(clock, constant(step))
        blocks = step_time.free_running(Alone(clock), works.whole, step, 0.6)
        assert blocks == pytest.approx([step] * step_time.BLOCKS)
        assert works.taken <= step_time.BLOCKS * step_time.BLOCK
        assert clock.now <= 0.6 + 1e-9
    clock = Clock(monkeypatch)
    assert step_time.free_running(Alone(clock), Works(clock, constant(0.1)).whole, 0.1, 0.6) == []


class Waiting(Alone):
    """A rank whose clock takes 2 ms, as a GPU's, waiting for its host between two samples."""

    def time(self, work):
        return super().time(work) + 0.002

    def gather(self, value, kind=None):
        return [value]


def table(monkeypatch, each):
    """Times micro-batches 2 to 16, of `each` seconds a sample."""
    clock = Clock(monkeypatch)
    works, sizes = SimpleNamespace(clear=lambda: None), []
    options = SimpleNamespace(extent="usual")
    works.training = SimpleNamespace(group=Waiting(clock), options=options, micro_batch=16)
    works.take = lambda n: sizes.append(n) or True
    works.small = lambda: clock.work(each * sizes[-1])
    return step_time.micro_batch_table(works, 3.0, 16), clock


def test_a_calibration_gets_no_waits_for_a_clock(monkeypatch, still):
    """A wait in each sample of a short step would read as 2 ms of every micro-batch."""
    rows, clock = table(monkeypatch, 0.001)
    for row in rows:
        seconds = row.micro_batch * 0.001 + 0.002 / 20
        assert statistics.median(row.step_seconds) == pytest.approx(seconds, rel=0.02)
    assert [row.micro_batch for row in rows] == [2, 4, 8, 16]
    assert clock.now < 3.3
    # A long step's wait is nothing.
    rows, _ = table(monkeypatch, 0.1)
    assert [len(row.step_seconds) for row in rows] == [3, 3, 3, 3]


def test_a_calibration_gets_the_whole_steps_that_ran_freely(monkeypatch, still):
    step = SimpleNamespace(
        ranks=2,
        nodes=1,
        micro_batch=8,
        accumulation=1,
        gradient_bytes=4e6,
        bucket_bytes=[4_000_000],
        workload="mlp",
        micro_batches=[],
        sync_seconds=[0.007, 0.0071, 0.0069],
    )
    machine = SimpleNamespace(emulated=False, ranks=[SimpleNamespace(device="a GPU")])
    allreduce = SimpleNamespace(table=[])
    for free, expected in ((0.005, (0.005,)), (None, (0.007, 0.0071, 0.0069))):
        step.free_running_seconds = free
        measured = step_time.measurements(machine, step, allreduce)
        assert measured.steps[-1].step_seconds == expected


def test_half_the_distance_of_the_quartiles_is_the_spread():
    seconds = [0.010, 0.0101, 0.0102, 0.0103, 0.0104, 0.0105, 0.0106]
    assert step_time.spread(seconds) == pytest.approx(0.00015 / 0.0103)
