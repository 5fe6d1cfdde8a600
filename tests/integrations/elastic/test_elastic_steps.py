"""The steps of elastic runs, of datasets, streams and batch ramps: the same at every count."""

import itertools
import pickle

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402

ENDLESS = {"dataset_size": None, "duration": "15st", "warmup": "3st"}
# Stages of 4, 8 and 12 samples; 70 samples an epoch, so that steps lie across the ends of epochs.
RAMP = {"ramp": "4 4 40", "warmup": "30sp"}
# 20 + 24 samples, then to the 210 of three epochs: 44 + 14 · 12 = 212
BATCHES = [4] * 5 + [8] * 3 + [12] * 14
TWENTY = {"effective_batch": 20, "dataset_size": 93, "duration": "2ep"}


def recipe_of(**fields):
    return ib.Recipe(**{**elastic.RECIPE, **fields})


def epochs(length, served, *, stream):
    """Yields the samples of all epochs in order; of each the first `served` are trained on."""
    for epoch in itertools.count():
        order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch)).tolist()
        yield from [1000 * epoch + number for number in range(served)] if stream else order[:served]


@pytest.mark.parametrize("split", ["uneven", "ragged"])
@pytest.mark.parametrize(
    ("fields", "length", "stream", "sizes"),
    [
        (TWENTY, 93, False, ([20] * 4 + [13]) * 2),
        ({**TWENTY, "drop_last": True}, 93, False, [20] * 8),
        (RAMP, 70, False, BATCHES),
        (ENDLESS, 500, True, [12] * 15),
        (ENDLESS, 50, True, [12] * 15),  # begun anew in the middle of a step
        ({"duration": "2ep"}, 70, True, ([12] * 5 + [10]) * 2),
        ({"duration": "2ep", "drop_last": True}, 70, True, [12] * 10),
        (RAMP, 70, True, BATCHES),
    ],
)
def test_each_step_has_the_same_samples_at_every_count(rank, fields, length, stream, sizes, split):
    recipe, rates = recipe_of(**fields), set()
    served = length - length % recipe.effective_batch if recipe.drop_last else length
    samples = epochs(length, served, stream=stream)
    expected = [sorted(itertools.islice(samples, size)) for size in sizes]
    data = (lambda: elastic.Numbers(length)) if stream else None
    for count in (1, 2, 3, 4, 7) if length == 93 else (1, 2, 3, 4):
        rows, run = elastic.taken(rank, count, recipe, data, max_micro_batch=2, split=split)
        assert run.plan.total_steps == len(sizes)
        for each, samples_of_step in zip(zip(*rows, strict=True), expected, strict=True):
            assert sorted(itertools.chain(*(ids for _, ids, _ in each))) == samples_of_step
            portions = [portion for *_, own in each for portion in own]
            assert sum(portion.samples for portion in portions) == len(samples_of_step)
            assert max(portion.samples for portion in portions) <= 2
            assert all([portion.last for portion in own].index(True) == len(own) - 1 for *_, own in each)
        rates.add(tuple(run.plan.lr_at(step) for step in range(len(sizes))))
    assert len(rates) == 1
    if recipe.ramp is None and recipe.dataset_size:
        steps = len(sizes) // 2
        assert [span.last_of_epoch for span, *_ in rows[0]] == ([False] * (steps - 1) + [True]) * 2


# ---- streams ----


@pytest.mark.parametrize("fields", [ENDLESS, {}, {"ramp": "4 4 40", "warmup": None}])
@pytest.mark.parametrize("stop", [1, 6, 9])
def test_a_restart_goes_on_behind_what_was_consumed(fields, stop):
    recipe = recipe_of(**fields)
    expected = elastic.steps_of(ElasticRun(recipe), data=elastic.Numbers(70))
    first = ElasticRun(recipe)
    steps = elastic.steps_of(first, until=stop, data=elastic.Numbers(70))
    later = ElasticRun(recipe, state=first.state_dict())
    assert steps + elastic.steps_of(later, data=elastic.Numbers(70)) == expected


def test_the_position_is_that_of_the_stream():
    run = ElasticRun(recipe_of(**ENDLESS))
    elastic.go_on(run, until=7, data=elastic.Numbers(500))
    assert (run.position.samples, run.position.epoch, run.share) == (84, None, (0, 1))


def test_a_worker_reads_it_in_the_same_order():
    recipe = recipe_of(**ENDLESS)
    expected = elastic.steps_of(ElasticRun(recipe), data=elastic.Numbers(500))
    run = ElasticRun(recipe, max_micro_batch=3)
    loader = run.loader(elastic.Numbers(500), num_workers=1, multiprocessing_context="fork")
    read = iter(loader)
    assert [sorted(itertools.chain(*(next(read).tolist() for _ in range(4)))) for _ in range(15)] == [
        ids for _, ids in expected
    ]
    assert next(read, None) is None


def test_a_worker_gets_the_run_without_its_schedulers():
    run = ElasticRun(recipe_of(**ENDLESS))
    run.scheduler(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1))
    stream = pickle.loads(pickle.dumps(run.loader(elastic.Numbers(500))._loader.dataset))
    assert next(iter(stream)) == [*range(12)]
    assert len(run._progress.schedulers) == 1


