"""from_torch: live schedulers, read."""

import warnings

import numpy as np
import pytest

from isobatch import schedules as S
from isobatch.errors import InputError
from reference.parity import optimizer, stepped

torch = pytest.importorskip("torch", reason="reads torch schedulers")
peer = torch.optim.lr_scheduler
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


BUILDS = [
    lambda o: peer.StepLR(o, 7, 0.5),
    lambda o: peer.MultiStepLR(o, [3, 3, 9]),
    lambda o: peer.ConstantLR(o),
    lambda o: peer.LinearLR(o),
    lambda o: peer.ExponentialLR(o, 0.9),
    lambda o: peer.PolynomialLR(o, 30, 2.0),
    lambda o: peer.CosineAnnealingLR(o, 30, 0.01),
    lambda o: peer.CosineAnnealingWarmRestarts(o, 7, 2),
    lambda o: peer.OneCycleLR(o, [0.5, 0.3], 50, pct_start=0.37),
    lambda o: peer.OneCycleLR(o, [0.5, 0.3], 50, three_phase=True, anneal_strategy="linear", div_factor=7),
    lambda o: peer.CyclicLR(o, [0.01, 0.02], 0.3, 7, 9, mode="triangular2"),
    lambda o: peer.SequentialLR(o, [peer.LinearLR(o), peer.ExponentialLR(o, 0.9)], [10]),
    lambda o: peer.ChainedScheduler([peer.ConstantLR(o, 0.5, 9), peer.ExponentialLR(o, 0.9)], o),
]


@pytest.mark.parametrize("build", BUILDS)
def test_torch_schedulers(build):
    scheduler = build(optimizer(0.1))
    schedule = S.from_torch(scheduler)
    assert np.abs(schedule.values(range(45)) - stepped(scheduler, 45)).max() < 1e-15
    assert S.from_torch(scheduler) == schedule
    scheduler = build(optimizer(0.1))
    second = S.from_torch(scheduler, group=1)
    assert np.abs(second.values(range(45)) - stepped(scheduler, 45, group=1)).max() < 1e-15


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("constant", {}),
        ("constant_with_warmup", {}),
        ("linear", {}),
        ("cosine", {"num_cycles": 1.5}),
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("polynomial", {"power": 2.0}),
        ("inverse_sqrt", {}),
        ("cosine_with_min_lr", {"min_lr": 0.01}),
        ("cosine_warmup_with_min_lr", {"min_lr": 0.01, "warmup_lr_rate": 0.1}),
        ("warmup_stable_decay", {"num_decay_steps": 10}),
    ],
)
def test_transformers_schedulers(name, kwargs):
    library = pytest.importorskip("transformers", reason="reads transformers schedulers")
    scheduler = library.get_scheduler(name, optimizer(0.1), 5, 40, scheduler_specific_kwargs=kwargs)
    schedule = S.from_torch(scheduler)
    assert np.abs(schedule.values(range(45)) - stepped(scheduler, 45)).max() < 1e-15


def test_unreadable_schedulers():
    for scheduler in (
        peer.ReduceLROnPlateau(optimizer(0.1)),
        peer.LambdaLR(optimizer(0.1), lambda x: 1.0),
        peer.MultiplicativeLR(optimizer(0.1), lambda x: 1.0),
        peer.CyclicLR(optimizer(0.1), 0.01, 0.1, scale_fn=lambda x: 1.0),
    ):
        with warnings.catch_warnings(), pytest.raises(InputError, match="table"):
            S.from_torch(scheduler)
    opt = optimizer(0.1)
    chain = peer.ChainedScheduler([peer.CosineAnnealingLR(opt, 9, eta_min=0.01), peer.StepLR(opt, 3)], opt)
    with pytest.raises(InputError, match="chain of factors"):
        S.from_torch(chain)
    with pytest.raises(InputError, match="groups"):
        S.from_torch(peer.StepLR(optimizer(0.1), 3), group=2)
