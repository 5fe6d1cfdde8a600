"""Every cause has words and advice, and some test meets it."""

import re
from pathlib import Path

import pytest

from isobatch.diagnosis.causes import Cause, either

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_words_and_advice(cause):
    assert cause.value == cause.name.lower()
    assert cause.text and not cause.text.endswith(".")
    assert cause.advice and cause.advice[0].islower() and not cause.advice.endswith(".")


def test_every_cause_is_met():
    met = {
        name
        for file in (*TESTS.rglob("test_*.py"), TESTS / "guard" / "faults.py")
        if file != Path(__file__)
        for name in re.findall(r"\bCause\.([A-Z_]+)\b", file.read_text(encoding="utf-8"))
    }
    assert len(met) > 20
    unmet = sorted(set(Cause.__members__) - met)
    assert not unmet, f"no test meets {unmet} of python/isobatch/diagnosis/causes.py"


def test_causes_that_look_the_same_are_both_named():
    both = either(Cause.RESUMED.likely(), Cause.ANOTHER_LR.likely("2×"))
    assert both.causes == (Cause.RESUMED, Cause.ANOTHER_LR)
    assert both.text == "a resumed run, or another learning rate (2×)"
    assert both.advice == f"{Cause.RESUMED.advice}; or {Cause.ANOTHER_LR.advice}"
