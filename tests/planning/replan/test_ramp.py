"""A batch ramp's schedule counts samples: Megatron-core's own scheduler and batch calculator, stepped as its
training loop does.
"""

import itertools
import types

import pytest

import isobatch as ib
from peers import megatron_core

KINDS = ("cosine", "linear", "constant", "inverse_sqrt")


def recipe_of(schedule="cosine", **fields):
    run = {"lr": 6e-5, "duration": "300000sp", "warmup": "1831sp", "min_lr": 6e-6, "ramp": "192 16 97656"}
    run |= {"effective_batch": 2048, "optimizer": "adam", "convention": "megatron", "schedule": schedule}
    return ib.Recipe(**run | fields)


def stepped(plan, kind):
    """(learning rate, batch) of each of Megatron's iterations."""
    scheduler = megatron_core("optimizer_param_scheduler")
    calculator = megatron_core("num_microbatches_calculator")
    style = kind.replace("inverse_sqrt", "inverse-square-root")
    start, increment, over = map(int, plan.recipe.ramp.split())
    ratio = plan.effective_batch // plan.recipe.effective_batch
    micro, replicas = plan.micro_batch, plan.data_parallel
    ramp = calculator.RampupBatchsizeNumMicroBatchesCalculator(
        plan.effective_batch, micro, replicas, False, 1, start * ratio, increment * ratio, over
    )
    run, warmup = (int(length.removesuffix("sp")) for length in (plan.recipe.duration, plan.recipe.warmup))
    group = {"lr": 0.0, "weight_decay": 0.0, "params": [None]}
    optimizer = types.SimpleNamespace(param_groups=[group])
    lr = scheduler.OptimizerParamScheduler(
        optimizer, 0.0, plan.lr, plan.min_lr, warmup, run, style, 0.0, 0.0, run, "constant"
    )
    consumed = 0
    while True:
        ramp.update(consumed, True)
        batch = ramp.get() * micro * replicas
        if consumed + batch > run:
            return
        yield group["lr"], batch
        lr.step(batch)
        consumed += batch


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("gpus", "settings"), [(8, {}), (16, {"policy": 4096, "rule": "sqrt"})])
def test_megatron_steps_through_the_same_values(kind, gpus, settings):
    plan = ib.plan(recipe_of(kind), gpus, max_micro_batch=2, **settings)
    run = list(stepped(plan, kind))
    assert len(run) == plan.total_steps
    assert len({batch for _, batch in run}) > 50  # the ramp was real
    assert plan.schedule.values(range(len(run))) == pytest.approx([lr for lr, _ in run], rel=1e-13, abs=0)
    assert plan.position(len(run)).samples == sum(batch for _, batch in run)


def test_without_a_ramp_nothing_is_bent():
    plan = ib.plan(recipe_of(ramp=None), 8)
    assert plan.schedule.form.clock == ()


def test_a_share_of_warmup_ends_where_the_plan_says():
    plan = ib.plan(recipe_of("constant", warmup="10%"), 8)
    assert plan.lr_at(plan.warmup_steps) == plan.lr
    assert plan.lr_at(plan.warmup_steps - 1) < plan.lr


def test_milestones_of_a_ramp_are_samples():
    plan = ib.plan(recipe_of("multistep(100000sp, 200000sp)", min_lr=0.0), 8)
    rates = plan.schedule.values(range(plan.total_steps))
    drops = [x for x in range(1, plan.total_steps) if rates[x] < rates[x - 1]]
    # Rounded to full batches, as milestones are.
    off = [plan.position(x).samples - at for x, at in zip(drops, (100000, 200000), strict=True)]
    assert max(map(abs, off)) <= 2 * 2048


def test_a_ramp_goes_on_after_a_move():
    plan = ib.plan(recipe_of(), 8, max_micro_batch=2)
    step = 60
    moved = ib.replan(plan, at_step=step, cluster=16)
    assert moved.schedule == plan.schedule
    assert moved.total_steps == plan.total_steps
    grown = ib.replan(plan, at_step=step, effective_batch=4096, rule="none")
    consumed = [grown.position(x).samples for x in range(grown.total_steps + 1)]
    batches = [after - before for before, after in itertools.pairwise(consumed)]
    assert batches[:step] == [plan.position(x + 1).samples - plan.position(x).samples for x in range(step)]
    assert batches[step] == 2 * (plan.position(step + 1).samples - plan.position(step).samples)
    assert max(batches) == 4096
    assert batches == sorted(batches)
    assert consumed[-1] <= 300000 < consumed[-1] + 4096
    same = plan.course.step_at(grown.course.samples_at(90))
    assert grown.lr_at(90) == pytest.approx(plan.lr_at(float(same)), rel=1e-12)
