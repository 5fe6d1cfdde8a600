"""Runs in trainers, stopped on two ranks and continued on one, equal the undisturbed ones."""

from contextlib import closing

import pytest

torch = pytest.importorskip("torch", reason="the trainers train with torch")

from ddp import elastic  # noqa: E402
from ddp import elastic_trainers as trainers  # noqa: E402
from ddp.pool import Pool  # noqa: E402

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
STEPS = 10  # two epochs of ⌈40 / 9⌉


def same(first, second):
    assert first.keys() == second.keys()
    for name in second:
        assert float((first[name] - second[name]).abs().max() / second[name].abs().max()) <= 1e-12


@pytest.mark.parametrize("counts", [True, False])
def test_the_trainer_of_transformers_goes_on_at_another_size(single, two, tmp_path, counts):
    ((alone, rates, steps, finished),) = single(trainers.transformers, str(tmp_path / "alone"), counts)
    assert (steps, finished, [*rates]) == (STEPS, STEPS, [*range(STEPS)])
    stopped = two(trainers.transformers, str(tmp_path / "out"), counts, stop=3)
    assert [answer[2:] for answer in stopped] == [(4, 4)] * 2
    ((weights, later, steps, finished),) = single(
        trainers.transformers, str(tmp_path / "out"), counts, resume=4
    )
    assert (steps, finished) == (STEPS, STEPS)
    assert {**stopped[0][1], **later} == rates
    same(weights, alone)
    back = two(trainers.transformers, str(tmp_path / "out"), counts, resume=4)
    same(back[0][0], alone)


def test_lightning_goes_on_at_another_size(single, two, tmp_path):
    path = str(tmp_path / "run.ckpt")
    ((alone, rates, steps, finished),) = single(trainers.lightning, path)
    assert (steps, finished, [*rates]) == (STEPS, STEPS, [*range(STEPS)])
    assert [epoch for _, epoch in rates.values()] == [0] * 5 + [1] * 5, "the run's own, as the Trainer's"
    stopped = two(trainers.lightning, path, stop=3)
    assert len({answer[2:] for answer in stopped}) == 1
    at = stopped[0][2]
    assert 3 < at < STEPS
    ((weights, later, steps, finished),) = single(trainers.lightning, path, resume=True)
    assert (steps, finished) == (STEPS, STEPS)
    assert {**stopped[0][1], **later} == rates
    same(weights, alone)
    back = two(trainers.lightning, path, resume=True)
    same(back[0][0], alone)


def test_the_trainers_epochs_are_the_runs_own(single, tmp_path):
    """Five steps an epoch; stopped in the second, and gone on in it."""
    events = single(trainers.epochs, str(tmp_path / "whole"))[0]
    assert events == [("evaluate", 5, 1.0), ("save", 5, 1.0), ("evaluate", 10, 2.0), ("save", 10, 2.0)]
    first = single(trainers.epochs, str(tmp_path / "out"), stop=7)[0]
    assert first[:2] == events[:2] and [event[:2] for event in first[2:]] == [("save", 8)]
    assert first[2][2] == pytest.approx(1 + 27 / 40)
    assert single(trainers.epochs, str(tmp_path / "out"), resume=8)[0] == events[2:]


def test_the_trainers_own_optimizer_keeps_its_groups(single, tmp_path):
    ((decays, rates),) = single(trainers.own_optimizer, str(tmp_path / "out"))
    assert decays == [0.1, 0.0] and rates[:4] == pytest.approx([0.0, 0.05 / 3, 0.1 / 3, 0.05])


def test_lightning_validates_at_the_end_of_the_runs_epochs(single, tmp_path):
    assert single(trainers.validated)[0] == ([(5, 0), (10, 1)], 2)
    assert single(trainers.validated, 2)[0] == ([(10, 1)], 2)


def test_accelerate_goes_on_at_another_size(single, two):
    ((alone, rates),) = single(trainers.accelerate)
    stopped = two(trainers.accelerate, stop=4)
    ((weights, later),) = single(trainers.accelerate, stopped[0][0])
    assert {**stopped[0][1], **later} == rates
    assert len(rates) == weights["run"]["step"] == STEPS
    same(weights["model"], alone["model"])


def plain(checkpoint=None, stop=None):
    left, steps = elastic.train(checkpoint, stop=stop, recipe=trainers.RECIPE, **trainers.SETTINGS)
    return left, {number: rate for number, _, _, rate, _ in steps}


@pytest.mark.parametrize("trainer", ["transformers", "lightning", "accelerate", "plain"])
def test_from_three_ranks_to_two_and_to_five_it_is_the_undisturbed_run(single, two, tmp_path, trainer):
    """Weights within rounding, the same rate in each step, no step twice and none left out."""

    def train(pool, place, stop=None):
        """Gives the weights, the rates, and where the next ranks go on."""
        if trainer in ("accelerate", "plain"):
            function = plain if trainer == "plain" else trainers.accelerate
            checkpoint, rates = pool(function, place, stop=stop)[0]
            return checkpoint["model"], rates, checkpoint
        folder = str(tmp_path / ("alone" if pool is single else "out"))
        if trainer == "lightning":
            weights, rates, step, _ = pool(trainers.lightning, folder, stop, place is not None)[0]
        else:
            weights, rates, step, _ = pool(trainers.transformers, folder, True, stop, place or False)[0]
        return weights, rates, step

    alone, expected, _ = train(single, None)
    with closing(Pool(3)) as three, closing(Pool(5)) as five:
        place, rates = None, []
        for pool, stop in ((three, 3), (two, 6), (five, None)):
            weights, own, place = train(pool, place, stop)
            rates += own.items()
    assert [step for step, _ in rates] == [*range(STEPS)] and dict(rates) == expected
    same(weights, alone)
