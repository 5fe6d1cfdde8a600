"""ElasticRun on one process, and on pretended ones: what each takes, what a checkpoint has, and what is
refused.
"""

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.elastic.steps import Micro  # noqa: E402
from isobatch.integrations.torch import ElasticRun, PlanLR, PlanSampler  # noqa: E402

COUNTS = (1, 2, 3, 4, 5, 6, 7)


def recipe_of(**fields):
    return ib.Recipe(**{**elastic.RECIPE, **fields})


@pytest.mark.parametrize("settings", [{"split": "uneven"}, {"split": "ragged"}])
@pytest.mark.parametrize(("batch", "micro"), [(20, 2), (21, 3), (12, None), (60, 4)])
def test_a_full_step_is_dealt_as_the_plan_says(rank, settings, batch, micro):
    recipe = recipe_of(effective_batch=batch, dataset_size=10 * batch)
    for size in COUNTS:
        for replica in range(size):
            rank(replica, size)
            run = ElasticRun(recipe, max_micro_batch=micro, **settings)
            own = run._progress.passes(next(run._progress.spans()), equal=False)
            assert [portion.samples for portion in own] == run.plan.micro_batches(replica).tolist()
            assert run.plan.recipe.convention == "exact"


def test_samplers_deal_a_run_as_it_does(rank):
    recipe = recipe_of(effective_batch=20, dataset_size=93, duration="2ep")
    for replica in range(3):
        rank(replica, 3)
        run = ElasticRun(recipe, max_micro_batch=2, split="uneven")
        sampler = PlanSampler(range(93), run.plan, rank=replica)
        assert [batch for _ in range(2) for batch in sampler] == [
            batch.tolist() for batch in run.loader(range(93))
        ]


def test_the_plan_has_the_whole_runs_figures_at_every_count(rank):
    recipe = recipe_of(effective_batch=20, dataset_size=500, duration="4ep")
    for size in (1, 2, 3, 4, 5, 6):
        rank(0, size)
        plan = ElasticRun(recipe, split="ragged").plan
        assert (plan.world_size, plan.padded_samples, plan.dropped_samples) == (size, 0, 0)
        figures = plan.steps_per_epoch, plan.total_steps, plan.warmup_steps, plan.samples_per_epoch
        assert figures == (25, 100, 25, 500)


def test_plans_for_counts_has_the_infeasible_ones_too():
    plans = ElasticRun(recipe_of(), max_micro_batch=4).plans(range(1, 8))
    assert [*plans] == [*range(1, 8)]
    assert {count for count, plan in plans.items() if plan.status == "infeasible"} == {5, 7}
    assert plans[3].micro_batch * plans[3].accumulation * 3 == 12
    with pytest.raises(ib.InputError):
        ElasticRun(recipe_of()).plans([0])


def test_a_hundred_restarts_are_under_4_kb_and_the_same_run(rank):
    recipe, state, rates = recipe_of(dataset_size=1000, duration="3ep"), None, []
    expected = elastic.go_on(ElasticRun(recipe))
    draw = random.Random(1)
    for restart in range(101):
        rank(0, draw.choice((2, 3, 4, 6)))
        run = ElasticRun(recipe, state=state, max_micro_batch=draw.choice((2, 3)))
        rank(0, 1)
        alone = ElasticRun(recipe, state=run.state_dict())
        rates += elastic.go_on(alone, until=2 * (restart + 1))
        state = json.loads(json.dumps({**run.state_dict(), "step": alone.state_dict()["step"]}))
    assert rates == expected[: len(rates)]
    assert len(rates) == 202
    assert len(state["legs"]) > 80
    assert len(json.dumps(state)) < 4096


def test_equal_neighbours_are_one_leg():
    state = None
    for _ in range(3):
        run = ElasticRun(recipe_of(), state=state)
        elastic.go_on(run, until=run.position.step + 2)
        state = run.state_dict()
    assert state["legs"] == [[0, 1, 12, 0]]
    assert state["step"] == 6


