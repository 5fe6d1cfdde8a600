"""GlobalLoader: the steps of an undisturbed rank, at any number of ranks, stopped anywhere."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isobatch as ib

torch = pytest.importorskip("torch", reason="a loader of torch's")

from torch.distributed.checkpoint.stateful import Stateful  # noqa: E402

from ddp import elastic  # noqa: E402
from ddp.elastic import Numbers  # noqa: E402
from isobatch.integrations.torch import GlobalLoader  # noqa: E402


def steps_of(make, ranks, state=None, stop=None, epochs=1):
    """Returns each step's samples on pretended ranks, and the state after it."""
    rows = []
    for rank in range(ranks):
        loader, own = make(rank=rank, ranks=ranks), []
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        batches = itertools.chain.from_iterable(iter(loader) for _ in range(epochs))
        ids, weights = [], []
        for batch in batches:
            ids += [] if loader.stand_in else batch.tolist()
            weights.append(loader.weight)
            if loader.last:
                own.append((ids, weights, loader.state_dict()))
                ids, weights = [], []
                if len(own) == stop:
                    break
        assert not ids
        rows.append(own)
    steps = []
    for each in zip(*rows, strict=True):
        assert all(row[2] == each[0][2] for row in each)
        assert sum(sum(row[1]) for row in each) / ranks == pytest.approx(1.0)
        steps.append((sorted(itertools.chain.from_iterable(row[0] for row in each)), each[0][2]))
    return steps


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_stop_anywhere_and_another_size_change_no_step(data):
    size, batch = data.draw(st.integers(1, 40)), data.draw(st.integers(4, 16))
    drop = size >= batch and data.draw(st.booleans())
    options_of_run = {
        "max_micro_batch": data.draw(st.sampled_from([1, 2, 3, None])),
        "split": "ragged",
        "seed": data.draw(st.integers(0, 3)),
        "shuffle": data.draw(st.booleans()),
        "drop_last": drop,
        "equal_passes": data.draw(st.booleans()),
    }

    def make(**world):
        return GlobalLoader(range(size), batch, **options_of_run, **world)

    expected = steps_of(make, 1, epochs=4)
    per_epoch = size // batch if drop else -(-size // batch)
    assert len(expected) == 4 * per_epoch
    state, steps = None, []
    stops = data.draw(st.lists(st.integers(1, 3), max_size=3))
    for stop in stops:
        steps += steps_of(make, data.draw(st.integers(1, 4)), state, stop, epochs=4)
        state = steps[-1][1]
    finished = len(steps)
    rest = -(-(4 * per_epoch - finished) // per_epoch) if finished < 4 * per_epoch else 0
    steps += steps_of(make, data.draw(st.integers(1, 4)), state, epochs=rest) if rest else []
    assert steps[: len(expected)] == expected[: len(steps)]


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}]
)
def test_workers_that_run_ahead_leave_the_state_alone(options):
    def make(**world):
        return GlobalLoader([*range(50)], 12, max_micro_batch=3, split="uneven", **options, **world)

    expected = steps_of(lambda **world: GlobalLoader([*range(50)], 12, **world), 1, epochs=2)
    first = steps_of(make, 2, stop=3)
    assert first + steps_of(make, 3, first[-1][1], epochs=2)[: len(expected) - 3] == expected


@pytest.mark.parametrize("size", [50, None])
def test_a_stream_goes_on_behind_what_was_consumed(size):
    def make(**world):
        return GlobalLoader(Numbers(50), 12, dataset_size=size, split="uneven", max_micro_batch=2, **world)

    stops = {"stop": 9} if size is None else {"epochs": 2}
    expected = steps_of(make, 1, **stops)
    first = steps_of(make, 3, stop=3)
    later = {"stop": 6} if size is None else {"epochs": 2}
    assert (first + steps_of(make, 2, first[-1][1], **later))[:9] == expected[:9]


