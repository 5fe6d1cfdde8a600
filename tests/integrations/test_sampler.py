import itertools

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="PlanSampler is a torch sampler")
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler  # noqa: E402

from isobatch.integrations.torch import PlanSampler  # noqa: E402

DROPS = [False, True, "sampler", "loader"]


def plan_of(size, gpus, batch, *, drop=False, convention="torch", **settings):
    fields = {"dataset_size": size, "drop_last": drop, "convention": convention}
    return ib.plan(ib.Recipe(effective_batch=batch, lr=0.1, **fields), gpus, **settings)


def feasible(plans):
    feasible_plans = [plan for plan in plans if plan.status != "infeasible"]
    assert feasible_plans
    return feasible_plans


def samplers(plan, **settings):
    size = plan.recipe.dataset_size
    return [PlanSampler(range(size), plan, rank=rank, **settings) for rank in range(plan.data_parallel)]


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_plan_is_torchs_distributed_sampler(drop, shuffle):
    shapes = itertools.product((2, 7, 20, 101), (1, 2, 3, 4), (1, 2, 5), (1, 2, 3))
    plans = feasible(plan_of(n, w, w * m * a, drop=drop, max_micro_batch=m) for n, w, m, a in shapes)
    for plan in plans:
        served = 0
        for rank, sampler in enumerate(samplers(plan, seed=3, shuffle=shuffle)):
            data, drops = range(plan.recipe.dataset_size), drop in (True, "sampler")
            peer = DistributedSampler(data, plan.data_parallel, rank, shuffle, 3, drops)
            for epoch in range(2):
                peer.set_epoch(epoch)
                expected = list(BatchSampler(peer, plan.micro_batch, drop in (True, "loader")))
                assert len(sampler) == len(expected)
                assert list(sampler) == expected
                assert sum(last for _, last in sampler.weights()) == plan.steps_per_epoch
            served += sum(map(len, expected))
        assert served == plan.samples_per_epoch


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("settings", [{}, {"split": "ragged"}, {"split": "uneven"}])
@pytest.mark.parametrize("convention", ["torch", "transformers", "exact"])
def test_an_epoch_is_what_the_plan_counts(drop, settings, convention):
    if (drop, convention) == ("sampler", "transformers"):
        pytest.skip("the planner refuses it: Transformers' sampler drops nothing")
    if convention == "exact" and drop in ("sampler", "loader"):
        pytest.skip("the planner refuses it: exact epochs drop all of the rest, or nothing")
    shapes = itertools.product((41, 57, 101), (1, 2, 3, 5, 7), (16, 20, 30), (1, 2, 3, 7))
    plans = feasible(
        plan_of(n, w, b, drop=drop, convention=convention, max_micro_batch=m, **settings)
        for n, w, b, m in shapes
    )
    for plan in plans:
        rows = [(list(sampler), list(sampler.weights())) for sampler in samplers(plan)]
        samples = [i for row in rows for batch, how in zip(*row, strict=True) if how.weight for i in batch]
        assert len(samples) == plan.samples_per_epoch
        assert len({*samples}) == len(samples) - plan.padded_samples
        assert len({*samples}) == plan.recipe.dataset_size - plan.dropped_samples
        assert {sum(how.last for how in hows) for _, hows in rows} == {plan.steps_per_epoch}
        # The weights of a step average to 1 over the replicas.
        weight = sum(how.weight for _, hows in rows for how in hows)
        assert weight == pytest.approx(plan.data_parallel * plan.steps_per_epoch)
        if convention == "exact" or {"ragged", "uneven"} & set(plan.reasons):
            batch = plan.effective_batch
            whole, rest = divmod(plan.recipe.dataset_size, batch)
            dropped = rest if drop else 0
            assert (plan.padded_samples, plan.dropped_samples) == (0, dropped)
            assert plan.steps_per_epoch == whole + (rest > dropped)
        for rank, (batches, hows) in enumerate(rows):
            assert all(len(batch) <= plan.micro_batch for batch in batches)
            first = [how.last for how in hows].index(True) + 1
            if plan.samples_per_epoch >= plan.effective_batch:
                assert [len(batch) for batch in batches[:first]] == plan.micro_batches(rank).tolist()
                assert [how.weight for how in hows[:first]] == plan.loss_weights(rank).tolist()


