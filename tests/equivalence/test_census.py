"""The page of the census says what its answers say, and no more."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("census_page", ROOT / "bench" / "census" / "page.py")
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)

RECORD = {"package": "transformers", "release": "5.24.0", "builder": "0", "weights": {}}


@pytest.fixture(scope="module")
def records():
    return page.read()


def test_the_page_is_the_one_that_its_answers_make(records):
    assert page.PAGE.read_text(encoding="utf-8") == page.text_of(records), "python bench/census.py page"


def test_each_head_has_one_answer_with_its_release_and_builder(records):
    assert len({record["head"] for record in records}) == len(records)
    for record in records:
        assert record["package"] and record["release"] and record["builder"]
        assert record["asked"] in ("run", "same code", "not built")
        if record["asked"] == "not built":
            assert record["why"] and "verdict" not in record
        else:
            is_same = not record["cause"] and record["ranks"] in ("", "not asked")
            assert record["verdict"] == ("the same" if is_same else "not the same")


def test_same_code_names_a_head_that_was_run_and_agrees(records):
    run = {record["head"]: record for record in records if record["asked"] == "run"}
    for record in records:
        if record["asked"] == "same code":
            model = run[record["as"]]
            assert [record[name] for name in ("verdict", "cause", "ranks")] == [
                model[name] for name in ("verdict", "cause", "ranks")
            ]


def test_the_answers_stay_small():
    assert page.ANSWERS.stat().st_size < 500_000


def test_a_head_is_counted_under_its_verdict_and_its_cause():
    text = page.text_of(
        [
            RECORD | {"head": "A", "asked": "run", "verdict": "the same", "cause": "", "ranks": ""},
            RECORD | {"head": "B", "asked": "run", "verdict": "not the same", "cause": "x", "ranks": "y"},
            RECORD | {"head": "C", "asked": "not built", "why": "no | loss"},
        ]
    )
    assert "| the same at every split | 1 |" in text and "| not the same | 1 |" in text
    assert "| not built, so not judged | 1 |" in text and "| C | transformers | no / loss |" in text
    assert "| x | 1 | 0 |" in text and "█" * 20 + "▒" * 20 + "·" * 20 in text


def test_the_answers_are_json_lines():
    for line in page.ANSWERS.read_text(encoding="utf-8").splitlines():
        assert isinstance(json.loads(line), dict)
