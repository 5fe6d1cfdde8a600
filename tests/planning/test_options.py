"""Ways out of an infeasible plan: each is a plan, ranked, with its options of the command line."""

import shlex

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.planning.refusal import cost_of, time_of
from isobatch.words import duration, figure
from plan_of import plan_of, recipe_of
from reference.profile import PROFILE

RECIPE = ib.Recipe.from_gpus(
    gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", duration="1000st", warmup="100st"
)
ADAM = recipe_of(lr=1e-3, betas=(0.9, 0.95), gpus=8, duration="1000st", dataset_size=5120)
STUCK = {
    "not divisible": (RECIPE, 7, {}),
    "a multiple": (RECIPE, 8, {"micro_batch_multiple": 64}),
    "model parallel": (ib.Recipe(effective_batch=2048, lr=0.1, model_parallel=32), ib.Cluster(nodes=63), {}),
    "expert parallel": (ib.Recipe(effective_batch=96, lr=1e-3, model_parallel=2, expert_parallel=8), 12, {}),
    "max batch": (RECIPE, 8, {"max_batch": 100}),
    "above the dataset": (ADAM, 1024, {"policy": "grow", "max_micro_batch": 32}),
    "no tuned gpus": (ib.Recipe(effective_batch=256, lr=1e-3), 8, {"policy": "grow"}),
    "no noise": (ADAM, 16, {"policy": "grow", "rule": "adascale"}),
    "a beta": (ADAM, 128, {"policy": "grow", "rule": "sde"}),
    "a ramp": (ib.Recipe(effective_batch=64, lr=0.1, ramp="16 16 4096", duration="1e5sp"), 32, {}),
    "a batch": (RECIPE, 6, {"policy": 1000}),
    "a pipeline": (RECIPE, 8, {"accumulation_multiple": 3}),
    "a short pipeline": (RECIPE, 8, {"accumulation_multiple": 64}),
    "groups": (RECIPE, 8, {"batch_multiple": 24}),
    "a ramp's noise": (recipe_of(effective_batch=64, ramp="16 16 4096"), 8, {"ramp_rule": "saturating"}),
}


def test_each_way_out_is_a_plan():
    for recipe, cluster, settings in STUCK.values():
        stuck = ib.plan(recipe, cluster, **settings)
        assert stuck.status == "infeasible"
        assert stuck.options
        for option in stuck.options:
            assert isinstance(option, ib.FeasiblePlan)
            assert option == ib.plan(recipe, option.cluster, **option.settings._asdict())
            assert (option.cluster, option.settings) != (stuck.cluster, stuck.settings)


def test_the_smallest_change_comes_first_then_the_exact_batch_then_other_gpus():
    options = ib.plan(RECIPE, 7).options
    splits = [(o.effective_batch, o.world_size, o.layout.irregular) for o in options]
    assert splits == [
        (252, 7, False), (224, 7, False), (256, 7, True), (256, 7, True), (256, 4, False), (256, 8, False),
    ]  # fmt: skip
    assert [o.settings.batch_tolerance for o in options[:2]] == [0.016, 0.13]


def test_where_the_gpus_grew_the_batch_may_grow_with_them():
    """From 2 GPUs to 32 at batch 48: most people mean the same batch per GPU."""
    recipe = ib.Recipe(effective_batch=48, lr=1e-3, gpus=2)
    *nearer, last = ib.plan(recipe, 32).options
    assert (last.settings.policy, last.effective_batch, last.micro_batch) == ("grow", 768, 24)
    assert nearer and all(option.settings.policy == "keep" for option in nearer)
    assert (
        "768 samples (+1,500 %)                 24 × 1 × 32            --policy grow"
        in ib.plan(recipe, 32).explain()
    )
    for unasked in (
        ib.plan(recipe, 32, policy=40),
        ib.plan(ib.Recipe(effective_batch=48, lr=1e-3, gpus=48), 32),
    ):
        assert all(option.settings.policy != "grow" for option in unasked.options)


