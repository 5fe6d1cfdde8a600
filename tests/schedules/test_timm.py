"""isobatch.schedules.timm against the installed timm."""

import numpy as np
import pytest

from isobatch.schedules import timm as ours
from reference.parity import assert_same

torch = pytest.importorskip("torch", reason="compares with timm, which steps torch optimizers")
pytest.importorskip("timm", reason="compares with timm")
pytestmark = pytest.mark.peers

WARM = {"warmup_t": 12, "warmup_lr_init": 1e-4}
TWICE = {"cycle_limit": 2}
POWERS = {"decay_fn": "power", "decay_power": 2.0, "stable_fn": "power", "stable_power": 0.8}
CASES = [
    ("CosineLRScheduler", {"t_initial": 100}),
    ("CosineLRScheduler", {"t_initial": 100, "lr_min": 1e-3, **WARM}),
    ("CosineLRScheduler", {"t_initial": 100, "lr_min": 1e-3, "warmup_prefix": True, **WARM}),
    ("CosineLRScheduler", {"t_initial": 30, "cycle_limit": 3, "cycle_decay": 0.5, "k_decay": 1.5}),
    ("CosineLRScheduler", {"t_initial": 20, "cycle_limit": 2, "cycle_mul": 1.5, "lr_min": 1e-3, **WARM}),
    ("PolyLRScheduler", {"t_initial": 90}),
    ("PolyLRScheduler", {"t_initial": 30, "power": 2.0, "k_decay": 0.7, **TWICE, "cycle_mul": 2.0, **WARM}),
    ("TanhLRScheduler", {"t_initial": 90, **WARM}),
    ("TanhLRScheduler", {"t_initial": 45, "lb": -5, "ub": 2, **TWICE, "warmup_prefix": True, **WARM}),
    ("StepLRScheduler", {"decay_t": 2.4, "decay_rate": 0.97}),
    ("StepLRScheduler", {"decay_t": 1.1, "decay_rate": 0.9, **WARM}),
    ("StepLRScheduler", {"decay_t": 30, "decay_rate": 0.1, "warmup_prefix": False, **WARM}),
    ("MultiStepLRScheduler", {"decay_t": [30, 60], "decay_rate": 0.1}),
    ("MultiStepLRScheduler", {"decay_t": [30, 60], "decay_rate": 0.1, "warmup_prefix": False, **WARM}),
    ("WSDLRScheduler", {"t_initial": 100, "decay_t": 20}),
    ("WSDLRScheduler", {"t_initial": 80, "decay_t": 80, "decay_fn": "cosine", "lr_min": 1e-3, **WARM}),
    ("WSDLRScheduler", {"t_initial": 80, "decay_t": 30, "decay_fn": "exp", "lr_min": 1e-3, **WARM}),
    ("WSDLRScheduler", {"t_initial": 80, "decay_t": 30, "decay_fn": "linear", "stable_fn": "rsqrt", **WARM}),
    ("WSDLRScheduler", {"t_initial": 80, "decay_t": 30, **POWERS, "stable_timescale": 9, "lr_min": 0.02}),
]


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("lr", [0.1, 3e-3])
def test_has_the_values_of_the_class(name, arguments, lr):
    from timm.scheduler import cosine_lr, multistep_lr, poly_lr, step_lr, tanh_lr, wsd_lr

    modules = (cosine_lr, multistep_lr, poly_lr, step_lr, tanh_lr, wsd_lr)
    cls = next(vars(module)[name] for module in modules if name in vars(module))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = cls(optimizer, t_in_epochs=False, **arguments)
    expected = [scheduler._get_lr(t)[0] for t in range(130)]
    assert_same(getattr(ours, name)(lr, **arguments), expected)


def test_a_milestone_can_act_on_its_step():
    schedule = ours.MultiStepLRScheduler(0.1, [30], decay_rate=0.5, quirks=False)
    assert np.array_equal(schedule.values([29, 30]), [0.1, 0.05])


def test_restarts_far_out_fall_on_their_steps():
    schedule = ours.CosineLRScheduler(1.0, t_initial=3, cycle_mul=2, cycle_limit=40)
    assert all(schedule.at(3 * (2**cycle - 1)) == 1.0 for cycle in range(40))
    assert schedule.at(3 * (2**40 - 1)) == 0
