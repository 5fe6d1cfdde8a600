"""Values moving with the learning rate, and stand-ins leaving statistics alone."""

import copy

import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="ElasticRun drives a torch training")

from ddp import elastic  # noqa: E402
from isobatch.elastic.steps import Micro  # noqa: E402
from isobatch.integrations.torch import ElasticRun  # noqa: E402

RECIPE = ib.Recipe(
    effective_batch=8, lr=0.1, optimizer="sgd", dataset_size=80, duration="9ep", schedule="constant"
)


class Caffe(torch.optim.Optimizer):
    """SGD with the learning rate in its velocity: v ← μv + ηg, w ← w − v."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                velocity = self.state[w].setdefault("velocity", torch.zeros_like(w))
                velocity.mul_(0.9).add_(w.grad, alpha=group["lr"])
                w.sub_(velocity)


def stepped(run, optimizer, until, velocity):
    (weight,) = optimizer.param_groups[0]["params"]
    scheduler = run.scheduler(optimizer, velocity=velocity)
    for step in run.steps(run.loader(range(80))):
        for _ in step:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        scheduler.step()
        if step.number + 1 == until:
            return


def made(state=None):
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Caffe([weight], lr=0.1)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    return optimizer


def velocity_of(optimizer):
    (state,) = optimizer.state.values()
    return state["velocity"].clone()


@pytest.mark.parametrize("before", [True, False])
def test_a_velocity_that_holds_the_learning_rate_moves_with_it_once(before):
    run, optimizer = ElasticRun(RECIPE), made()
    stepped(run, optimizer, 5, "velocity")
    saved, state = optimizer.state_dict(), run.state_dict()
    for _ in range(2):  # a restart that died before its first step is done again
        moved = ElasticRun(RECIPE, state=state, policy=16, rule="linear")
        resumed = made(saved if before else None)
        moved.scheduler(resumed, velocity="velocity")
        if not before:
            resumed.load_state_dict(copy.deepcopy(saved))
        torch.testing.assert_close(velocity_of(resumed), velocity_of(optimizer) * 2, rtol=1e-15, atol=0)
        saved, state = resumed.state_dict(), moved.state_dict()
    again = made(saved)
    stepped(ElasticRun(RECIPE, state=state, policy=16, rule="linear"), again, 6, "velocity")
    torch.testing.assert_close(velocity_of(again), velocity_of(optimizer) * 2 * 0.9 + 0.2, rtol=1e-14, atol=0)
    back = made(again.state_dict())
    ElasticRun(RECIPE, state=state).scheduler(back, velocity="velocity")
    torch.testing.assert_close(velocity_of(back), velocity_of(again) / 2, rtol=1e-15, atol=0)


def test_a_velocity_without_the_learning_rate_stays():
    run, optimizer = ElasticRun(RECIPE), made()
    stepped(run, optimizer, 5, None)
    resumed = made(optimizer.state_dict())
    ElasticRun(RECIPE, state=run.state_dict(), policy=16, rule="linear").scheduler(resumed)
    assert torch.equal(velocity_of(resumed), velocity_of(optimizer))


@pytest.mark.peers
def test_timms_rmsprop_is_known():
    optim = pytest.importorskip("timm.optim.rmsprop_tf", reason="its RMSpropTF holds the learning rate")
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    run, optimizer = ElasticRun(RECIPE), optim.RMSpropTF([weight], lr=0.1, momentum=0.9)
    stepped(run, optimizer, 5, None)
    reference = optim.RMSpropTF([weight], lr=0.1, momentum=0.9)
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ElasticRun(RECIPE, state=run.state_dict(), policy=16, rule="linear").scheduler(reference)
    velocity, moved = (owner.state[weight]["momentum_buffer"] for owner in (optimizer, reference))
    torch.testing.assert_close(moved, velocity * 2, rtol=1e-15, atol=0)


@pytest.mark.parametrize("stand_in", [True, False])
def test_a_stand_in_does_not_count_in_batch_norm(stand_in):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    before = copy.deepcopy(model[1].state_dict())
    micro = Micro(None, 0.0 if stand_in else 1.0, last=True, stand_in=stand_in, equal=True)
    with micro.sync(model):
        loss = model(torch.randn(1 if stand_in else 5, 3)).mean() * micro.weight
        loss.backward()
    assert torch.isfinite(loss)
    assert all(module.training for module in model.modules())
    same = all(torch.equal(value, before[name]) for name, value in model[1].state_dict().items())
    assert same is stand_in
    assert all((parameter.grad == 0).all() == stand_in for parameter in model[0].parameters())


def test_a_stand_in_does_not_count_in_sync_batch_norm(two):
    # 9 samples in micro-batches of 3 on two ranks: two passes and one, the missing one being a stand-in.
    answers = two(elastic.normed)
    for means, counts, expected, gradients in answers:
        assert counts == [6, 3] * 4
        torch.testing.assert_close(means, expected, rtol=0, atol=1e-14)
        assert all(gradients)
    assert torch.equal(answers[0][0], answers[1][0])
