"""A run stopped on some ranks and continued on others equals the undisturbed run on one rank."""

import itertools
import signal
from contextlib import ExitStack, closing

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from ddp.pool import Pool  # noqa: E402
from isobatch.elastic.agreement import Agreements  # noqa: E402

UNEVEN = {"split": "uneven", "max_micro_batch": 2}
CLOSE = 1e-12


def apart(first, second):
    """The largest difference of a tensor, over its largest value."""
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max() / second[name].abs().max()) for name in second)


def merged(stretches):
    """step → (epoch, samples over all ranks, learning rates); each leg has a list of steps for each rank."""
    steps = {}
    for ranks in stretches:
        for rows in zip(*ranks, strict=True):
            (number,) = {row[0] for row in rows}
            assert number not in steps
            ids = sorted(index for row in rows for index in row[2])
            steps[number] = rows[0][1], ids, {row[3] for row in rows}
    return steps


def through(stretches, **settings):
    """Trains through legs of (pool or None, stop)."""
    checkpoint, steps = None, []
    for pool, stop in stretches:
        if pool is None:
            checkpoint, rows = elastic.train(checkpoint, stop=stop, **settings)
            steps.append([rows])
        else:
            answers = pool(elastic.train, checkpoint, stop=stop, **settings)
            assert all(checkpoint_of_rank["run"] == answers[0][0]["run"] for checkpoint_of_rank, _ in answers)
            checkpoint = answers[0][0]
            steps.append([rows for _, rows in answers])
    return checkpoint, merged(steps)


def same_as_alone(stretches, own=None, **settings):
    """Trains through stretches, which must be the undisturbed run; returns its steps and weights."""
    checkpoint, steps = through(stretches, **(own or {}), **settings)
    alone, expected = through([(None, None)], **settings)
    assert steps == expected
    assert [*steps] == [*range(len(steps))]
    assert apart(checkpoint["model"], alone["model"]) <= CLOSE
    return steps, alone["model"]


def check(stretches, **settings):
    steps, _ = same_as_alone(stretches, **settings)
    assert len(steps) == 18
    for epoch in range(3):
        samples = itertools.chain(*(ids for at, ids, _ in steps.values() if at == epoch))
        assert sorted(samples) == [*range(70)]


@pytest.mark.parametrize("by_tokens", [False, True])
def test_two_ranks_one_and_two_again(two, by_tokens):
    check([(two, 4), (None, 11), (two, None)], by_tokens=by_tokens, **UNEVEN)


def test_augmented_samples_and_weights_are_the_same_at_two_splits(two):
    steps, weights = same_as_alone([(two, 4), (None, 11), (two, None)], augmented=True, **UNEVEN)
    samples_of_run = {sample for _, samples, _ in steps.values() for sample in samples}
    assert len(samples_of_run) == 3 * 70  # A sample is another in each epoch.
    assert apart(elastic.train(**UNEVEN)[0]["model"], weights) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("settings", [UNEVEN, {"split": "ragged", "max_micro_batch": 2}, {"split": "ragged"}])
