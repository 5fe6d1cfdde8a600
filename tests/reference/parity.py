"""Equality of a schedule and its peer."""

import warnings

import numpy as np

ULPS = 8


def optimizer(lr):
    """An optimizer with two groups, the second at half the learning rate."""
    import torch

    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (lr, lr / 2)]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)


def stepped(scheduler, steps, group=0):
    """The learning rates of a parameter group under a scheduler stepped as in training."""
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            if rates:
                scheduler.step()
            rates.append(float(scheduler.get_last_lr()[group]))
    return rates


def assert_same(schedule, expected, steps=None, *, ulps=ULPS, single=True):
    """`at` and `values` within some ulp of the peak, and equal once rounded to float32."""
    expected = np.asarray(expected, np.float64)
    steps = np.arange(len(expected)) if steps is None else np.asarray(steps)
    values = schedule.values(steps)
    assert values.dtype == np.float64
    assert [schedule.at(x) for x in steps] == values.tolist()
    ulp = np.spacing(np.abs(expected).max())
    worst = np.abs(values - expected).argmax()
    off = abs(values[worst] - expected[worst]) / ulp
    assert off <= ulps, f"step {steps[worst]}: {values[worst]!r}, the peer {expected[worst]!r}: {off:.1f} ulp"
    if single:
        differ = np.flatnonzero(values.astype(np.float32) != expected.astype(np.float32))
        assert not len(differ), (
            f"step {steps[differ[0]]}: {values[differ[0]]!r}, the peer {expected[differ[0]]!r}"
        )