def test_a_batch_that_needs_many_small_passes_is_not_offered():
    options = plan_of(3, max_micro_batch=4).options[:2]
    splits = [(o.micro_batch, o.accumulation, o.effective_batch) for o in options]
    assert splits == [(4, 21, 252), (4, 22, 256)]


def test_whole_nodes_are_offered():
    options = ib.plan(*STUCK["model parallel"][:2]).options
    assert [(o.cluster.nodes, o.cluster.gpus_per_node) for o in options] == [(60, 8)] * 3 + [(32, 8), (64, 8)]


@pytest.mark.parametrize(
    ("batch", "gpus", "shapes"),
    [
        (100, 8, [(1, 5)]),  # 10 are not of whole nodes
        (144, 5, [(1, 4), (1, 6)]),
        (144, 10, [(1, 9)]),
        (32, 12, [(1, 8)]),
        (48, 13, [(1, 12)]),
    ],
)
def test_where_times_depend_on_nodes_larger_counts_are_whole_nodes(batch, gpus, shapes):
    """`isobatch plan --gpus 10` would be refused."""
    stuck = plan_of(gpus, effective_batch=batch, profile=PROFILE)
    others = [o.cluster for o in stuck.options if o.cluster != stuck.cluster]
    assert [(cluster.nodes, cluster.gpus_per_node) for cluster in others] == shapes
    run = {"effective_batch": 5040, "duration": "1000st"}
    limit = plan_of(8, **run, profile=PROFILE).hours * 0.9
    late = plan_of(6, **run, profile=PROFILE, deadline_hours=limit)
    assert (late.options[0].cluster.nodes, late.options[0].cluster.gpus_per_node) == (2, 8)


@pytest.mark.parametrize("gpus", [504, ib.Cluster(nodes=63, gpus_per_node=8)])
def test_gpus_that_model_parallelism_leaves_over_are_idle(gpus):
    recipe = ib.Recipe(effective_batch=1024, lr=3e-4, model_parallel=32, gpus=512, micro_batch=2)
    stuck = ib.plan(recipe, gpus, batch_tolerance=0.02)
    assert stuck.nearest_world_sizes == (480, 512)
    splits = [(o.world_size, o.effective_batch, o.layout.irregular) for o in stuck.options]
    assert splits == [(480, 1020, False), (480, 1024, True), (512, 1024, False)]
    assert "  480 GPUs (24 idle), 1,020 samples (-0.391 %)   2 × 34 × 15 " in stuck.explain()
    # Without a tolerance the smallest that is needed is offered.
    first = ib.plan(recipe, gpus).options[0]
    assert (first.world_size, first.effective_batch, first.settings.batch_tolerance) == (480, 1020, 0.004)


