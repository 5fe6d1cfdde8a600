"""Wrong figures and their diagnosis: no rank, no model."""

import pytest

from isobatch.diagnosis import faults
from isobatch.diagnosis.causes import Cause

SHAPE = {"micro_batch": 8, "accumulation": 3, "ranks": 2}


@pytest.mark.parametrize(
    ("ratio", "causes"),
    [
        (8, [Cause.SUMMED_LOSS]),
        (3, [Cause.NOT_DIVIDED]),
        (2, [Cause.SUMMED_OVER_RANKS]),
        (24, [Cause.SUMMED_LOSS, Cause.NOT_DIVIDED]),
        (48, [Cause.SUMMED_LOSS, Cause.SUMMED_OVER_RANKS, Cause.NOT_DIVIDED]),
        (1 / 2, [Cause.DIVIDED_BY_RANKS]),
        (1 / 3, [Cause.DIVIDED_TWICE]),
    ],
)
def test_a_factor_names_its_faults(ratio, causes):
    diagnosis = faults.gradient(ratio, **SHAPE)
    assert list(diagnosis.causes) == causes
    assert diagnosis.text.endswith(f"({ratio:.4g}×)")


def test_factors_that_coincide_are_both_named():
    diagnosis = faults.gradient(2, micro_batch=8, accumulation=2, ranks=2)
    assert set(diagnosis.causes) == {Cause.NOT_DIVIDED, Cause.SUMMED_OVER_RANKS}
    assert ", or " in diagnosis.text


def test_a_factor_of_nothing_known_has_no_diagnosis():
    assert faults.gradient(5.5, **SHAPE) is None


PACE = faults.Pace(accumulation=3, ranks=2, epoch=5)


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
    diagnosis = faults.learning_rate(dict(enumerate(observed)), ramp, peak=1.0, pace=PACE)
    assert (diagnosis[0], diagnosis[1].cause) == (first, cause)


def test_a_scheduler_of_both_kinds_is_named_with_both():
    _, diagnosis = faults.learning_rate({0: 0.0, 1: 0.6}, ramp, peak=1.0, pace=PACE)
    assert diagnosis.causes == (Cause.SCHEDULER_PER_PROCESS, Cause.SCHEDULER_PER_MICRO_BATCH)


@pytest.mark.parametrize(
    ("served", "unique", "cause"),
    [
        (90, 90, Cause.SAMPLES_DROPPED),
        (110, 100, Cause.SAMPLES_PADDED),
        (100, 80, Cause.SAMPLES_REPEATED),
        (100, 100, Cause.ANOTHER_SAMPLES),
    ],
)
def test_an_epoch_names_its_fault(served, unique, cause):
    diagnosis = faults.epoch(
        served=served, planned=100, unique=unique, dataset=100, per_rank_all=False, drop_last=False, ranks=2
    )
    assert diagnosis.cause is cause
