"""The table of laws: every row has words, a remedy and a case, and a new row is all that a law takes."""

import importlib.util
import re
from pathlib import Path

import pytest

from isobatch.equivalence import laws
from isobatch.equivalence.laws import Cause, either

TESTS = Path(__file__).parent.parent
DOCS = TESTS.parent / "docs"


@pytest.mark.parametrize("cause", Cause)
def test_every_law_has_words_and_remedies(cause):
    assert cause.value == cause.name.lower()
    assert cause.text and not cause.text.endswith(".")
    for remedy in (cause.remedy, *cause.trainers.values()):
        assert (remedy.text and not remedy.text[0].isupper()) or remedy.text.startswith("DDP")
        assert not remedy.text.endswith(".")
        assert not remedy.page or (DOCS / remedy.page.partition("#")[0]).exists()


def test_every_law_is_met_by_a_test():
    """By its name, by its id, or by the member of any of its names."""
    texts = [
        file.read_text(encoding="utf-8")
        for file in (*TESTS.rglob("test_*.py"), TESTS / "guard" / "faults.py")
        if file != Path(__file__)
    ]
    met = {name for text in texts for name in re.findall(r"\bCause\.([A-Z_]+)\b", text)}
    unmet = [
        cause.value
        for cause in Cause
        if not met & {name for name, row in Cause.__members__.items() if row is cause}
        and not any(f'"{name}"' in text for name in (cause.text, cause.value) for text in texts)
    ]
    assert not unmet, f"no test meets {unmet} of python/isobatch/equivalence/laws.py"


def test_two_laws_have_no_name_in_common():
    assert len({cause.text for cause in Cause}) == len(Cause)


def test_causes_that_look_the_same_are_both_named():
    both = either(Cause.RESUMED.likely(), Cause.ANOTHER_LR.likely("2×"))
    assert both.causes == (Cause.RESUMED, Cause.ANOTHER_LR)
    assert both.text == "a resumed run, or another learning rate (2×)"
    assert both.advice == f"{Cause.RESUMED.advice}; or {Cause.ANOTHER_LR.advice}"


def test_a_trainer_has_its_remedy_whoever_asks():
    asked_by_guard = Cause.NOT_DIVIDED.likely().advise("accelerate")
    asked_by_same = laws.advise(laws.break_of("not_divided", "4 ×"), "accelerate").remedy
    assert asked_by_guard == asked_by_same and "accelerator.accumulate" in asked_by_same


def test_ids_of_older_reports_are_read():
    assert Cause("other_update") is Cause.ANOTHER_UPDATE and Cause("ranks_differ") is Cause.NEVER_AVERAGED
    assert Cause("resume_rate") is Cause.ANOTHER_LR and Cause("resume_state") is Cause.NEW_STATE
    with pytest.raises(ValueError, match="no such law"):
        Cause("no such law")


def test_a_new_law_is_one_row(tmp_path):
    """A copy with a row more names, advises and scales by it, for each asker."""
    row = """
    CUBED = ("cubed", "× ranks³", "take the root", Scale("× ranks³", ranks=3), {"trl": Remedy("pin TRL")})
"""
    text = Path(laws.__file__).read_text(encoding="utf-8")
    marker = "    # Samples that weigh unlike."
    copy = tmp_path / "laws.py"
    copy.write_text(text.replace(marker, row + marker), encoding="utf-8")
    specification = importlib.util.spec_from_file_location("isobatch_laws_copy", copy)
    planted = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(planted)
    assert planted.break_of("cubed", "8 ×").name == planted.Cause.CUBED.likely().text == "× ranks³"
    assert planted.advise(planted.break_of("cubed", "8 ×"), "trl").remedy == "pin TRL"
    assert planted.SCALES["cubed"].size(laws.Split(2, 2, 2)) == 8
    assert len(planted.Cause) == len(Cause) + 1