def test_stand_ins_are_the_steps_first_sample_and_collate_is_ones_own(rank):
    recipe, settings = recipe_of(effective_batch=9, **ENDLESS), {"split": "uneven", "max_micro_batch": 3}
    rank(1, 2)
    loader = ElasticRun(recipe, **settings).loader(elastic.Numbers(99), collate_fn=tuple, equal_passes=True)
    assert [*itertools.islice(loader, 4)] == [(1, 3, 5), (0,), (10, 12, 14), (9,)]
    rank(0, 2)
    loader = ElasticRun(recipe, **settings).loader(elastic.Numbers(99), collate_fn=tuple)
    assert [*itertools.islice(loader, 3)] == [(0, 2, 4), (6, 7, 8), (9, 11, 13)]


@pytest.mark.parametrize(
    ("make_stream", "options", "message"),
    [
        (lambda: elastic.Numbers(50), {}, "dataset_size must be 50, as the stream has, got 70"),
        (lambda: iter(range(200)), {}, "dataset_size must be 60, as the stream has, got 70"),
        (lambda: elastic.Numbers(70), {"num_workers": 2}, "num_workers must be 0 or 1 for a stream"),
        (lambda: elastic.Numbers(70), {"persistent_workers": True}, "persistent_workers is the plan's"),
        (lambda: elastic.Numbers(70), {"batch_size": 2}, "batch_size is the plan's"),
    ],
)
def test_bad_streams_are_refused(make_stream, options, message):
    run = ElasticRun(recipe_of())
    with pytest.raises(ib.InputError, match=message):
        for step in run.steps(run.loader(make_stream(), **options)):
            assert [*step]


def test_a_stream_that_was_read_is_refused():
    run = ElasticRun(recipe_of(**ENDLESS))
    with pytest.raises(ib.InputError, match="the stream has no sample"):
        next(iter(run.loader(iter(()))))


def test_two_ranks_and_one_train_as_one(two):
    settings = {"split": "uneven", "max_micro_batch": 2, "by_tokens": True, "recipe": ENDLESS, "stream": 70}
    alone, expected = elastic.train(**settings)
    answers = two(elastic.train, stop=6, **settings)
    assert all(checkpoint["run"] == answers[0][0]["run"] for checkpoint, _ in answers)
    checkpoint, later = elastic.train(answers[0][0], **settings)
    steps = [
        sorted(itertools.chain(*(row[2] for row in rows)))
        for rows in zip(*(steps_of_rank for _, steps_of_rank in answers), strict=True)
    ]
    assert steps + [sorted(row[2]) for row in later] == [sorted(row[2]) for row in expected]
    assert [row[3] for row in answers[0][1] + later] == [row[3] for row in expected]
    for name, value in alone["model"].items():
        assert float((checkpoint["model"][name] - value).abs().max() / value.abs().max()) <= 1e-12


# ---- batch ramps ----


def test_steps_say_which_epoch_they_begin_in():
    run = ElasticRun(recipe_of(**RAMP))
    places = [(span.epoch, span.offset, span.last_of_epoch) for span in run._progress.spans()]
    starts = [sum(BATCHES[:step]) for step in range(len(BATCHES))]
    assert [70 * epoch + offset for epoch, offset, _ in places] == starts
    ends = [step for step, (*_, last) in enumerate(places) if last]
    assert [starts[step] + BATCHES[step] >= 70 * (1 + at) for at, step in enumerate(ends)] == [True] * 3


@pytest.mark.parametrize("settings", [{}, {"ramp_rule": "sqrt"}])
@pytest.mark.parametrize("stop", [0, 3, 5, 7, 8, 15, 21, 22])
def test_it_goes_on_in_the_middle_of_any_stage(rank, stop, settings):
    recipe = recipe_of(**RAMP)
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
    recipe = recipe_of(**RAMP)
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
    recipe = recipe_of(**RAMP)
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
        ElasticRun(recipe_of(), policy="goodput")
    plan = ib.plan(recipe_of(), 1)
    with pytest.raises(ib.InputError, match="'goodput'"):
        ElasticRun(plan, policy="goodput")


@pytest.mark.parametrize("data", [range(70), elastic.Numbers(70)])
def test_a_trainers_steps_are_filled_up_with_stand_ins(data):
    run = ElasticRun(recipe_of(**RAMP), max_micro_batch=4)
    driven = run.trainer_loop()
    assert driven.passes == 3
    loader = driven.loader(data, lambda batch, factor: (len(batch), factor))
    batches = [*loader]
    assert len(batches) == len(loader) == 3 * len(BATCHES)
    for step, batch in enumerate(BATCHES):
        sizes, factors = zip(*batches[3 * step : 3 * step + 3], strict=True)
        assert sizes == {4: (4, 1, 1), 8: (4, 4, 1), 12: (4, 4, 4)}[batch]
        assert factors == tuple(3 * 4 / batch if 4 * index < batch else 0.0 for index in range(3))