@pytest.mark.parametrize("per_node", [1, 4, 12])
@pytest.mark.parametrize("where", ["recipe", "cluster"])
def test_gpus_hold_whole_sets_of_experts(where, per_node):
    beside = {"expert_parallel": 8}
    recipe = ib.Recipe(effective_batch=96, lr=1e-3, model_parallel=2, **beside if where == "recipe" else {})
    hardware = beside if where == "cluster" else {}
    stuck = ib.plan(recipe, ib.Cluster(nodes=12 // per_node, gpus_per_node=per_node, **hardware))
    assert stuck.nearest_world_sizes == (8, 16)
    assert "  - 12 GPUs are not a multiple of 8 (expert parallel); 8 and 16 are\n" in stuck.explain()
    assert {option.world_size for option in stuck.options} >= {8, 16}
    assert all(option.world_size % 8 == 0 for option in stuck.options)


def test_a_batch_that_does_not_divide_is_offered_whole_sets_of_experts():
    recipe = ib.Recipe(effective_batch=96, lr=1e-3, model_parallel=2, expert_parallel=8)
    assert ib.plan(recipe, 40).nearest_world_sizes == (32, 48)
    assert ib.plan(recipe, 40, batch_tolerance=0.05).world_size == 40
    assert ib.plan(recipe, 12, policy="grow", max_micro_batch=4).nearest_world_sizes == (8, 16)


def test_a_coupled_recipe_is_offered_its_micro_batch():
    recipe = ib.Recipe.from_gpus(gpus=4, batch_per_gpu=64, lr=2e-5, coupled="negatives")
    moved = ib.plan(recipe, 8)
    assert [(o.world_size, o.effective_batch, o.micro_batch) for o in moved.options] == [
        (4, 256, 64),
        (8, 512, 64),
    ]
    text = moved.explain()
    assert "and all other hyperparameters, but not the micro-batch (see the warnings).\n" in text
    assert "the negatives of a sample are the rest of its micro-batch: 32 samples, 64 when tuned." in text
    assert text.splitlines()[-3] == "With the tuned micro-batch of 64:"
    assert "not the micro-batch" not in ib.plan(recipe, 2).explain() and ib.plan(recipe, 2).options == ()
    stuck = ib.plan(recipe, 6)
    assert [option.micro_batch for option in stuck.options[:2]] == [64, 64]
    assert [option.settings.policy for option in stuck.options[:2]] == ["keep", "grow"]


def test_a_nearer_batch_that_was_passed_over_is_said():
    text = plan_of(3, max_micro_batch=4, batch_tolerance=0.05).explain()
    nearer = "255 is nearer, but its micro-batches would be less than ¾ as large"
    assert f"252 (-1.56 %), which divides evenly ({nearer})" in text
    assert "nearer" not in plan_of(3, batch_tolerance=0.05).explain()


def test_a_price_is_shown_where_it_is_known():
    node = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=2.0)
    hours = ib.plan(RECIPE, node, profile=PROFILE).hours
    late = ib.plan(RECIPE, node, profile=PROFILE, deadline_hours=hours / 2)
    assert late.status == "infeasible"
    (option,) = [o for o in late.options if o.cluster == node]
    assert option.hours == hours
    assert "without --deadline-hours" in late.explain() and ", cost " in late.explain()


def test_where_nothing_works_it_says_so():
    alone = ib.plan(ib.Recipe(effective_batch=64, lr=0.1, dataset_size=8, drop_last=True), 1)
    assert alone.options == ()
    assert alone.explain().endswith("Nothing nearby would work.")


@pytest.mark.parametrize("name", ["not divisible", "max batch", "no noise", "a beta", "a pipeline", "groups"])
def test_the_flags_can_be_copied(name, tmp_path, capsys):
    recipe, cluster, settings = STUCK[name]
    recipe.save(tmp_path / "job.json")
    options = [f"--{key.replace('_', '-')} {value}" for key, value in settings.items()]
    menu = ib.plan(recipe, cluster, **settings).explain().partition("What would work:\n")[2]
    for line in menu.splitlines():
        flags = line.split("   ")[-1].strip()
        if flags.startswith("without "):
            flags = " ".join(option for option in options if option.split()[0] != flags.split()[1])
        else:
            flags = " ".join((*options, flags))
        gpus = [] if "--gpus" in flags else ["--gpus", str(cluster)]
        assert main(["plan", str(tmp_path / "job.json"), *gpus, *shlex.split(flags)]) == 0, flags
    capsys.readouterr()


def test_require_raises_with_the_explanation():
    stuck = ib.plan(RECIPE, 7)
    with pytest.raises(ib.InputError) as caught:
        stuck.require()
    assert str(caught.value) == stuck.explain()
    with pytest.raises(ib.InputError, match="Cannot train on 7 GPUs as asked"):
        ib.plan(RECIPE, 7, strict=True)
    plan = ib.plan(RECIPE, 8)
    assert plan.require() is plan
    assert ib.plan(RECIPE, 8, strict=True) == plan
    assert plan.options == ()


@pytest.mark.parametrize(
    ("batch", "gpus", "nearest", "settings"),
    [
        (250, 32, 10, {"batch_tolerance": 0.3, "micro_batch_multiple": 32, "min_micro_batch": 3}),
        (250, 128, 40, {"batch_tolerance": 0.3, "micro_batch_multiple": 8, "min_micro_batch": 3}),
        (256, 128, 28, {"batch_tolerance": 0.1, "accumulation_multiple": 5, "min_micro_batch": 2}),
        (256, 128, 46, {"batch_tolerance": 0.1, "accumulation_multiple": 3, "min_micro_batch": 2}),
        (256, 4096, 28, {"batch_tolerance": 0.1, "accumulation_multiple": 10}),
    ],
)
def test_the_nearest_count_is_found_however_far_away_it_is(batch, gpus, nearest, settings):
    recipe = ib.Recipe(effective_batch=batch, lr=0.1)
    stuck = ib.plan(recipe, gpus, **settings)
    assert (stuck.status, stuck.nearest_world_size) == ("infeasible", nearest)
    assert ib.plan(recipe, nearest, **settings).status != "infeasible"
    between = [ib.plan(recipe, count, **settings).status for count in range(nearest + 1, min(gpus, 300))]
    assert set(between) == {"infeasible"}


def test_the_fewest_gpus_that_meet_a_deadline():
    recipe = ib.Recipe(effective_batch=480, lr=1e-3, duration="100000st")
    planned = ib.plan(recipe, 2, profile=PROFILE)
    limit = planned.hours * 0.7
    missed = ib.plan(recipe, 2, profile=PROFILE, deadline_hours=limit)
    settings = {"profile": PROFILE, "deadline_hours": limit}
    met = [n for n in range(3, 65) if ib.plan(recipe, n, **settings).status != "infeasible"]
    assert met and missed.options[0].world_size == met[0]
    text = missed.explain()
    assert f"--gpus {met[0]}" in text and "without --deadline-hours" in text
    over = f"over the deadline of {duration(limit * 3600)} (deadline_hours)"
    assert f"the run takes {time_of(planned)}, {over}" in text
    never = ib.plan(recipe, 2, profile=PROFILE, deadline_hours=1e-9)
    (option,) = never.options
    assert option.world_size == 2 and option.settings.deadline_hours is None


def test_how_far_a_run_is_above_its_budget():
    recipe = ib.Recipe(effective_batch=480, lr=1e-3, duration="100000st")
    node = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=2.0)
    planned = ib.plan(recipe, node, profile=PROFILE)
    cost = planned.cost
    text = ib.plan(recipe, node, profile=PROFILE, budget=cost / 2).explain()
    assert f"the run costs {cost_of(planned, '$')}, above the budget of ${figure(cost / 2)}" in text
    both = ib.plan(recipe, node, profile=PROFILE, budget=cost / 2, deadline_hours=1e-9)
    assert f"the run takes {time_of(planned)}, over the deadline of" in both.explain()
    (option,) = both.options
    assert (option.settings.budget, option.settings.deadline_hours) == (None, None)


def test_fewer_gpus_than_a_replica_have_ways_out_too():
    recipe = ib.Recipe(
        effective_batch=64, lr=1e-3, gpus=32, micro_batch=4, model_parallel=8, coupled="negatives"
    )
    few = ib.plan(recipe, 4)
    assert "  - 4 GPUs are not a multiple of model_parallel 8\n" in few.explain()
    assert {option.world_size for option in few.options} == {8}


def test_idle_gpus_are_counted_in_what_would_work():
    many = ib.plan(recipe_of(gpus=32, micro_batch=8, batch_norm=True), ib.Cluster(nodes=128))
    text = many.explain()
    assert "32 GPUs (992 idle), 256 samples (exact)" in text and "256 GPUs (768 idle)" in text


def test_the_smallest_micro_batch_of_a_ragged_step_is_named():
    recipe = recipe_of(gpus=32, micro_batch=8, batch_norm=True)
    ragged = ib.plan(recipe, 7, split="ragged")
    sizes = {size for rank in range(7) for size in ragged.micro_batches(rank).tolist()}
    assert (min(sizes), max(sizes)) == (4, 8)
    assert "section 2.3): 4 to 8 samples, 8 when tuned. This is not the same training" in ragged.explain()
