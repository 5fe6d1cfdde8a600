"""Steps, padding and drops against the real samplers, loaders and trainers, over thousands of random
cases.
"""

import importlib.util
import random
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import isobatch as ib
from plan_of import plan_of, recipe_of

torch = pytest.importorskip("torch", reason="compares with torch's own sampler and loader")
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler  # noqa: E402

CASES = 2500


def quietly(name):
    """A peer, imported without its own warnings; skips where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"compares with {name}: {error}")


def drawn(convention, count=CASES, seed=0):
    """Random epochs, as columns of jobs and each one's GPU count."""
    draw = random.Random(f"{convention}{seed}")
    rows = []
    while len(rows) < count:
        replicas, micro, accumulation = draw.randint(1, 9), draw.randint(1, 12), draw.randint(1, 6)
        size = draw.choice([draw.randint(1, 60), draw.randint(1, 700)])
        row = {"dataset_size": size, "gpus": replicas, "micro_batch": micro, "accumulation": accumulation}
        row["drop_last"] = draw.choice(
            ["false", "true", "loader"] + ["sampler"] * (convention != "transformers")
        )
        rows.append(row | {"effective_batch": replicas * micro * accumulation})
    return rows


def planned(rows, convention, epochs="3ep"):
    """The fleet's answer: one row a case, each on the GPU count that it was tuned on."""
    jobs = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    size = len(rows)
    shared = {"lr": 0.1, "convention": convention, "duration": epochs}
    jobs |= {"job": np.arange(size), **{name: np.full(size, value) for name, value in shared.items()}}
    counts = np.unique(jobs["gpus"])
    clusters = {"cluster": counts, "nodes": counts * 0 + 1, "gpus_per_node": counts}
    table = ib.plan_fleet(jobs, clusters, pairs={"job": jobs["job"], "cluster": jobs["gpus"]})
    return [{name: column[row] for name, column in table.items()} for row in range(size)]


def counted(loaders, accumulation):
    """Counts the steps of an epoch in the loop of every guide, and how often each sample was served."""
    steps, served = set(), Counter()
    for loader in loaders:
        samples = 0
        for index, batch in enumerate(loader):
            served.update(batch)
            if (index + 1) % accumulation == 0 or index + 1 == len(loader):
                samples += 1
        steps.add(samples)
    assert len(steps) == 1, "ranks would wait for one another for ever"
    return steps.pop(), served


def loader_of(row, dataset, rank):
    drops = row["drop_last"] in ("true", "sampler")
    sampler = DistributedSampler(dataset, row["gpus"], rank, shuffle=False, drop_last=drops)
    drops = row["drop_last"] in ("true", "loader")
    return DataLoader(dataset, row["micro_batch"], sampler=sampler, drop_last=drops)


def shards_of(row, split=False, **options):
    """Prepares a row's loader with Accelerate for each of its processes."""
    shard, world = quietly("accelerate.data_loader").BatchSamplerShard, row["gpus"]
    size, drops = row["micro_batch"] * (world if split else 1), row["drop_last"] != "false"
    whole = BatchSampler(SequentialSampler(range(row["dataset_size"])), size, drops)
    # accelerate's prepare_data_loader leaves the loader of a single process alone.
    if world == 1 and not options:
        return [whole]
    return [list(shard(whole, world, rank, split_batches=split, **options)) for rank in range(world)]


def check(row, plan, steps, served):
    total = sum(served.values())
    if steps == 0 or row["effective_batch"] > row["dataset_size"]:
        assert plan["status"] == "infeasible"
        assert ib.Reason.BATCH_ABOVE_DATASET in ib.Reason.of(int(plan["reasons"]))
        return False
    assert plan["status"] != "infeasible", row
    assert plan["steps_per_epoch"] == steps, row
    assert plan["total_steps"] == 3 * steps, row
    assert plan["samples_per_epoch"] == total, row
    assert plan["padded_samples"] == total - len(served), row
    assert plan["dropped_samples"] == row["dataset_size"] - len(served), row
    return True


@pytest.mark.parametrize("convention", ["torch", "lightning"])
def test_distributed_sampler_and_loader(convention):
    feasible = 0
    rows = drawn(convention)
    for row, plan in zip(rows, planned(rows, convention), strict=True):
        dataset = range(row["dataset_size"])
        # The loader's own batch sampler yields the indices that it would collate.
        loaders = [loader_of(row, dataset, rank).batch_sampler for rank in range(row["gpus"])]
        feasible += check(row, plan, *counted(loaders, row["accumulation"]))
    assert feasible > CASES / 3