def test_weights_make_every_step_the_mean_over_its_samples():
    plan = plan_of(58, 5, 17, max_micro_batch=2, split="ragged")
    assert plan.status == "caution"
    value = torch.randn(58, dtype=torch.float64)
    steps = [[] for _ in range(plan.steps_per_epoch)]
    for sampler in samplers(plan):
        rows = zip(sampler, sampler.weights(), strict=True)
        for step in steps:
            total = 0.0
            for batch, (weight, last) in rows:
                total += weight * value[batch].mean().item()
                step += batch if weight else []
                if last:
                    break
            step.append(total)  # this replica's loss
    for step in steps:
        losses = [x for x in step if isinstance(x, float)]
        samples = [x for x in step if isinstance(x, int)]
        assert sum(losses) / 5 == pytest.approx(value[samples].mean().item())


@pytest.mark.parametrize("settings", [{}, {"split": "uneven"}, {"split": "ragged"}])
def test_a_run_that_moves_sees_every_sample_once(settings):
    recipe = ib.Recipe(effective_batch=24, lr=0.1, dataset_size=960, duration="3ep")
    plan = ib.plan(recipe, 4, max_micro_batch=3)
    samples_seen = {0: [], 1: [], 2: []}
    for stop, gpus in ((13, 2), (27, 5 if settings else 3), (61, 6), (plan.total_steps, None)):
        for sampler in samplers(plan):
            step = plan.moves[-1].step if plan.moves else 0
            while step < stop:
                epoch = sampler.epoch
                for batch, (weight, last) in zip(sampler, sampler.weights(), strict=True):
                    samples_seen[epoch] += batch if weight else []
                    step += last
                    if step == stop:
                        break
            assert step == stop
        if gpus:
            plan = ib.replan(plan, at_step=stop, cluster=gpus, **settings)
            assert plan.status != "infeasible"
    assert {epoch: sorted(samples) for epoch, samples in samples_seen.items()} == {
        epoch: list(range(960)) for epoch in range(3)
    }


def test_epochs_follow_each_other_without_set_epoch():
    plan = plan_of(20, 1, 4)
    sampler, again = PlanSampler(range(20), plan, offset=8), PlanSampler(range(20), plan)
    rest, second = list(sampler), list(sampler)
    sampler.set_epoch(2)  # already there
    sampler.set_epoch(1)
    assert list(sampler) == second
    assert [list(again)[2:], list(again)] == [rest, second]
    with pytest.raises(ib.InputError, match="epoch"):
        sampler.set_epoch(-1)
    sampler = PlanSampler(range(20), plan, epoch=3, offset=8)
    sampler.set_epoch(3)  # under way
    assert (sampler.epoch, sampler.offset, len(sampler)) == (3, 8, 3)


@pytest.mark.parametrize("settings", [{}, {"split": "uneven"}, {"split": "ragged"}])
@pytest.mark.parametrize("stop", [1, 4, 7, 100])
def test_state_goes_on_where_it_was(settings, stop):
    plan = plan_of(61, 5 if settings else 3, 12, max_micro_batch=2, **settings)
    for first, second in zip(samplers(plan), samplers(plan), strict=True):
        whole = list(first) + list(first)
        first.set_epoch(0)
        drawn = len(list(itertools.islice(first, stop)))
        second.load_state_dict(first.state_dict())
        rest = list(second)
        assert len(list(second.weights())) == len(rest)
        assert (rest + list(second))[: len(whole) - drawn] == whole[drawn:]


def test_a_state_from_the_middle_of_a_step_needs_the_same_steps():
    sampler = PlanSampler(range(64), plan_of(64, 1, 8, max_micro_batch=2))
    next(iter(sampler))
    state = sampler.state_dict()
    with pytest.raises(ib.InputError, match="middle of a step"):
        PlanSampler(range(64), plan_of(64, 1, 8, max_micro_batch=4)).load_state_dict(state)
    with pytest.raises(ib.InputError, match="seed: the state was saved with 0"):
        PlanSampler(range(64), plan_of(64, 1, 8), seed=1).load_state_dict(state)


def test_it_works_with_loader_workers():
    plan = plan_of(50, 2, 8, max_micro_batch=2)
    sampler, plain = PlanSampler(range(50), plan, rank=1), PlanSampler(range(50), plan, rank=1)
    loader = DataLoader(torch.arange(50), batch_sampler=sampler, num_workers=2)
    for _ in range(2):
        rows = [(batch.tolist(), how) for batch, how in zip(loader, sampler.weights(), strict=True)]
        assert rows == list(zip(plain, plain.weights(), strict=True))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"split": "uneven"}])