def test_four_three_five_two(two, by_tokens, settings):
    with ExitStack() as stack:
        four, three, five = (stack.enter_context(closing(Pool(size))) for size in (4, 3, 5))
        check([(four, 5), (three, 8), (five, 13), (two, None)], by_tokens=by_tokens, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("by_tokens", [False, True])
def test_sharded_by_fsdp_two_ranks_one_and_two_again(two, by_tokens):
    # 6 micro-batches of 2 on 2 ranks, and an epoch's last step of 10: passes that one of them lacks are
    # stand-ins.
    recipe = {"effective_batch": 10, "dataset_size": 68}
    settings = {"recipe": recipe, "by_tokens": by_tokens, "sharded": True, **UNEVEN}
    stretches = [(two, 4), (None, 11), (two, None)]
    assert len(same_as_alone(stretches, {"loader": {"equal_passes": True}}, **settings)[0]) == 21


@pytest.mark.slow
def test_a_model_sharded_by_fsdp_is_refused_without_equal_passes(two):
    with pytest.raises(Exception, match="equal_passes must be True for FSDP and SyncBatchNorm"):
        two(elastic.train, stop=2, sharded=True, **UNEVEN)


def test_workers_that_prefetch_do_not_move_the_state():
    ahead, steps = elastic.train(stop=4, loader={"num_workers": 1, "prefetch_factor": 8}, **UNEVEN)
    expected, same = elastic.train(stop=4, **UNEVEN)
    assert steps == same
    assert ahead["run"] == expected["run"]


def test_a_signal_to_one_rank_stops_both_after_the_same_step(two):
    before = signal.getsignal(signal.SIGTERM)
    answers = two(elastic.train, signal_at=(3, 1), **UNEVEN)
    (last,) = {rows[-1][0] for _, rows in answers}
    # The ranks agreed on step 3 before the signal; quick steps agree every ten.
    assert 4 <= last <= 3 + Agreements.MAX_STEPS
    assert [checkpoint["run"]["step"] for checkpoint, _ in answers] == [last + 1] * 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("by_tokens", [False, True])
def test_slow_steps_agree_each(two, by_tokens):
    answers = two(elastic.train, signal_at=(3, 1), by_tokens=by_tokens, slow=True, **UNEVEN)
    assert [rows[-1][0] for _, rows in answers] == [4, 4]


def test_stand_ins_make_the_passes_equal(two):
    # 9 samples in micro-batches of 3 are three passes: two and one; the epoch's last step has two samples.
    settings = {"recipe": {"effective_batch": 9, "dataset_size": 47}, "split": "uneven", "max_micro_batch": 3}
    plain = two(elastic.train, stop=6, **settings)
    assert [[row[4] for row in rows] for _, rows in plain] == [[0] * 6, [0] * 6]
    equal = two(elastic.train, stop=6, loader={"equal_passes": True}, **settings)
    assert [[row[4] for row in rows] for _, rows in equal] == [[0] * 6, [1, 1, 1, 1, 1, 0]]
    assert apart(equal[0][0]["model"], plain[0][0]["model"]) <= CLOSE


def test_ranks_that_differ_all_stop(two):
    messages = two(elastic.differing, [{}, {"seed": 1}])
    assert messages[0] == messages[1]
    assert messages[0].startswith("the ranks differ in seed: 0 on rank 0, 1 on rank 1")
    state = elastic.train(stop=2)[0]["run"]
    messages = two(elastic.differing, [{"max_micro_batch": 3}, {"max_micro_batch": 0}], state)
    assert messages[0].startswith("rank 1 stopped: max_micro_batch")
    assert messages[1].startswith("max_micro_batch must be")


def test_weights_are_of_the_window_over_all_ranks(two):
    # Batch 12 in micro-batches of 3 on two ranks: two each.
    counts = [[1, 2, 0, 5, 1, 1, 1, 1], [3, 4, 0, 0, 1, 1, 1, 1]]
    (first, _), (second, _) = two(elastic.counting, counts, max_micro_batch=3)
    assert first == [[1 * 2 / 10, 2 * 2 / 10], [0.0, 2.0], [0.5, 0.5], [0.5, 0.5]]
    assert second == [[3 * 2 / 10, 4 * 2 / 10], [0.0, 0.0], [0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("second", "message"),
    [(0, "tokens: step 1 has no token on any rank"), (-1, "tokens must give a number from 0")],
)
def test_a_window_without_a_count_stops_all_ranks(two, second, message):
    counts = [[1] * 2 + [0] * 2 + [1] * 4, [1] * 2 + [second] * 2 + [1] * 4]
    answers = two(elastic.counting, counts, max_micro_batch=3)
    assert [len(weights) for weights, _ in answers] == [1, 1]
    assert all(error.startswith(message) for _, error in answers)


def test_a_rank_of_its_own_and_a_world_of_one_agree(single):
    settings = {"max_micro_batch": 3}
    ((in_group, _),) = single(elastic.train, **settings)
    alone, _ = elastic.train(**settings)
    assert alone["run"] == in_group["run"]
    assert apart(in_group["model"], alone["model"]) == 0
    assert ib.Recipe(**elastic.RECIPE).dataset_size == 70
