"""What it means that a schedule has its peer's values."""

import numpy as np

ULPS = 8


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
