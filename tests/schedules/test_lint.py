"""Schedule.check."""

import pytest

from isobatch import schedules as S
from isobatch.errors import InputError
from isobatch.schedules import ScheduleReason as R


@pytest.mark.parametrize(
    ("schedule", "total", "reasons"),
    [
        (S.cosine(0.1, 100), 100, []),
        (S.warmup(S.cosine(0.1, 90), 10, start=0.01), 100, []),
        (S.warmup(S.cosine(0.1, 90), 10), 100, [R.FIRST_UPDATE_AT_ZERO]),
        (S.warmup(S.cosine(0.1, 90), 10), 6, [R.FIRST_UPDATE_AT_ZERO, R.WARMUP_LONGER_THAN_RUN]),
        (S.torch.CosineAnnealingLR(0.1, 99), 100, [R.REBOUND_PAST_END]),
        (S.torch.CosineAnnealingLR(0.1, 100), 100, [R.REBOUND_PAST_END]),
        (S.torch.CosineAnnealingLR(0.1, 100, quirks=False), 100, []),
        (S.torch.OneCycleLR(0.1, 0.1, total_steps=100), 100, [R.REBOUND_PAST_END]),
        (S.torch.OneCycleLR(0.1, 0.1, total_steps=100, quirks=False), 100, []),
        (S.torch.OneCycleLR(0.1, 0.1, total_steps=100), 150, [R.UNDEFINED_WITHIN_RUN]),
        (S.cosine(0.1, 101), 100, [R.OFF_BY_ONE_END]),
        (S.cosine(0.1, 98), 100, [R.OFF_BY_ONE_END]),
        (S.cosine(0.1, 150), 100, [R.ENDS_ABOVE_MINIMUM]),
        (S.warmup(S.constant(0.1), 0.5, start=0.01), 100, [R.DECAY_SHORTER_THAN_STEP]),
        (S.inverse_sqrt(0.1, 100), 100, []),
        (S.constant(0.1), 100, []),
    ],
)
def test_findings(schedule, total, reasons):
    assert list(schedule.check(total)) == reasons


def test_every_finding_is_documented():
    assert len(R) == 7
    for reason in R:
        assert reason.text and reason.source.startswith("https://") and reason.severity == "caution"
        assert reason == reason.value


def test_a_run_without_an_end():
    assert S.cosine(0.1, 100).check() == ()
    with pytest.raises(InputError, match="total_steps"):
        S.constant(0.1).check()
