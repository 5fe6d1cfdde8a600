"""A training script is asked: started at several splits, unchanged, and compared."""

import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from isobatch.equivalence.result import Same
from isobatch.equivalence.session import same
from isobatch.errors import InputError

LOOP = Path(__file__).with_name("loop.py")
SPLITS = ["2x2x2", "1x4x2"]


def ask(fault: str, splits=SPLITS, **settings) -> Same:
    words = ["--micro", "{micro_batch}", "--accum", "{accumulation}", "--fault"]
    return same([sys.executable, str(LOOP), *words, fault], splits, **settings)


def causes(answer: Same) -> set[str]:
    return {cause.name for split in answer.splits for cause in split.causes}


def test_a_healthy_loop_is_the_same_at_every_split(tmp_path):
    answer = ask("none")
    assert answer.same and bool(answer.require() is None)
    for split in answer.splits:
        assert split.weights == pytest.approx([1.0] * 8, abs=1e-4), split.split
        assert split.difference < 1e-5 and split.samples == 8
    assert "dropout off" in answer.changes
    assert "The same training at 4 splits of a batch of 8" in answer.text
    answer.save(tmp_path / "same.json")
    assert Same.load(tmp_path / "same.json") == answer


def test_a_loss_that_is_not_divided_by_the_accumulation_is_named():
    answer = ask("accumulation")
    assert not answer.same and causes(answer) == {"× accumulation"}
    with pytest.raises(AssertionError, match="× accumulation"):
        answer.require()
    split_result = next(split for split in answer.splits if split.split == "1x4x2")
    assert split_result.weights == pytest.approx([4.0] * 8, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("sum", {"summed loss"}),
        ("same data", {"ranks draw the same samples"}),
        ("no ddp", {"gradients not averaged"}),
        ("alone", {"ranks train alone"}),
        ("batch norm", {"batch norm"}),
        ("zero each pass", {"lost passes"}),
        ("clip each pass", {"gradients clipped on every pass"}),
        ("schedule each pass", {"scheduler counts passes"}),
        ("cosine of passes", {"scheduler counts passes"}),
        ("window", {"short window"}),
    ],
)
def test_a_fault_is_named(fault, names):
    answer = ask(fault)
    assert not answer.same
    assert names <= causes(answer), answer.text


def test_a_run_without_a_learning_rate_is_told_that_nothing_is_trained():
    answer = ask("rate of a finished run", ["1x4x2"])
    assert answer.same is None and "the learning rate is 0 at each of 3 steps" in answer.text
    with pytest.raises(AssertionError, match="Not measured"):
        answer.require()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nan", "the loss of pass 0 is not"),
        ("zero", "no gradient at step 0"),
        ("ignores its split", "2 passes of 4 rows at each split"),
    ],
)
def test_unmeasured_trainings_are_never_the_same(fault, text, tmp_path):
    answer = ask(fault, ["1x4x2"])
    assert answer.same is None and text in next(answer.lines())
    answer.save(tmp_path / "same.json")
    assert Same.load(tmp_path / "same.json").text == answer.text


@pytest.mark.parametrize(
    ("fault", "name"),
    [("decay by ranks", "another optimizer setting"), ("weights by passes", "another update")],
)
def test_faults_without_a_trace_in_gradients_are_named(fault, name):
    assert causes(ask(fault, ["2x2x2"])) == {name}


@pytest.mark.slow
def test_noise_that_a_loop_draws_is_no_difference():
    assert ask("noise").same


def test_a_script_that_dies_is_said_with_its_last_lines():
    with pytest.raises(
        InputError, match="exit code 1 before an optimizer of torch took a step:\n(?s:.*)there is no data"
    ):
        ask("dies", ["1x4x2"])


def test_a_script_that_hangs_is_ended_and_leaves_nothing_running():
    began = time.monotonic()
    with pytest.raises(InputError, match="took no optimizer step within"):
        ask("hangs", ["2x2x2"], limit=20)
    assert time.monotonic() - began < 60
    marker = os.fsencode(LOOP)
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if marker in line and b"hangs" in line]


def test_splits_of_two_batches_are_refused_before_anything_starts():
    with pytest.raises(InputError, match="--split 1x2x2 has 4 samples in a step and 2x2x2 has 8"):
        ask("dies", ["2x2x2", "1x2x2"])
