"""How often the ranks agree: by what all of them know, so that none waits for another."""

import itertools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from isobatch.elastic import agreement  # noqa: E402
from isobatch.elastic.agreement import Agreements  # noqa: E402


class Two:
    """Two ranks; the second has a given step time, and may be asked to stop."""

    size = 2

    def __init__(self, micros, asked_at=None):
        self.micros, self.asked_at, self.begun = micros, asked_at, []

    def group(self):
        return self

    def allreduce(self, tensors):
        (values,) = tensors
        is_asked = len(self.begun) == self.asked_at
        self.begun.append(values.tolist())
        values += torch.tensor([is_asked, 0.0, self.micros, 0.0])
        return SimpleNamespace(wait=lambda: None)


def clock(monkeypatch, step):
    """A clock with `step` seconds for each step."""
    times = itertools.count(0.0, step)
    now = [next(times)]
    monkeypatch.setattr(agreement, "monotonic", lambda: now[0])

    def tick():
        now[0] = next(times)

    return tick


def agreed_at(monkeypatch, ranks, seconds, steps=40):
    """Returns the steps with an agreement."""
    agreements, tick, agreed = Agreements(ranks), clock(monkeypatch, seconds), []
    for step in range(steps):
        before = len(ranks.begun)
        agreements.begin_step(False)
        if len(ranks.begun) > before:
            agreed.append(step)
        tick()
    return agreed


@pytest.mark.parametrize(
    ("own_seconds", "seconds_there", "every"),
    [
        (0.1, 100_000, 1),
        (0.05, 50_000, 1),
        (0.025, 25_000, 2),
        (0.006, 6_000, 8),
        (0.001, 1_000, 10),
        (0.006, 94_000, 1),
    ],
)
def test_quick_steps_agree_every_fifty_milliseconds_by_the_mean_of_the_ranks(
    monkeypatch, own_seconds, seconds_there, every
):
    agreed = agreed_at(monkeypatch, Two(seconds_there), own_seconds)
    assert agreed[:2] == [0, 1]  # A step's time is not known at the first.
    assert {later - earlier for earlier, later in itertools.pairwise(agreed[1:])} == {every}


def test_ranks_with_clocks_of_their_own_agree_at_the_same_steps(monkeypatch):
    assert agreed_at(monkeypatch, Two(1_000), 0.019) == agreed_at(monkeypatch, Two(19_000), 0.001)


def test_one_process_agrees_with_itself_at_once(monkeypatch):
    alone = Two(0)
    alone.size = 1
    assert agreed_at(monkeypatch, alone, 0.0001, steps=5) == [0, 1, 2, 3, 4]


def test_counts_are_agreed_on_in_every_step(monkeypatch):
    ranks, tick = Two(1_000), clock(monkeypatch, 0.001)
    agreements = Agreements(ranks)
    for step in range(5):
        agreements.begin_step(False, float(step))
        tick()
    assert [count for _, count, *_ in ranks.begun] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_stopping_is_that_of_the_last_agreement_and_stays(monkeypatch):
    ranks, tick = Two(6_000, asked_at=2), clock(monkeypatch, 0.006)
    agreements, agreed = Agreements(ranks), []
    for _ in range(20):
        agreements.begin_step(False)
        agreed.append(agreements.last.stopping)
        tick()
    # Agreements in steps 0, 1, 9, 17: in the third the other rank says that it was asked.
    assert agreed == [False] * 9 + [True] * 11
    assert [stopping for stopping, *_ in ranks.begun] == [False, False, False, True]
