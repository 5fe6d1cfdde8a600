"""The admin policy of examples/skypilot, in SkyPilot itself where installed, and in a double."""

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import isobatch as ib

FILE = Path(__file__).parents[2] / "examples/skypilot/good_counts.py"


@dataclass
class DoubleTask:
    """Stands for a `sky.Task`."""

    num_nodes: int
    resources: set
    envs: dict = field(default_factory=dict)

    def update_envs(self, envs):
        self.envs |= envs


def double():
    """Makes a module in the place of `sky`."""
    sky = ModuleType("sky")
    sky.AdminPolicy = object
    for name in ("Task", "UserRequest"):
        setattr(sky, name, SimpleNamespace)
    sky.MutatedUserRequest = lambda task, skypilot_config: SimpleNamespace(
        task=task, skypilot_config=skypilot_config
    )
    return sky


@pytest.fixture(params=["double", "sky"])
def policy(request, monkeypatch, tmp_path):
    """Applies the policy to a task with a recipe for 96 samples."""
    if request.param == "double":
        monkeypatch.setitem(sys.modules, "sky", double())
    elif importlib.util.find_spec("sky") is None:
        pytest.skip("SkyPilot is not installed")
    import sky

    spec = importlib.util.spec_from_file_location("good_counts", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe = tmp_path / "job.toml"
    ib.Recipe(effective_batch=96, lr=0.1, duration="1000st").save(recipe)

    def task_of(nodes, accelerators, envs):
        if request.param == "double":
            each = accelerators if isinstance(accelerators, list) else [accelerators]
            kinds = [dict([kind.split(":")]) if kind else None for kind in each]
            numbers = [kind and {name: int(number) for name, number in kind.items()} for kind in kinds]
            return DoubleTask(nodes, [SimpleNamespace(accelerators=kind) for kind in numbers], dict(envs))
        resources = {} if accelerators is None else {"accelerators": accelerators}
        task = {"num_nodes": nodes, "resources": resources, "envs": envs, "run": "python train.py"}
        return sky.Task.from_yaml_config(task)

    def apply(nodes, accelerators, envs=None):
        task = task_of(nodes, accelerators, {"ISOBATCH_RECIPE": str(recipe)} if envs is None else envs)
        config = object()
        if request.param == "double":
            asking = SimpleNamespace(task=task, skypilot_config=config)
            mutated = module.GoodCounts.validate_and_mutate(asking)
        else:
            name = next(iter(sky.server.requests.request_names.AdminPolicyRequestName))
            mutated = module.GoodCounts().apply(sky.UserRequest(task, config, name))
            assert type(mutated) is sky.MutatedUserRequest
        assert mutated.skypilot_config is config
        return mutated.task

    return apply


def test_nodes_are_rounded_down_and_the_plan_is_in_the_environment(policy):
    task = policy(5, "H100:8")
    plan = ib.plan(ib.Recipe(effective_batch=96, lr=0.1, duration="1000st"), 32)
    assert task.num_nodes == 4
    assert task.envs["ISOBATCH_WORLD_SIZE"] == "32"
    assert task.envs["ISOBATCH_MICRO_BATCH"] == str(plan.micro_batch)
    assert policy(4, "H100:8").num_nodes == 4 and policy(1, "A100:1").num_nodes == 1


def test_a_task_without_a_recipe_passes(policy):
    task = policy(5, None, {"OTHER": "1"})
    assert (task.num_nodes, dict(task.envs)) == (5, {"OTHER": "1"})


@pytest.mark.parametrize(
    ("nodes", "accelerators", "envs", "message"),
    [
        (2, "H100:5", None, "works on no number of nodes up to 2 of 5 GPUs: see isobatch counts"),
        (2, None, None, "accelerators must be one whole number of GPUs, got"),
        (2, "H100:8", {"ISOBATCH_RECIPE": "gone.toml"}, "gone.toml: cannot be read"),
        (2, ["H100:8", "A100:4"], None, r"accelerators must be one whole number of GPUs, got \[4, 8\]"),
    ],
)
def test_bad_tasks_are_refused(policy, nodes, accelerators, envs, message):
    with pytest.raises(ib.InputError, match=message):
        policy(nodes, accelerators, envs)
