"""How well a median is known, and when no more samples are taken: with a clock that is made up."""

import math
import statistics
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from isobatch.validate.options import Extent
from isobatch.validate.proofs import machine, step_time
from isobatch.validate.proofs.step_time import LATE, PRECISION, ROUGHLY
from isobatch.validate.ranks.group import SURE, Group, uncertainty


class Clock:
    """A clock that moves when somebody works."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def work(self, seconds):
        """Takes so long, which it also gives."""
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

    def time(self, work):
        begun = self._clock.now
        work()
        return self._clock.now - begun


@pytest.mark.parametrize("count", [6, 8, 13, 28, 63])
@pytest.mark.parametrize("noise", ["normal", "exponential", "lognormal", "two speeds"])
def test_the_interval_has_the_median_as_often_as_it_says(count, noise):
    rng = np.random.default_rng(count)
    draw = {
        "normal": lambda shape: rng.normal(10, 1, shape),
        "exponential": lambda shape: 10 + rng.exponential(1, shape),
        "lognormal": lambda shape: rng.lognormal(2, 0.5, shape),
        "two speeds": lambda shape: rng.choice([10.0, 14.0], shape, p=[0.7, 0.3]) + rng.normal(0, 0.1, shape),
    }[noise]
    true = float(np.median(draw(200_000)))
    found = 0
    for samples in draw((2000, count)):
        ordered = np.sort(samples)
        # The interval that the figure is half the width of, found again by its width.
        width = 2 * uncertainty(list(samples)) * float(np.median(samples))
        place = int(np.argmin([abs(ordered[-1 - k] - ordered[k] - width) for k in range(count // 2)]))
        found += ordered[place] <= true <= ordered[-1 - place]
    assert found / 2000 >= SURE - 0.015  # three standard errors of 2000 draws


def test_too_few_samples_tell_nothing():
    assert math.isinf(uncertainty([1.0] * 5))
    assert uncertainty([1.0] * 6) == 0.0


def test_samples_end_with_their_time(monkeypatch):
    """Whatever a sample takes, and at most one of them later."""
    for each in (0.001, 0.03, 0.4, 5.0):
        clock, group = Clock(monkeypatch), Alone()
        samples = group.repeat(lambda: clock.work(each), 1.0, 1, 2, 10_000)  # noqa: B023
        assert len(samples) == max(2, math.ceil(1.0 / each) - 1)
        assert clock.now <= max(1.0 + each, 3 * each)


def test_samples_end_where_the_median_is_known(monkeypatch):
    clock, group = Clock(monkeypatch), Alone()
    samples = group.repeat(lambda: clock.work(0.01), 10.0, 0, 2, 1000, within=0.02)
    assert 6 <= len(samples) < 12
    noisy = iter([0.01, 0.02] * 10_000)
    samples = group.repeat(lambda: clock.work(next(noisy)), 3.0, 0, 2, 10_000, within=0.02)
    assert len(samples) >= 190 and uncertainty(samples) > 0.02


def test_all_the_time_is_used_where_nothing_is_to_be_known(monkeypatch):
    clock, group = Clock(monkeypatch), Alone()
    assert len(group.repeat(lambda: clock.work(0.01), 1.0, 0, 2, 1000)) == 100


class Works:
    """Parts of a step, each of which takes the next of some times."""

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


def times_of(monkeypatch, source, extent, late=1.0):
    clock = Clock(monkeypatch)
    group, works = Alone(clock), Works(clock, source)
    seconds = step_time.SECONDS[extent]
    found = step_time._times(group, works, seconds, 0.0, PRECISION[extent], late)
    return found, clock.now, seconds


def test_a_quiet_step_is_known_early(monkeypatch, still):
    found, took, seconds = times_of(monkeypatch, constant(0.03), "quick")
    assert took < seconds / 2
    assert all(len(samples) >= 6 for samples in (found.alone, found.reduced, found.whole))


@pytest.mark.parametrize("late", [1.0, LATE])
def test_a_noisy_step_takes_its_time_and_where_it_is_judged_longer(monkeypatch, still, late):
    found, took, seconds = times_of(monkeypatch, wild(1), "quick", late)
    known = max(map(uncertainty, (found.alone, found.reduced, found.whole)))
    assert known > ROUGHLY
    # To the end of a round, and what is discarded before.
    assert late * seconds <= took <= late * seconds + 3 * (seconds / 3 / step_time.ROUNDS + 3 * 0.09)


@pytest.mark.parametrize("source", [constant(0.03), wild(2)], ids=["quiet", "noisy"])
def test_beyond_quick_all_of_the_time_is_used_and_no_more(monkeypatch, still, source):
    _, took, seconds = times_of(monkeypatch, source, "usual")
    assert seconds <= took <= 1.3 * seconds


class OneOfTwo(Group):
    """A rank that is a thread: it and the other one wait for each other in every collective, or for ever."""

    def __init__(self, rank, clock, meeting, shared):
        self.rank, self.world_size, self._clock = rank, 2, clock
        self._meeting, self._shared = meeting, shared
        self.device, self.pulse = SimpleNamespace(type="cpu"), SimpleNamespace(grant=lambda seconds: None)

    def _all(self, value):
        self._shared[self.rank] = value
        self._meeting.wait(120)
        found = list(self._shared)
        self._meeting.wait(120)
        kinds = {type(one) for one in found}
        assert len(kinds) == 1, f"one rank is in another collective than the other: {found}"
        return found

    def slowest(self, seconds):
        return [max(column) for column in zip(*self._all(list(seconds)), strict=True)]

    def time(self, work):
        self._all("barrier")
        begun = self._clock.now
        work()
        return self._clock.now - begun


@pytest.mark.parametrize("extent", ["quick", "usual"])
def test_ranks_of_other_speeds_do_the_same_in_turn(monkeypatch, still, extent):
    """Here one takes its steps for short ones, that will run freely, and the other does not."""
    clocks, meeting, shared = [Clock(monkeypatch) for _ in range(2)], threading.Barrier(2), [None, None]
    own, counts, faults = threading.local(), [0, 0], []
    monkeypatch.setattr(time, "monotonic", lambda: own.clock.now)

    def rank(number, step):
        own.clock = clocks[number]
        group = OneOfTwo(number, clocks[number], meeting, shared)
        works = Works(clocks[number], iter(np.random.default_rng(number).uniform(step, 1.5 * step, 100_000)))
        try:
            step_time._times(group, works, 1.0, 0.6, PRECISION[extent], LATE)
            shared[number] = ["the end"]
            meeting.wait(120)
        except Exception as error:
            faults.append(error)
            meeting.abort()
        counts[number] = works.taken

    threads = [threading.Thread(target=rank, args=(n, step)) for n, step in enumerate([0.004, 0.021])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert counts[0] == counts[1] > 0


def test_the_parts_of_the_phase_are_its_seconds():
    for extent in Extent.__args__:
        parts = step_time.SIZES_SHARE[extent] + step_time.WINDOW_SHARE[extent] * machine.FIRST_WINDOWS
        assert 1 - parts - step_time.FREE_SHARE > 0
    # Windows in which ranks are compared are as long as they were before the quick verdict became quicker.
    assert step_time.window_seconds("quick") == pytest.approx(2.0 / 30)
    assert machine.SECONDS["quick"] / machine.FIRST_WINDOWS == pytest.approx(0.1)


def test_steps_that_run_freely_keep_to_their_time(monkeypatch):
    for step in (0.001, 0.012, 0.019):
        clock = Clock(monkeypatch)
        works = Works(clock, constant(step))
        found = step_time._free_running(Alone(clock), works, step, 0.6)
        assert found == pytest.approx(step)
        assert works.taken <= step_time.BLOCKS * step_time.BLOCK
        assert clock.now <= 0.6 + 1e-9
    clock = Clock(monkeypatch)
    assert step_time._free_running(Alone(clock), Works(clock, constant(0.1)), 0.1, 0.6) is None


def judged(sync, expected):
    """What is said of steps that took so long."""
    training = SimpleNamespace(
        options=SimpleNamespace(step_seconds=expected, caution=0.1, fail=0.25),
        plan=SimpleNamespace(step_seconds=None, data_parallel=2),
        workload=SimpleNamespace(stand_in=True),
        group=SimpleNamespace(world_size=2, emulated=False),
    )
    step = SimpleNamespace(
        sync_seconds=sync,
        spread=step_time.spread(sync),
        accumulation=1,
        planned_accumulation=1,
        planned_step_seconds=statistics.median(sync),
        samples_per_second=1.0,
    )
    return step_time.judge_time(training, step)


def test_what_is_said_of_the_step_has_its_uncertainty():
    many = judged([0.010, 0.0101, 0.0102, 0.0103, 0.0104, 0.0105, 0.0106], None)
    assert "median of 7 steps known to ± 2.9%" in many.text
    assert many.values["median_uncertainty"] == pytest.approx(0.0006 / 0.0206)
    few = judged([0.01] * 3, None)
    assert "known" not in few.text and "median_uncertainty" not in few.values


def test_a_median_that_is_not_known_well_enough_is_no_verdict():
    """Six samples, most of which are alike: their spread is small, and the median's interval is all of them."""
    six = [0.0100, 0.0115, 0.0115, 0.0115, 0.0115, 0.0130]
    assert step_time.spread(six) < 0.01
    assert judged(six, 0.0100).verdict == "inconclusive"
    assert judged([*six, *[0.0115] * 20], 0.0100).verdict == "caution"
