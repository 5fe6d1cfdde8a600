"""isobatch.schedules.torch against the installed torch."""

import warnings

import numpy as np
import pytest

from isobatch import schedules
from isobatch.errors import InputError
from reference.parity import assert_same, optimizer, stepped

torch = pytest.importorskip("torch", reason="compares with torch")
peer = torch.optim.lr_scheduler
constructors = schedules.torch
pytestmark = pytest.mark.peers

ENDS = {"base_lr": 0.01, "max_lr": 0.3}
CASES = [
    ("StepLR", {"step_size": 7, "gamma": 0.3}),
    ("StepLR", {"step_size": 1, "gamma": 0.97}),
    ("MultiStepLR", {"milestones": [3, 20, 20, 50], "gamma": 0.2}),
    ("MultiStepLR", {"milestones": [50, 3, 20]}),
    ("ConstantLR", {}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 30}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.01, "end_factor": 0.5, "total_iters": 77}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.0, "total_iters": 60}),
    ("ExponentialLR", {"gamma": 0.95}),
    ("ExponentialLR", {"gamma": 1.02}),
    ("PolynomialLR", {"total_iters": 90, "power": 1.0}),
    ("PolynomialLR", {"total_iters": 70, "power": 0.5}),
    ("PolynomialLR", {"total_iters": 70, "power": 3.0}),
    ("CosineAnnealingLR", {"T_max": 100}),
    ("CosineAnnealingLR", {"T_max": 33, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 10}),
    ("CosineAnnealingWarmRestarts", {"T_0": 7, "T_mult": 2, "eta_min": 0.001}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 120}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 119, "pct_start": 0.37, "anneal_strategy": "linear"}),
    ("OneCycleLR", {"max_lr": 0.5, "epochs": 4, "steps_per_epoch": 30, "three_phase": True}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 119, "pct_start": 0.4, "three_phase": True}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 119, "pct_start": 0.0}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 119, "pct_start": 1.0}),
    ("CyclicLR", {**ENDS, "step_size_up": 7}),
    ("CyclicLR", {**ENDS, "step_size_up": 4, "step_size_down": 11, "mode": "triangular2"}),
    ("CyclicLR", {**ENDS, "step_size_up": 5, "mode": "exp_range", "gamma": 0.98}),
]


def closed(scheduler, steps):
    """The values of the class's own closed form, where it has one."""
    values = []
    for x in steps:
        scheduler.last_epoch = int(x)
        values.append(scheduler._get_closed_form_lr()[0])
    return values


@pytest.mark.parametrize(("name", "arguments"), CASES)
@pytest.mark.parametrize("lr", [0.1, 3e-4])
def test_has_the_values_of_the_class(name, arguments, lr):
    schedule = getattr(constructors, name)(lr, **arguments)
    scheduler = getattr(peer, name)(optimizer(lr), **arguments)
    if hasattr(scheduler, "_get_closed_form_lr"):
        assert_same(schedule, closed(scheduler, range(130)))
        drifted = stepped(getattr(peer, name)(optimizer(lr), **arguments), 130)
        peak = max(drifted)
        # At an exact zero the recursion divides what rounding left.
        assert np.abs(schedule.values(range(130)) - drifted).max() <= 1e-13 * peak
    else:
        assert_same(schedule, stepped(scheduler, 119))


@pytest.mark.parametrize("name", ["ConstantLR", "LinearLR", "PolynomialLR"])
def test_no_iterations(name):
    """The closed forms divide by 0; stepped, the classes stay where they begin."""
    assert_same(
        getattr(constructors, name)(0.1, total_iters=0),
        stepped(getattr(peer, name)(optimizer(0.1), total_iters=0), 9),
    )


def test_one_cycle_rebounds_at_its_total_and_raises_past_it():
    schedule = constructors.OneCycleLR(0.1, max_lr=1.0, total_steps=20)
    assert_same(schedule, stepped(peer.OneCycleLR(optimizer(0.1), max_lr=1.0, total_steps=20), 21))
    assert schedule.at(20) > schedule.at(19)
    with pytest.raises(InputError, match="where the schedule ends"):
        schedule.at(21)
    with pytest.raises(InputError, match="where the schedule ends"):
        schedule.values([3, 21])
    mended = constructors.OneCycleLR(0.1, max_lr=1.0, total_steps=20, quirks=False)
    assert mended.at(20) == mended.at(1000) == mended.at(19)


def test_fractional_restarts():
    schedule = constructors.CosineAnnealingWarmRestarts(0.1, T_0=10, T_mult=3)
    scheduler = peer.CosineAnnealingWarmRestarts(optimizer(0.1), T_0=10, T_mult=3)
    steps = np.arange(0, 38, 0.25)
    expected = []
    for x in steps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler.step(float(x))
        expected.append(scheduler.get_last_lr()[0])
    assert_same(schedule, expected, steps)


def test_restarts_far_out_fall_on_their_steps():
    schedule = constructors.CosineAnnealingWarmRestarts(0.1, T_0=10, T_mult=3)
    for cycle in range(1, 25):
        start = 10 * (3**cycle - 1) // 2
        assert schedule.at(start) == 0.1
        assert schedule.at(start - 1) < 0.01


def test_sequential_and_chained():
    def build(library, first):
        return [
            library.LinearLR(first, start_factor=0.1, total_iters=10),
            library.CosineAnnealingLR(first, T_max=40),
            library.StepLR(first, step_size=5, gamma=0.5),
        ]

    schedule = build(constructors, 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = optimizer(0.3)
        expected = stepped(peer.SequentialLR(opt, build(peer, opt), milestones=[10, 40]), 70)
        values = constructors.SequentialLR(0.3, schedule, milestones=[10, 40]).values(range(70))
        assert np.abs(values - expected).max() < 1e-14
        opt = optimizer(0.3)
        expected = stepped(peer.ChainedScheduler(build(peer, opt), opt), 35)
        values = constructors.ChainedScheduler(0.3, schedule).values(range(35))
        assert np.abs(values - expected).max() < 1e-14


def test_a_million_steps_do_not_drift():
    steps, arguments = np.arange(0, 1_000_001, 997), {"T_max": 1_000_000, "eta_min": 1e-4}
    scheduler = peer.CosineAnnealingLR(optimizer(0.1), **arguments)
    assert_same(constructors.CosineAnnealingLR(0.1, **arguments), closed(scheduler, steps), steps)
