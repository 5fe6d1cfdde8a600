"""A learning rate off its plan and its diagnosis: no rank, no model."""

import pytest

from isobatch.equivalence import clock
from isobatch.equivalence.laws import Cause

PACE = clock.Pace(accumulation=3, ranks=2, epoch=5)


def ramp(step):
    return 0.1 * step


@pytest.mark.parametrize(
    ("observed", "first", "cause"),
    [
        ([0.0, 0.2, 0.4], 1, Cause.SCHEDULER_PER_PROCESS),
        ([0.0, 0.3, 0.6], 1, Cause.SCHEDULER_PER_MICRO_BATCH),
        ([0.0, 0.5, 1.0], 1, Cause.SCHEDULER_IN_EPOCHS),
        ([0.1, 0.2, 0.3], 0, Cause.SCHEDULER_TOO_EARLY),
        ([0.0, 0.0, 0.0], 1, Cause.SCHEDULER_NEVER),
        ([0.0, 0.1, 0.7], 2, Cause.ANOTHER_LR),
    ],
)
def test_a_learning_rate_names_its_fault(observed, first, cause):
    diagnosis = clock.learning_rate(dict(enumerate(observed)), ramp, peak=1.0, pace=PACE)
    assert (diagnosis[0], diagnosis[1].cause) == (first, cause)


def test_a_scheduler_of_both_kinds_is_named_with_both():
    _, diagnosis = clock.learning_rate({0: 0.0, 1: 0.6}, ramp, peak=1.0, pace=PACE)
    assert diagnosis.causes == (Cause.SCHEDULER_PER_PROCESS, Cause.SCHEDULER_PER_MICRO_BATCH)
