"""Elastic runs with a batch ramp: one stream of samples through the epochs, the same at every count."""

import itertools

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402

# Stages of 4, 8 and 12 samples; 70 samples an epoch, so that steps lie across the ends of epochs.
RAMP = {"ramp": "4 4 40", "warmup": "30sp"}
BATCHES = (
    [4] * 5 + [8] * 3 + [12] * 14
)  # 20 + 24 samples, then to the 210 of three epochs: 44 + 14 · 12 = 212


def recipe_of(**fields):
    return ib.Recipe(**{**elastic.RECIPE, **RAMP, **fields})


def in_order(recipe, seed=0):
    """The samples of the whole run, in the order of the epochs."""
    orders = (
        torch.randperm(recipe.dataset_size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        for epoch in itertools.count()
    )
    return itertools.chain.from_iterable(orders)


@pytest.mark.parametrize("settings", [{"split": "uneven"}, {"split": "ragged"}])
def test_each_step_has_the_same_samples_at_every_count(rank, settings):
    recipe, rates = recipe_of(), set()
    stream = in_order(recipe)
    expected = [sorted(itertools.islice(stream, batch)) for batch in BATCHES]
    for size in (1, 2, 3, 4):
        rows, run = elastic.taken(rank, size, recipe, max_micro_batch=2, **settings)
        steps = [[row[1] for row in each] for each in zip(*rows, strict=True)]
        assert [sorted(itertools.chain(*step)) for step in steps] == expected
        assert run.plan.total_steps == len(BATCHES)
        assert [run.plan.batch_at(step) for step in range(len(BATCHES))] == BATCHES
        rates.add(tuple(run.plan.lr_at(step) for step in range(len(BATCHES))))
    assert len(rates) == 1


def test_steps_say_which_epoch_they_begin_in():
    run = ElasticRun(recipe_of())
    places = [(span.epoch, span.offset, span.last_of_epoch) for span in run._progress.spans()]
    starts = [sum(BATCHES[:step]) for step in range(len(BATCHES))]
    assert [70 * epoch + offset for epoch, offset, _ in places] == starts
    ends = [step for step, (*_, last) in enumerate(places) if last]
    assert [starts[step] + BATCHES[step] >= 70 * (1 + at) for at, step in enumerate(ends)] == [True] * 3


@pytest.mark.parametrize("settings", [{}, {"ramp_rule": "sqrt"}])
@pytest.mark.parametrize("stop", [0, 3, 5, 7, 8, 15, 21, 22])
def test_it_goes_on_in_the_middle_of_any_stage(rank, stop, settings):
    recipe = recipe_of()
    expected = elastic.steps_of(ElasticRun(recipe, **settings))
    assert len({rate for rate, _ in expected}) > 10
    first = ElasticRun(recipe, **settings)
    assert (elastic.steps_of(first, until=stop) if stop else []) == expected[:stop]
    state = first.state_dict()
    assert state["samples"] == sum(BATCHES[:stop])
    later = ElasticRun(recipe, state=state, **settings)
    assert elastic.steps_of(later) == expected[stop:]
    rank(0, 2)
    resumed = ElasticRun(recipe, state=state, **settings)
    assert [resumed.plan.lr_at(step) for step in range(len(BATCHES))] == [rate for rate, _ in expected]
    assert resumed.plan.total_steps == len(BATCHES)


def test_a_stage_that_is_behind_need_not_divide(rank):
    recipe = recipe_of()
    first = ElasticRun(recipe)
    elastic.go_on(first, until=8)
    rank(0, 3)
    with pytest.raises(ib.InputError, match="stage 1 of 3 of the ramp, 4 samples"):
        ElasticRun(recipe)
    run = ElasticRun(recipe, state=first.state_dict())
    assert (run.plan.data_parallel, run.plan.effective_batch, run.plan.total_steps) == (3, 12, len(BATCHES))
    assert [span.samples for span in run._progress.spans()] == BATCHES[8:]
    assert [run.plan.lr_at(step) for step in (0, 8, 21)] == [first.plan.lr_at(step) for step in (0, 8, 21)]


def test_a_batch_that_moves_scales_the_stages_that_are_left():
    recipe = recipe_of()
    first = ElasticRun(recipe)
    elastic.go_on(first, until=6)
    moved = ElasticRun(recipe, state=first.state_dict(), policy=24)
    expected = ib.replan(ib.plan(recipe, 1), at_step=6, effective_batch=24)
    assert moved.plan.total_steps == expected.total_steps
    rates = elastic.go_on(moved)
    assert rates == [expected.lr_at(step) for step in range(6, expected.total_steps)]
    assert ib.Plan.from_json(moved.plan.to_json()) == moved.plan
    assert [span.samples for span in ElasticRun(recipe, policy=24)._progress.spans()][:3] == [8, 8, 8]


def test_goodput_is_refused_by_name():
    with pytest.raises(
        ib.InputError, match="policy must be keep, grow or a batch, got 'goodput', which needs a profile"
    ):
        ElasticRun(recipe_of(ramp=None), policy="goodput")
    plan = ib.plan(recipe_of(ramp=None), 1)
    with pytest.raises(ib.InputError, match="'goodput'"):
        ElasticRun(plan, policy="goodput")


@pytest.mark.parametrize("data", [range(70), elastic.Numbers(70)])
def test_a_trainers_steps_are_filled_up_with_stand_ins(data):
    run = ElasticRun(recipe_of(), max_micro_batch=4)
    driven = run.trainer_loop()
    assert driven.passes == 3
    loader = driven.loader(data, lambda batch, factor: (len(batch), factor))
    batches = [*loader]
    assert len(batches) == len(loader) == 3 * len(BATCHES)
    for step, batch in enumerate(BATCHES):
        sizes, factors = zip(*batches[3 * step : 3 * step + 3], strict=True)
        assert sizes == {4: (4, 1, 1), 8: (4, 4, 1), 12: (4, 4, 4)}[batch]
        assert factors == tuple(3 * 4 / batch if 4 * index < batch else 0.0 for index in range(3))
