"""A script is compared with the one that it was before: by its rows, in one pass, and at its own split."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from isobatch.equivalence.order.answer import OrderedSame
from isobatch.equivalence.rewritten import _of_batch
from isobatch.equivalence.session import same
from isobatch.equivalence.split import Split
from isobatch.errors import InputError
from isobatch.report import pages

LOOP = str(Path(__file__).with_name("ported_loop.py"))
OLD = [sys.executable, LOOP]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def ask(kind: str, *words: str, ranks: bool = False, old: list[str] = OLD) -> OrderedSame:
    command = [*(TORCHRUN if ranks else [sys.executable]), LOOP, "--kind", kind, *words]
    answer = same(command, against_command=old)
    assert isinstance(answer, OrderedSame) and answer.kind == "command"
    return answer


ACCUMULATED = ("--batch_size", "2", "--accum_steps", "2")


def test_a_rewritten_loop_with_a_loss_of_its_own_names_and_first_weights_is_the_same(tmp_path):
    answer = ask("seed", *ACCUMULATED)
    assert answer.same, answer.text
    assert all(row.holds for row in answer.measured if row.id in ("inputs", "weights", "split"))
    assert any(change.startswith("first weights as") for change in answer.changes)
    assert any(change.startswith("rows as") for change in answer.changes)
    assert "Not compared: rows and weights that were given" in answer.text
    answer.save(tmp_path / "same.json")
    assert OrderedSame.load(tmp_path / "same.json") == answer
    pages.write(answer, tmp_path / "same.html")
    assert "split as typed" in (tmp_path / "same.html").read_text()


def test_passes_that_are_not_divided_are_named_at_the_split_of_the_new_script():
    answer = ask("passes", *ACCUMULATED)
    assert answer.same is False and [cause.id for cause in answer.causes] == ["not_divided"], answer.text
    assert "--accum_steps 2 at 1x2x2, step 0: the gradient is 2 ×" in answer.causes[0].text
    row = answer.measured[-1]
    assert row.values == ["one pass (1x1x4)", "× accumulation (1x2x2)"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "row", "text"),
    [
        ("sum", "loss", "is × 4 (a sum over the pass's 4 samples, and not their mean)"),
        ("no clip", "clip", "to 1.0"),
        ("wider", "parameters", "(24, 5)"),
        ("narrow", "weights", "root mean square"),
        ("data", "inputs", "input of pass 0"),
        ("fewer rows", "rows", "64 rows → 48 rows"),
    ],
)
def test_the_first_difference_in_one_pass_is_named(kind, row, text):
    answer = ask(kind, *ACCUMULATED)
    assert answer.same is False and answer.cause.id == f"command_{row}" and text in answer.text, answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "law"), [("seed", None), ("rate", "another_lr"), ("clip", "clipped_each_pass")]
)
def test_a_port_to_ranks_is_compared_at_its_split(kind, law):
    answer = ask(kind, "--batch_size", "1", "--accum_steps", "2", ranks=True)
    assert answer.same is (law is None), answer.text
    assert [cause.id for cause in answer.causes] == ([law] if law else [])


@pytest.mark.slow
def test_one_fault_on_both_sides_is_named_and_not_judged():
    answer = ask("passes", *ACCUMULATED, old=[*OLD, "--kind", "passes", *ACCUMULATED])
    assert answer.same is None and "both differ from one pass in the same way (× accumulation" in answer.text


@pytest.mark.slow
def test_another_batch_is_another_training():
    answer = ask("seed", "--batch_size", "4", "--accum_steps", "2")
    row = next(row for row in answer.measured if row.id == "rows")
    assert answer.same is False and row.values == ["1 pass of 4 rows", "1 pass of 8 rows"], answer.text


def test_a_command_that_cannot_be_run_is_named():
    with pytest.raises(InputError, match=r"-c import torch: .*ended with exit code 0"):
        ask("seed", *ACCUMULATED, old=[sys.executable, "-c", "import torch"])
    with pytest.raises(InputError, match="no-such-python: command not found"):
        same(OLD, against_command="no-such-python old.py")
    with pytest.raises(InputError, match="--against-command is a question of its own"):
        same(OLD, against_command="python old.py", against="torch==2.0")


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"across": "tp=2", "against": "torch==2.0"}, "--across and --against are two questions"),
        ({"resume": "x {checkpoint}", "bisect": "1..2"}, "--resume and --against are two questions"),
        ({"at_step": 3}, "--at-step is of a restart: it needs --resume"),
        ({"resume_ranks": 2, "against": "torch==2.0"}, "--resume-ranks is of a restart"),
        ({"split": "1x2x2,2x1x2", "against": "torch==2.0"}, "several --split are compared with each other"),
        ({"split": ["1x2x2", "2x1x2"], "against_command": OLD}, "several --split are compared"),
    ],
)
def test_no_question_is_left_out_in_silence(question, says):
    with pytest.raises(InputError, match=says):
        same(OLD, **question)


def test_a_split_takes_another_batch_with_the_ranks_and_passes_that_divide_it():
    assert [str(_of_batch(Split.parse(text), 12)) for text in ("2x4x2", "5x1x1", "1x1x8")] == [
        "2x3x2",
        "4x1x3",
        "1x1x12",
    ]