def test_a_batch_that_moves_moves_the_rate_and_the_clock():
    recipe = recipe_of(effective_batch=10, dataset_size=100, duration="4ep", warmup=None, momentum=None)
    first = ElasticRun(recipe)
    elastic.go_on(first, until=10)
    moved = ElasticRun(recipe, state=first.state_dict(), policy=20)
    expected = ib.replan(ib.plan(recipe, 1), at_step=10, effective_batch=20)
    assert moved.plan.total_steps == expected.total_steps == 10 + 15
    assert elastic.go_on(moved) == [expected.lr_at(step) for step in range(10, 25)]
    again = ElasticRun(recipe, state=moved.state_dict(), policy=20)
    assert elastic.go_on(again) == []
    assert again.finished


def test_the_state_is_of_whole_steps():
    run = ElasticRun(recipe_of(), max_micro_batch=4)
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = run.scheduler(optimizer)
    assert run.state_dict()["step"] == 0
    for step in run.steps(run.loader(range(70))):
        with pytest.raises(ib.InputError, match="has 3 micro-batches left"):
            run.state_dict()
        with pytest.raises(ib.InputError, match="with micro-batches left"):
            scheduler.step()
        for _ in step:
            pass
        with pytest.raises(ib.InputError, match="the scheduler was not stepped in step 0"):
            run.state_dict()
        optimizer.step()
        scheduler.step()
        assert run.state_dict()["step"] == run.position.step == 1
        with pytest.raises(ib.InputError, match="twice"):
            scheduler.step()
        break
    assert run.state_dict()["step"] == 1
    with pytest.raises(ib.InputError, match=r"outside of run\.steps"):
        scheduler.step()


def test_a_step_left_unfinished_stops_the_loop_and_is_done_again():
    run = ElasticRun(recipe_of(), max_micro_batch=4)
    loader = run.loader(range(70))
    with pytest.raises(ib.InputError, match="step 0 has 3 micro-batches left"):
        for _ in run.steps(loader):
            pass
    assert [step.number for step in run.steps(loader) for _ in step][:4] == [0, 0, 0, 1]


def test_a_step_that_a_scaler_skipped_counts():
    run = ElasticRun(recipe_of())
    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    scheduler = run.scheduler(optimizer)
    for step in run.steps(run.loader(range(70))):
        assert optimizer.param_groups[0]["lr"] == run.plan.lr_at(step.number)
        assert len([*step]) == 1
        if step.number % 2:
            optimizer.step()
        scheduler.step()
    assert run.finished


@pytest.mark.parametrize("before", [True, False])
def test_the_optimizers_state_is_loaded_before_or_after(before):
    checkpoint, _ = elastic.train(stop=7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    run = ElasticRun(recipe_of(), state=checkpoint["run"])
    if before:
        optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler = run.scheduler(optimizer)
    if not before:
        optimizer.load_state_dict(checkpoint["optimizer"])
    assert optimizer.param_groups[0]["lr"] == run.plan.lr_at(7) == scheduler.get_last_lr()[0]
    assert PlanLR.of(optimizer) is scheduler
    scheduler.load_state_dict(scheduler.state_dict())
    with pytest.raises(ib.InputError, match="must be of step 7"):
        scheduler.load_state_dict({"samples": 12, "step": 1})


def test_the_optimizer_takes_the_plans_values_and_gives_its_own_back():
    fields = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "dataset_size": 640}
    recipe = ib.Recipe(effective_batch=16, lr=1e-3, duration="4ep", **fields)
    model = torch.nn.Linear(2, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
    grown = ElasticRun(recipe, policy=64, rule="sde")
    grown.scheduler(optimizer)
    plan = ib.plan(recipe, 1, policy=64, rule="sde")
    assert plan.betas != (0.9, 0.99)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == [pytest.approx(plan.weight_decay), 0.0]
    for group in optimizer.param_groups:
        assert group["betas"] == plan.betas
        assert group["eps"] == pytest.approx(plan.eps)
    saved = optimizer.state_dict()
    fresh = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias]}], lr=1e-3)
    fresh.load_state_dict(saved)
    ElasticRun(recipe).scheduler(fresh)
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.1, 0.0]
    assert {(group["betas"], group["eps"]) for group in fresh.param_groups} == {((0.9, 0.99), 1e-8)}


