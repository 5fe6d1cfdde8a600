"""Elastic runs on streams: every rank reads the same one, and a restart goes on behind what was consumed."""

import itertools

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402

ENDLESS = {"dataset_size": None, "duration": "15st", "warmup": "3st"}


def recipe_of(**fields):
    return ib.Recipe(**{**elastic.RECIPE, **fields})


def passes_of(stream):
    """The stream's numbers as it is read to its end and begun anew."""
    for epoch in itertools.count():
        stream.set_epoch(epoch)
        yield from (int(number) for number in stream)


@pytest.mark.parametrize("settings", [{"split": "uneven"}, {"split": "ragged"}])
@pytest.mark.parametrize(
    ("fields", "length"),
    [
        (ENDLESS, 500),
        (ENDLESS, 50),  # begun anew in the middle of a step
        ({"duration": "2ep"}, 70),
        ({"duration": "2ep", "drop_last": True}, 70),
        ({"duration": "2ep", "ramp": "4 4 40", "warmup": None}, 70),
    ],
)
def test_each_step_has_the_same_samples_at_every_count(rank, fields, length, settings):
    recipe, expected = recipe_of(**fields), None
    for size in (1, 2, 3, 4):
        rows, _ = elastic.taken(
            rank, size, recipe, lambda: elastic.Numbers(length), max_micro_batch=2, **settings
        )
        steps = [sorted(itertools.chain(*(row[1] for row in each))) for each in zip(*rows, strict=True)]
        expected = expected or steps
        assert steps == expected
    spans = [row[0] for row in rows[0]]
    if "drop_last" in fields:
        assert [len(step) for step in expected] == [12] * 10
        assert sorted(itertools.chain(*expected[5:])) == [1000 + number for number in range(60)]
    else:
        assert sorted(itertools.chain(*expected)) == sorted(
            itertools.islice(passes_of(elastic.Numbers(length)), sum(span.samples for span in spans))
        )


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
    import pickle

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
def test_what_cannot_be_is_refused(make_stream, options, message):
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
