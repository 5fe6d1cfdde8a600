"""The end of an epoch is looked at by itself, where its last step has fewer samples."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from isobatch.equivalence.result import Same
from isobatch.equivalence.session import same

LOOP = [sys.executable, str(Path(__file__).with_name("epoch_loop.py"))]
BRACES = ["--micro", "{micro_batch}", "--accum", "{accumulation}"]
slow = pytest.mark.slow


def ask(*words: str) -> tuple[Same, str]:
    """Asks at one split, and returns the text of the row of the epoch's end."""
    answer = same([*LOOP, *BRACES, *words], ["1x4x2", "1x2x4"], steps=2)
    row = answer.measured[-1]
    assert row.id == "end" and (row.text in answer.text or not answer.same), answer.text
    return answer, row.text


def ask_trainer(*words: str) -> Same:
    pytest.importorskip("transformers")
    return same([*LOOP, "--by", "Trainer", *words])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "step 5, of 4 samples, is the same as in one pass"),
        (("--rows", "48"), "48 rows are whole steps of 8"),
        pytest.param(("--rows", "12"), "step 1, one of those compared", marks=slow),
        pytest.param(("--end", "dropped"), "its last 4 samples take no step of their own", marks=slow),
        pytest.param(("--end", "cleared"), "its last 4 samples are left out", marks=slow),
        pytest.param(("--streamed",), "step 5, of 4 samples, is the same", marks=slow),
    ],
)
def test_a_right_end_is_the_same_and_said(words, text):
    answer, seen = ask(*words)
    assert answer.same and text in seen, answer.text


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("--end", "divided by all"), "short window"),
        pytest.param(("--end", "divided by all", "--streamed"), "short window", marks=slow),
        pytest.param(("--end", "kept"), "another accumulation", marks=slow),
        pytest.param(("--end", "kept", "--streamed"), "another accumulation", marks=slow),
    ],
)
def test_a_wrong_end_is_named_with_its_step(words, name):
    answer, _ = ask(*words)
    assert answer.same is False and answer.cause.name == name, answer.text
    assert [split.step for split in answer.splits if not split.same] == [5]


def test_an_epoch_that_takes_too_long_is_not_looked_at():
    answer, text = ask("--rows", "8004")
    assert answer.same and "it comes after 1,000 steps" in text, answer.text
    assert f"the end of an epoch ({text})" in answer.text


def test_nothing_is_written_that_a_run_of_a_few_steps_does_not_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer, text = ask("--saves")
    assert answer.same and "none was seen in 4 steps, where the script writes a file, or fails" in text
    assert not [*tmp_path.iterdir()]


@slow
def test_the_trainers_end_is_the_same_and_a_wrong_one_is_named():
    assert ask_trainer().same
    wrong = ask_trainer("--end", "divided by all")
    assert wrong.same is False and wrong.cause.name == "short window", wrong.text


@slow
def test_the_trainer_keeps_the_last_passes_of_a_stream():
    """transformers 5.24 takes no step at the end of a stream: its gradient is in the next epoch's first."""
    answer = ask_trainer("--streamed")
    assert answer.same is False and answer.cause.name == "another accumulation", answer.text