def test_a_step_that_was_not_finished_is_done_again():
    loader = GlobalLoader(range(24), 12, max_micro_batch=4, shuffle=False)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    assert isinstance(loader, Stateful)
    place = {"schema": "isobatch.loader/1", "epoch": 0, "offset": 12}
    assert loader.state_dict() == {**place, "seed": None, "batch": 12, "dataset_size": 24}
    assert [batch.tolist()[0] for batch in loader] == [12, 16, 20]
    assert (loader.state_dict()["epoch"], len(loader), loader.passes) == (1, 6, 1)
    loader.set_epoch(3)
    loader.set_epoch(3)
    assert (loader.state_dict()["epoch"], loader.state_dict()["offset"]) == (3, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "seed must be 1 as in the state, got 0"),
        ({"batch": 8}, "batch must be 8 as in the state, got 12"),
        ({"dataset_size": 49}, "dataset_size must be 49 as in the state, got 50"),
        ({"schema": "isobatch.loader/2"}, "state must be what GlobalLoader.state_dict"),
        ({"epoch": -1}, "epoch must be a whole number from 0, got -1"),
        ({"offset": 5}, "offset must be a multiple of 12 within the epoch, got 5"),
        ({"offset": 60}, "offset must be a multiple of 12 within the epoch, got 60"),
        ({"offset": None}, "offset must be a whole number from 0, got None"),
    ],
)
def test_a_state_of_another_loader_is_refused_by_name(change, message):
    loader = GlobalLoader(range(50), 12)
    with pytest.raises(ib.InputError) as error:
        loader.load_state_dict({**loader.state_dict(), **change})
    assert str(error.value).startswith(message)


def test_a_state_without_a_number_is_refused():
    loader = GlobalLoader(range(50), 12)
    state = loader.state_dict()
    del state["offset"]
    with pytest.raises(ib.InputError, match="state is damaged: it has no offset"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("dataset", "batch", "options", "message"),
    [
        (range(50), 0, {}, "batch must be a whole number from 1, got 0"),
        (range(50), 12, {"rank": 2, "ranks": 2}, "rank must be 0 to 1, got 2"),
        (range(50), 12, {"ranks": 0}, "ranks must be a whole number from 1, got 0"),
        (range(50), 12, {"ranks": 5, "rank": 0}, "5"),
        (range(50), 12, {"split": "smaller"}, "split must be even, uneven or ragged, got 'smaller'"),
        (range(50), 12, {"dataset_size": 40}, "dataset_size must be 50, as the dataset has, got 40"),
        (range(0), 12, {}, "the dataset has 0 samples"),
        (range(5), 12, {"drop_last": True}, "the dataset has 5 samples, and no step of 12"),
        (range(50), 12, {"batch_size": 3}, "batch_size is the plan's to decide"),
        (Numbers(50), 12, {"num_workers": 2}, "num_workers must be 0 or 1 for a stream"),
    ],
)
def test_bad_loaders_are_refused(dataset, batch, options, message):
    with pytest.raises(ib.InputError, match=message):
        GlobalLoader(dataset, batch, **options)


def test_a_run_says_itself_where_it_is():
    from isobatch.integrations.torch import ElasticRun

    recipe = ib.Recipe(effective_batch=12, lr=0.1, optimizer="sgd", dataset_size=50, duration="2ep")
    run = ElasticRun(recipe, max_micro_batch=3)
    loader = run.loader(range(50))
    assert isinstance(loader, GlobalLoader)
    assert len(loader) == 2 * (4 * 4 + 1)
    for step in run.steps(loader):
        assert len([*step]) == (1 if step.last_of_epoch else 4)
        if step.number == 5:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["offset"]) == (1, 12)
    loader.load_state_dict(state)
    with pytest.raises(ib.InputError, match="give the run's own state to ElasticRun"):
        loader.load_state_dict({**state, "offset": 24})


def test_the_process_group_says_the_rank(two):
    expected, _ = elastic.loaded()
    answers = two(elastic.loaded, stop=2)
    assert answers[0][1] == answers[1][1]
    later, _ = elastic.loaded(answers[0][1])
    both = [sorted(a + b) for a, b in zip(*(steps_of_rank for steps_of_rank, _ in answers), strict=True)]
    assert both + [sorted(ids) for ids in later] == [sorted(ids) for ids in expected]