@pytest.mark.parametrize("policy", ["keep", 64])
def test_every_setting_that_moves_a_hyperparameter_is_the_runs_too(policy):
    fields = {"effective_batch": 16, "lr": 1e-3, "weight_decay": 0.1, "dataset_size": 640, "duration": "4ep"}
    settings = {"beta2_rule": "half_life:0.98", "duration_scale": "9.0^0.5", "policy": policy}
    for optimizer, decay in ("adamw", None), ("muon", "sqrt"):
        recipe = ib.Recipe(**fields, optimizer=optimizer, betas=(0.9, 0.99), decay=decay)
        plan, run = ib.plan(recipe, 1, **settings), ElasticRun(recipe, **settings)
        moved = (plan.lr, plan.beta2, plan.weight_decay)
        assert moved[0] != 1e-3 and moved[2] != 0.1
        course = run._run_plan.course
        assert (course.lr, course.beta2, course.weight_decay) == moved


LONGER = "duration must be '3ep' as in the checkpoint, got '4ep'"


@pytest.mark.parametrize(
    ("changed", "settings", "message"),
    [
        ({"lr": 0.2}, {}, "lr must be 0.05 as in the checkpoint, got 0.2"),
        ({"dataset_size": 80}, {}, "dataset_size must be 70 as in the checkpoint, got 80"),
        ({}, {"seed": 1}, "seed must be 0 as in the checkpoint, got 1"),
        ({"duration": "4ep"}, {}, f'{LONGER}: change it back, or pass accept=("duration",)'),
        (
            {},
            {"accept": ["duratoin"]},
            "accept must have names of recipe fields, seed or shuffle, got 'duratoin'",
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_by_name(changed, settings, message):
    state = ElasticRun(recipe_of()).state_dict()
    with pytest.raises(ib.InputError) as error:
        ElasticRun(recipe_of(**changed), state=state, **settings)
    assert str(error.value).startswith(message)


def test_accepted_fields_may_change():
    run = ElasticRun(recipe_of())
    elastic.go_on(run, until=5)
    longer = ElasticRun(recipe_of(duration="4ep"), state=run.state_dict(), accept=("duration",))
    assert longer.plan.total_steps == 24
    assert len(elastic.go_on(longer)) == 19
    with pytest.raises(ib.InputError, match="the run's end, got 24"):
        ElasticRun(recipe_of(), state=longer.state_dict(), accept=("duration",))


@pytest.mark.parametrize("state", [{}, 5, {"schema": "isobatch.elastic/2"}])
def test_no_state_is_refused(state):
    with pytest.raises(ib.InputError, match=r"state must be what ElasticRun.state_dict\(\) gave"):
        ElasticRun(recipe_of(), state=state)


@pytest.mark.parametrize(
    "change", [{"legs": [[0, 1, 12, 3]]}, {"legs": []}, {"legs": [[1, 1, 12, 0]]}, {"step": "x"}, {"a": 1}]
)
def test_a_damaged_state_is_refused(change):
    state = ElasticRun(recipe_of()).state_dict()
    with pytest.raises(ib.InputError, match="state is damaged"):
        ElasticRun(recipe_of(), state={**state, **change})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_chained_and_put_back(number):
    called = []
    before = signal.signal(number, lambda *_: called.append(1))
    handler = signal.getsignal(number)
    try:
        run = ElasticRun(recipe_of())
        stops = []
        for step in run.steps(run.loader(range(70))):
            assert len([*step]) == 1
            if step.number == 2:
                os.kill(os.getpid(), number)
            stops.append(run.stopping)
            if run.stopping:
                break
        assert stops == [False, False, False, True]
        assert called == [1]
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_in_another_thread_no_handler_is_set_and_stop_works():
    def train():
        run, steps = ElasticRun(recipe_of()), []
        for step in run.steps(run.loader(range(70))):
            steps.append((step.number, len([*step])))
            run.stop()
            if run.stopping:
                return steps

    with ThreadPoolExecutor() as pool:
        assert pool.submit(train).result() == [(0, 1), (1, 1)]


def test_the_world_is_torchruns_or_srun_s(monkeypatch):
    assert ElasticRun(recipe_of()).world[:2] == (0, 1)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")  # an sbatch script, which is one process
    assert ElasticRun(recipe_of()).world[:2] == (0, 1)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert ElasticRun(recipe_of()).share == (1, 2)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    run = ElasticRun(recipe_of())
    assert (run.share, run.plan.cluster.nodes, run.plan.cluster.gpus_per_node) == ((2, 4), 2, 2)
    with pytest.raises(ib.InputError, match="init_process_group"):
        run.steps(run.loader(range(70)))
    monkeypatch.setenv("WORLD_SIZE", "four")
    with pytest.raises(ib.InputError, match="torchrun's WORLD_SIZE must be a whole number"):
        ElasticRun(recipe_of())


def test_with_model_parallelism_the_replica_is_given(rank):
    rank(5, 8)
    with pytest.raises(ib.InputError, match="replica is missing: 8 processes hold 4 replicas"):
        ElasticRun(recipe_of(model_parallel=2))

    class Mesh:
        def get_local_rank(self):
            return 2

    assert ElasticRun(recipe_of(model_parallel=2), replica=Mesh()).share == (2, 4)
    assert ElasticRun(recipe_of(model_parallel=2), replica=1).share == (1, 4)
    with pytest.raises(ib.InputError, match="replica must be 0 to 3, got 4"):
        ElasticRun(recipe_of(model_parallel=2), replica=4)


def test_a_count_that_does_not_divide_says_so(rank):
    rank(0, 5)
    with pytest.raises(ib.InputError, match="5"):
        ElasticRun(recipe_of())


@pytest.mark.parametrize(
    ("fields", "settings", "why"),
    [
        ({"duration": None, "warmup": None}, {}, "duration"),
        ({"convention": "megatron", "duration": "100st", "warmup": None}, {}, "megatron"),
        ({}, {"splt": "uneven"}, "unknown setting 'splt': did you mean 'split'"),
    ],
)
def test_bad_runs_are_refused(fields, settings, why):
    with pytest.raises(ib.InputError, match=why):
        ElasticRun(recipe_of(**fields), **settings)


def test_data_that_is_not_the_recipe_s_is_refused():
    with pytest.warns(UserWarning, match="counts exactly"):
        run = ElasticRun(recipe_of(convention="transformers"))
    with pytest.raises(ib.InputError, match="dataset_size must be 71, as the dataset has, got 70"):
        run.loader(range(71))
    with pytest.raises(ib.InputError, match="shuffle is the plan's to decide"):
        run.loader(range(70), shuffle=True)
    with pytest.raises(ib.InputError, match="the loader ended in step 2"):
        for step in run.steps([0, 1]):
            assert len([*step]) == 1


def test_a_plan_brings_its_settings():
    plan = ib.plan(recipe_of(), ib.Cluster(nodes=1, gpus_per_node=2, memory_gib=80.0), max_micro_batch=3)
    run = ElasticRun(plan)
    assert (run.plan.micro_batch, run.plan.accumulation, run.plan.cluster.memory_gib) == (3, 4, 80.0)
    assert ElasticRun(plan, max_micro_batch=6).plan.micro_batch == 6


def test_torchruns_shared_store_is_noticed(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.warns(UserWarning, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        ElasticRun(recipe_of())
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    ElasticRun(recipe_of())


def test_collectives_inside_a_model_need_equal_passes():
    inside = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2))
    micro = Micro(None, 1.0, last=True, stand_in=False, equal=False)
    with pytest.raises(ib.InputError, match="equal_passes must be True for FSDP and SyncBatchNorm"):
        micro.sync(inside)
    micro._replace(equal=True).sync(inside)
    micro.sync(torch.nn.Linear(2, 2))


def test_fsdp2s_flag_is_set_for_the_last_only():
    class Sharded(torch.nn.Linear):
        synchronizes = None

        def set_requires_gradient_sync(self, flag):
            self.synchronizes = flag

    model = Sharded(1, 1)
    for last in (False, True):
        with Micro(None, 1.0, last=last, stand_in=False, equal=True).sync(model):
            assert model.synchronizes is last


@pytest.mark.parametrize("content", [b'{"epoch": 1, "ru', b'{"epoch": "\xff"}', b"[]", b""])
def test_a_checkpoint_that_was_cut_short_is_named(tmp_path, content):
    from isobatch.integrations.transformers import state_in

    (tmp_path / "isobatch.json").write_bytes(content)
    with pytest.raises(ib.InputError, match="isobatch.json") as error:
        state_in(tmp_path)
    assert error.value.file == str(tmp_path / "isobatch.json")
