"""The page of the census says what its answers say, and no more."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("census_page", ROOT / "bench" / "census" / "page.py")
page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(page)

RECORD = {"package": "transformers", "release": "5.24.0", "builder": "0"}


@pytest.fixture(scope="module")
def records():
    return page.read()


def test_the_page_is_the_one_that_its_answers_make(records):
    assert page.PAGE.read_text(encoding="utf-8") == page.text_of(records), "python bench/census.py page"
    assert page.HEADS.read_text(encoding="utf-8") == page.heads_of(records), "python bench/census.py page"


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


def test_forty_heads_asked_the_long_way_have_the_answers_of_the_census(records):
    known = {record["head"]: record for record in records}
    lines = page.ANSWERS.with_name("census_long.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| ")][1:]
    assert len(rows) >= 40
    for _, head, census, _, _, alike, *_ in rows:
        assert census == page.cell([known[head]["cause"], known[head]["ranks"]]), head
        assert alike == "yes" or (alike.startswith("no: ") and alike != "no: not known"), head


def test_the_answers_stay_small():
    assert page.ANSWERS.stat().st_size < 500_000


def answer(head, cause="", ranks="", **further):
    verdict = "not the same" if cause or ranks else "the same"
    return RECORD | {
        "head": head,
        "asked": "run",
        "verdict": verdict,
        "cause": cause,
        "ranks": ranks,
        **further,
    }


def test_a_head_is_counted_under_its_verdict_and_its_cause():
    known, unknown = "mean of passes' means", "x"
    unbuilt = RECORD | {"head": "C", "asked": "not built", "why": "rows: no | loss"}
    heads = [answer("A"), answer("B", known, "y"), answer("D", ranks="z"), answer("E", unknown), unbuilt]
    text = page.text_of(heads)
    assert "| the same | 1 | 0 |" in text and "| not the same | 3 | 0 |" in text
    assert "not built or not asked, so not judged: 1" in text
    assert f"| {known} | 1 | 0 |" in text and f"| {page.OTHERS} | 2 | 0 |" in text
    assert "█" * 12 + "▒" * 36 + "·" * 12 in text
    rows = page.heads_of(heads).splitlines()[-5:]
    assert rows[:3] == ["A,run,the same", f"B,run,{known} / y", "C,not built,no | loss"]
    assert rows[3:] == ["D,run,the same / z", "E,run,x / the same"]


def test_a_kind_of_ten_heads_has_a_row():
    heads = [answer(f"{number}ForCTC", "x" * (number > 2)) for number in range(9)]
    assert "ForCTC" not in page.text_of(heads)
    text = page.text_of([*heads, answer("9ForCTC"), *(answer(f"{name}Model+router") for name in "ABC")])
    assert "| ForCTC | 4 | 6 | x |" in text and "Model+router" not in text


def test_heads_that_ran_tell_what_one_code_is_worth():
    heads = [
        answer("A", code="1"),
        answer("B", code="1"),
        answer("C", "x", "x", code="1"),
        answer("D", code="2"),
    ]
    assert page.compare_codes(heads) == (2, [("A", "C")])
    assert "Of 2 pairs" in page.text_of(heads) and "1 have one answer (not: 1 with A)" in page.text_of(heads)


def test_weights_that_are_not_known_are_with_the_cause_that_equal_rows_name():
    groups = page.group_by_cause([answer("A", "x", "y"), answer("B", "x; weights not known", "y")])
    assert [record["head"] for record in groups["x"]] == ["A", "B"]


def test_the_answers_are_json_lines():
    for line in page.ANSWERS.read_text(encoding="utf-8").splitlines():
        assert isinstance(json.loads(line), dict)
