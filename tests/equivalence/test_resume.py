"""A script is killed after its checkpoint and started again: what it takes up, and what it does not."""

import html
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("torch")

from equivalence.test_order import run
from isobatch.equivalence.order.answer import OrderedSame
from isobatch.equivalence.order.pair import Pair
from isobatch.equivalence.restarts.checks import compare_samples
from isobatch.equivalence.restarts.starts import Checkpoint, choose_checkpoints
from isobatch.equivalence.session import same
from isobatch.errors import InputError
from isobatch.report import pages

LOOP = Path(__file__).with_name("resumed_loop.py")


@pytest.fixture
def ask(tmp_path, monkeypatch):
    shutil.copy(LOOP, tmp_path / "loop.py")
    monkeypatch.chdir(tmp_path)

    def run(fault: str, **settings) -> OrderedSame:
        answer = same(
            [sys.executable, "loop.py", "--fault", fault], resume="--resume {checkpoint}", **settings
        )
        assert isinstance(answer, OrderedSame)
        return answer

    return run


def test_a_right_restart_is_the_same_in_mid_epoch_and_at_an_epochs_end(ask, tmp_path):
    (tmp_path / "out").mkdir()  # of an earlier run: nothing is written into it
    (tmp_path / "out" / "step-3.pt").write_text("the user's own")
    answer = ask("none")
    assert answer.same and not answer.causes, answer.text
    assert [start.name for start in answer.starts] == [
        "after step 1, in mid-epoch",
        "after step 6, at the end of an epoch",
    ]
    assert all(row.holds for row in answer.measured), answer.text
    assert (tmp_path / "out" / "step-3.pt").read_text() == "the user's own"
    answer.save(tmp_path / "same.json")
    assert OrderedSame.load(tmp_path / "same.json") == answer
    pages.write(answer, tmp_path / "same.html")
    page = (tmp_path / "same.html").read_text()
    assert "after step 6, at the end of an epoch" in page and "The same training" in page


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("optimizer", {"optimizer's state not restored", "another learning rate"}),
        *(
            pytest.param(fault, names, marks=pytest.mark.slow)
            for fault, names in (
                ("weights", {"weights not restored"}),
                ("schedule", {"another learning rate"}),
                ("epoch anew", {"the epoch starts anew"}),
                ("epoch skipped", {"samples are skipped"}),
                ("one skipped", {"samples are skipped"}),
                ("one repeated", {"samples are repeated"}),
                ("seed", {"another order of the samples"}),
                ("random", {"random states not restored"}),
                ("set_epoch", {"another order of the samples"}),
                ("averaged", {"a state beside the optimizer's not restored"}),
                ("loss", {"another loss"}),
                ("gradient", {"another gradient"}),
                ("ignored", {"starts from the beginning"}),
                ("finished", {"no step after the restart"}),
            )
        ),
    ],
)
def test_a_fault_of_a_restart_is_named(ask, fault, names):
    answer = ask(fault, at_step=3, steps=9)
    assert answer.same is False and {cause.name for cause in answer.causes} == names, answer.text
    with pytest.raises(AssertionError, match="Not the same training"):
        answer.require()
    pages.write(answer, "same.html")
    page = html.unescape(Path("same.html").read_text())
    assert all(name in page for name in names)


@pytest.mark.slow
def test_a_step_that_makes_the_optimizers_state_is_no_step_of_the_training(ask):
    answer = ask("made by a step", at_step=3, steps=6)
    assert answer.same, answer.text


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "name"), [("none", None), ("per rank", "another batch")])
def test_a_restart_on_other_ranks_takes_the_samples_of_a_step_together(tmp_path, monkeypatch, fault, name):
    shutil.copy(LOOP.with_name("ranked_loop.py"), tmp_path / "loop.py")
    monkeypatch.chdir(tmp_path)
    words = {"resume": "--resume {checkpoint}", "resume_ranks": 2, "at_step": 3, "steps": 8}
    answer = same([sys.executable, "loop.py", "--fault", fault], **words)
    assert answer.same is (name is None), answer.text
    assert [cause.name for cause in answer.causes] == ([] if name is None else [name])
    answer.save(tmp_path / "same.json")
    assert OrderedSame.load(tmp_path / "same.json") == answer


@pytest.mark.slow
def test_a_split_is_set_where_the_code_has_its_numbers(tmp_path, monkeypatch):
    shutil.copy(LOOP.with_name("ranked_loop.py"), tmp_path / "loop.py")
    monkeypatch.chdir(tmp_path)
    words = {"resume": "--resume {checkpoint}", "at_step": 3, "steps": 6}
    answer = same([sys.executable, "loop.py"], "1x2x3", **words)
    assert answer.same and "set by the split" in answer.text, answer.text


@pytest.mark.parametrize(
    ("samples", "law", "steps"),
    [
        (["2b", "3a"], "resume_repeated", "2 and 3"),
        (["1b", "2a"], "resume_repeated", "1 and 2"),  # a skip that counts steps in the place of batches
        (["3b", "4a"], "resume_skipped", "3 and 4"),
        (["0b", "4a"], "resume_other_order", "no step"),
    ],
)
def test_half_a_step_too_early_or_too_late_is_named_by_its_steps(samples, law, steps):
    whole, again = (
        msgspec.structs.replace(
            run(steps=6),
            steps={
                event: with_samples(
                    step, samples if changed and event[1] == 3 else [f"{event[1]}a", f"{event[1]}b"]
                )
                for event, step in run(steps=6).steps.items()
            },
        )
        for changed in (False, True)
    )
    outcome = compare_samples(Pair(whole, again, (0, 3), (0.0, 0.0)), [0])
    assert (outcome.law, steps in outcome.text) == (law, True), outcome


def with_samples(step, samples):
    """A step of a run with other samples, drawn by no loader."""
    record = step.first
    passes = [msgspec.structs.replace(record.passes[0], hashes=samples)]
    return msgspec.structs.replace(step, ranks=[msgspec.structs.replace(record, passes=passes, drawn=[])])


def test_checkpoints_are_chosen_in_mid_epoch_and_at_an_epochs_end():
    checkpoints = [Checkpoint(step, f"{step}.pt") for step in (2, 4, 6, 8)]
    assert [chosen.step for chosen in choose_checkpoints(checkpoints, [0, 4], 8, None)] == [2, 4]
    assert [chosen.step for chosen in choose_checkpoints(checkpoints, [0, 4], 8, 5)] == [6]
    with pytest.raises(InputError, match="no checkpoint at step 7 or later with steps behind it"):
        choose_checkpoints(checkpoints, [0, 4], 8, 7)
    with pytest.raises(InputError, match="written: none"):
        choose_checkpoints([], [0], 8, None)