@pytest.mark.peers
@pytest.mark.parametrize("split", [False, True])
def test_accelerates_shards_without_even_batches(split):
    """The first process takes the plan's steps, and no sample is served twice; with split_batches the
    loader's batch is of all.
    """
    feasible = 0
    rows = [row | {"even_batches": False} for row in drawn("transformers", seed=2)]
    for row, plan in zip(rows, planned(rows, "transformers"), strict=True):
        loaders = shards_of(row, split, even_batches=False)
        steps, served = counted(loaders[:1], row["accumulation"])
        for loader in loaders[1:]:
            served += counted([loader], row["accumulation"])[1]
            assert len(loader) <= len(loaders[0])
        feasible += check(row, plan, steps, served)
    assert feasible > CASES / 3


@pytest.mark.peers
def test_accelerates_shards():
    feasible = 0
    rows = drawn("transformers")
    for row, plan in zip(rows, planned(rows, "transformers"), strict=True):
        feasible += check(row, plan, *counted(shards_of(row), row["accumulation"]))
    assert feasible > CASES / 3


@pytest.mark.peers
@pytest.mark.slow
def test_the_transformers_trainers_own_count():
    count = quietly("transformers.trainer").Trainer.set_initial_training_values
    rows = drawn("transformers", count=300, seed=3)
    for row, plan in zip(rows, planned(rows, "transformers"), strict=True):
        if plan["status"] == "infeasible":
            continue
        arguments = SimpleNamespace(
            max_steps=-1, num_train_epochs=3, gradient_accumulation_steps=row["accumulation"],
            include_num_input_tokens_seen="no",
        )  # fmt: skip
        me = SimpleNamespace(
            get_total_train_batch_size=lambda _: 1, get_sp_size=lambda: 1, num_examples=lambda _: 1
        )
        a_round = row["micro_batch"] * row["gpus"]
        batches = (
            row["dataset_size"] // a_round
            if row["drop_last"] != "false"
            else -(-row["dataset_size"] // a_round)
        )
        *_, steps = count(me, arguments, range(batches))
        assert plan["total_steps"] == steps


@pytest.mark.peers
@pytest.mark.slow
def test_lightnings_estimate():
    estimate = quietly("lightning.pytorch.trainer.trainer").Trainer.estimated_stepping_batches.fget
    rows = drawn("lightning", count=300, seed=2)
    for row, plan in zip(rows, planned(rows, "lightning"), strict=True):
        if plan["status"] == "infeasible":
            continue
        loader = loader_of(row, range(row["dataset_size"]), 0)
        state = SimpleNamespace(
            max_epochs=3, max_steps=-1, train_dataloader=loader, num_training_batches=len(loader),
            accumulate_grad_batches=row["accumulation"],
        )  # fmt: skip
        assert plan["total_steps"] == estimate(state)


def megatron():
    """Megatron's calculators, by their file alone: the package about them takes long to import and warns."""
    try:
        megatron = importlib.util.find_spec("megatron.core")
    except ModuleNotFoundError:
        megatron = None
    if megatron is None:
        pytest.skip("compares with megatron-core")
    path = Path(megatron.submodule_search_locations[0]) / "num_microbatches_calculator.py"
    spec = importlib.util.spec_from_file_location("num_microbatches_calculator", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.peers
def test_megatrons_calculators():
    module = megatron()
    draw = random.Random(0)
    for _ in range(150):
        replicas, micro = draw.choice([1, 2, 8]), draw.choice([1, 2, 4])
        unit = replicas * micro
        start, increment = unit * draw.randint(1, 6), unit * draw.randint(1, 4)
        full = start + increment * draw.randint(1, 12)
        ramp = draw.randint(full, 40 * full)
        samples = draw.randint(full, 120 * full)
        calculator = module.RampupBatchsizeNumMicroBatchesCalculator(
            full, micro, replicas, False, 1, start, increment, ramp
        )
        consumed = steps = 0
        while True:
            calculator.update(consumed, True)
            if consumed + calculator.get_current_global_batch_size() > samples:
                break
            consumed += calculator.get_current_global_batch_size()
            steps += 1
        recipe = recipe_of(effective_batch=full, duration=f"{samples}sp", convention="megatron",
            ramp=f"{start} {increment} {ramp}")  # fmt: skip
        plan = ib.plan(recipe, replicas, max_micro_batch=micro)
        assert plan.total_steps == steps, recipe
        assert plan.effective_batch == calculator.global_batch_size
        if plan.micro_batch == micro:
            calculator.update(10**12, True)
            assert plan.accumulation == calculator.get()


@pytest.mark.peers
def test_megatron_keeps_a_constant_batch_in_the_same_micro_batches():
    module = megatron()
    for replicas, micro, accumulation in ((1, 1, 1), (8, 2, 128), (12, 4, 32), (64, 1, 24)):
        batch = replicas * micro * accumulation
        calculator = module.ConstantNumMicroBatchesCalculator(batch, micro, replicas, False, 1)
        assert (
            plan_of(replicas, effective_batch=batch, max_micro_batch=micro).accumulation == calculator.get()
        )
