"""A script is killed after its checkpoint and started again: what it takes up, and what it does not."""

import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from isobatch.equivalence.ordered import OrderedSame
from isobatch.equivalence.restarts import Checkpoint, choose_checkpoints
from isobatch.equivalence.session import same
from isobatch.errors import InputError

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
                ("seed", {"another order of the samples"}),
                ("random", {"random states not restored"}),
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


@pytest.mark.slow
def test_a_step_that_makes_the_optimizers_state_is_no_step_of_the_training(ask):
    answer = ask("made by a step", at_step=3, steps=6)
    assert answer.same, answer.text


def test_checkpoints_are_chosen_in_mid_epoch_and_at_an_epochs_end():
    checkpoints = [Checkpoint(step, f"{step}.pt") for step in (2, 4, 6, 8)]
    assert [chosen.step for chosen in choose_checkpoints(checkpoints, [0, 4], 8, None)] == [2, 4]
    assert [chosen.step for chosen in choose_checkpoints(checkpoints, [0, 4], 8, 5)] == [6]
    with pytest.raises(InputError, match="no checkpoint at step 7 or later with steps behind it"):
        choose_checkpoints(checkpoints, [0, 4], 8, 7)
    with pytest.raises(InputError, match="written: none"):
        choose_checkpoints([], [0], 8, None)
