"""The integrations by their attributes; and anything but a plan or a recipe is refused."""

import pytest

import isobatch as ib

torch = pytest.importorskip("torch")

from isobatch.guard import guard  # noqa: E402
from isobatch.integrations.torch import ElasticRun, PlanLR, PlanSampler  # noqa: E402

RECIPE = ib.Recipe(effective_batch=64, lr=3e-3, dataset_size=3000, duration="2ep")


def lr(plan):
    return PlanLR(torch.optim.AdamW(torch.nn.Linear(2, 2).parameters(), lr=1e-3), plan)


@pytest.mark.parametrize("use", [lr, lambda plan: PlanSampler(range(3000), plan), guard])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (RECIPE, r"plan must be a Plan, got a Recipe: isobatch\.plan\(recipe, gpus\) makes one"),
        ("p1.json", r"plan must be a Plan, got the path 'p1\.json': Plan\.load\(path\) reads one"),
        (8, r"plan must be a Plan, got 8: isobatch\.plan\(recipe, gpus\) makes one"),
    ],
)
def test_bad_plans(use, value, says):
    with pytest.raises(ib.InputError, match=says):
        use(value)


@pytest.mark.parametrize("value", ["recipe.toml", {"effective_batch": 64}, None])
def test_bad_recipes(value):
    with pytest.raises(ib.InputError, match=r"recipe must be a Recipe or a Plan, got .*Recipe\.load"):
        ElasticRun(value)


def test_a_sampler_under_fewer_processes_names_the_ways_out(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(ib.InputError, match=r"isobatch\.plan\(recipe, 2\)\), or use ElasticRun"):
        PlanSampler(range(3000), ib.plan(RECIPE, 8))


def test_the_integrations_are_there_by_their_names():
    """Also those that nobody has imported; that their libraries are not, tests/test_guards.py shows."""
    module_of = ib.integrations.__getattr__  # what a name asks that is not there yet
    assert module_of("torch").PlanLR is PlanLR and module_of("elastic_ray").report
    assert module_of("lightning").configure_optimizers and module_of("transformers").optimizers
    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        ib.integrations.keras  # noqa: B018