def test_torchdatas_loader_saves_and_loads_it(workers, settings):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="saves through torchdata's loader")
    plan = plan_of(61, 5 if settings else 2, 12, max_micro_batch=2, **settings)

    def loader():
        sampler = PlanSampler(range(61), plan, rank=1)
        return stateful.StatefulDataLoader(
            torch.arange(61), batch_sampler=sampler, num_workers=workers
        ), sampler

    whole, _ = loader()
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    first, sampler = loader()
    assert [batch.tolist() for batch in first] == epochs[0]
    running = iter(first)
    assert [next(running).tolist() for _ in range(3)] == epochs[1][:3]
    state = first.state_dict()
    second, sampler = loader()
    second.load_state_dict(state)
    rows = [(batch.tolist(), how) for batch, how in zip(second, sampler.weights(), strict=True)]
    assert [batch for batch, _ in rows] == epochs[1][3:]
    assert [batch.tolist() for batch in second] == epochs[2]


PLAIN, RANK_0 = {"effective_batch": 8, "dataset_size": 40}, {"rank": 0}


@pytest.mark.parametrize(
    ("fields", "gpus", "data", "settings", "message"),
    [
        (
            PLAIN,
            2,
            range(40),
            {},
            "has 2 replicas, and there is no process group: start the script by torchrun",
        ),
        (PLAIN, 2, range(40), {"rank": 2}, "0 to 1"),
        (PLAIN, 2, range(40), {"rank": True}, "rank"),
        (PLAIN, 2, range(40), {"rank": 0, "offset": 200}, "offset"),
        (PLAIN, 2, range(40), {"rank": 0, "epoch": -1}, "epoch"),
        (PLAIN, 2, range(41), RANK_0, "41 samples, the recipe's dataset_size is 40"),
        (PLAIN, 3, range(40), RANK_0, "infeasible"),
        ({**PLAIN, "convention": "megatron"}, 2, range(40), RANK_0, "megatron has no epochs"),
        ({"effective_batch": 8}, 1, [], {}, "empty"),
    ],
)
def test_wrong_use(fields, gpus, data, settings, message):
    with pytest.raises(ib.InputError, match=message):
        PlanSampler(data, ib.plan(ib.Recipe(lr=0.1, **fields), gpus), **settings)


@pytest.mark.parametrize("settings", [{}, {"split": "ragged"}, {"split": "uneven", "max_micro_batch": 4}])
def test_a_ramp_is_served_stage_by_stage_on_counts_that_divide_no_stage(settings):
    recipe = ib.Recipe(effective_batch=24, lr=0.1, dataset_size=500, ramp="8 8 160", duration="500sp")
    plan = ib.plan(recipe, 3 if settings else 4, **settings).require()
    rows = []
    for sampler in samplers(plan, shuffle=False):
        steps, weight = [[]], 0.0
        for batch, (factor, last) in zip(sampler, sampler.weights(), strict=True):
            steps[-1] += [sample for sample in batch if factor]
            weight += factor
            if last:
                steps.append([])
        rows.append(steps[:-1])
        if settings.get("split") == "uneven":
            assert {len(batch) for batch in itertools.islice(sampler, 12)} == {plan.micro_batch}
    feasible_plans = [sorted(itertools.chain(*step)) for step in zip(*rows, strict=True)]
    begun = 0
    for step, samples in enumerate(feasible_plans):
        after = begun + plan.batch_at(step)
        assert samples == sorted(place % 500 for place in range(begun, after)), step
        begun = after
    assert len(feasible_plans) == plan.total_steps
    assert begun == 520


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("begin", [0, 14, 15, 24])
def test_under_a_ramp_an_epoch_s_end_ends_no_step_and_the_place_is_the_plan_s(replicas, begin):
    recipe = ib.Recipe(effective_batch=12, lr=0.1, dataset_size=100, ramp="4 4 60", duration="5ep")
    plan = ib.plan(recipe, replicas, max_micro_batch=4, split="uneven").require()
    _, _, epoch, offset = plan.position(begin)
    steps = [[] for _ in range(plan.total_steps)]
    for rank in range(replicas):
        sampler, at = PlanSampler(range(100), plan, rank=rank, seed=3), begin
        sampler.load_state_dict(
            {"epoch": epoch, "offset": offset, "into_step": 0, "seed": 3, "shuffle": True}
        )
        for _ in range(epoch, 5):
            for batch, (factor, last) in zip(sampler, sampler.weights(), strict=True):
                steps[at] += batch if factor else []
                at += last
                if last and at < plan.total_steps:
                    place = sampler.state_dict()
                    assert (place["epoch"], place["offset"]) == plan.position(at)[2:]
        assert at == plan.total_steps
    orders = (torch.randperm(100, generator=torch.Generator().manual_seed(3 + epoch)) for epoch in range(6))
    stream = itertools.chain.from_iterable(order.tolist() for order in orders)
    expected = [sorted(itertools.islice(stream, plan.batch_at(step))) for step in range(plan.total_steps)]
    assert [sorted(step) for step in steps[begin:]] == expected[begin:]
