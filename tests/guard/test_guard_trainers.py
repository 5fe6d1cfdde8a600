"""The guard in trainers with their own loop: hidden mistakes, checkpoints, conventions. `faults.py` has the
mistakes.
"""

from types import SimpleNamespace

import pytest

from isobatch.guard import Cause

pytest.importorskip("torch", reason="the guard needs torch")

from guard.runs import NEEDS, plan_of, run

LIGHTNING, TRANSFORMERS = "lit", "hf_trainer"
TRAINERS = pytest.mark.parametrize("trainer", [LIGHTNING, TRANSFORMERS])


@pytest.fixture
def train(two):
    """Outcomes of two ranks in a trainer's script, with a fault injected or none, by its recipe with other
    `fields`.
    """

    def outcomes(trainer, fault=None, fields=None, **options):
        for module in NEEDS[trainer]:
            pytest.importorskip(module, reason="the script uses it")
        plan = plan_of(trainer, accumulation=3, **{"dataset_size": 100, "duration": "2ep", **(fields or {})})
        return two(run, trainer, plan.to_json(), options, fault)

    return outcomes


@TRAINERS
@pytest.mark.parametrize("mistake", [None, "summed loss"])
def test_clipping(train, trainer, mistake):
    for error, unchecked, _ in train(trainer, mistake, {"clip_norm": 0.01}):
        assert unchecked == []
        assert error is None if mistake is None else error.cause is Cause.SUMMED_LOSS


@pytest.mark.parametrize("at", [3, 5])
@pytest.mark.parametrize(
    ("trainer", "unchecked_texts"),
    [(LIGHTNING, 1), (TRANSFORMERS, 2)],  # the epoch under way, and in the Trainer the gradient's size
)
def test_a_checkpoint(train, tmp_path, trainer, unchecked_texts, at):
    how = {"path": str(tmp_path / "run"), **({"workers": 0} if trainer == LIGHTNING else {})}
    for error, unchecked, _ in train(trainer, stop=at, **how):
        assert (error, unchecked) == (None, [])
    for error, unchecked, _ in train(trainer, **how):
        assert error is None
        assert len(unchecked) == unchecked_texts * (at % 5 > 0)


def test_lightnings_workers_fetch_an_epoch_before_it_is_set(train, tmp_path):
    path = str(tmp_path / "run")
    for error, *_ in train(LIGHTNING, stop=5, path=path):
        assert error is None
    for error, *_ in train(LIGHTNING, path=path):
        assert error.cause is Cause.MISSING_SET_EPOCH
        assert "the run resumes in epoch 1, but DistributedSampler gives the order of epoch 0" in error.text
        assert "make the sampler in train_dataloader()" in error.advice


@pytest.mark.parametrize(("convention", "trainer"), [("torch", TRANSFORMERS), ("transformers", LIGHTNING)])
def test_the_remedy_for_another_convention_is_known_at_the_start(train, convention, trainer):
    tool = {LIGHTNING: "lightning", TRANSFORMERS: "transformers"}[trainer]
    for error, *_ in train(trainer, fields={"convention": convention}):
        assert (error.cause, error.step) == (Cause.ANOTHER_CONVENTION, 0)
        assert f'convention="{tool}"' in error.diagnosis


@pytest.mark.parametrize("kind", ["Summed", "SummedOverAll"])
def test_a_loss_over_the_labels_of_all_processes(train, kind):
    advice = "num_items_in_batch counts the labels of all processes, and DDP averages: multiply"
    for error, unchecked, _ in train(TRANSFORMERS, padded=True, kind=kind):
        assert unchecked == []
        if kind == "SummedOverAll":
            assert error is None
        else:
            assert (error.cause, error.diagnosis[-6:]) == (Cause.DIVIDED_BY_RANKS, "(0.5×)")
            assert advice in error.advice


@pytest.mark.parametrize("mistake", [None, "summed loss", "each rank its own tokens"])
def test_labels_that_are_the_input_are_noted_and_hide_no_mistake(train, mistake):
    for error, _, notes in train(TRANSFORMERS, mistake, model="gpt2"):
        if mistake == "summed loss":
            assert error.cause is Cause.SUMMED_LOSS
            continue
        assert error is None
        if mistake is None:
            assert ["the gradient is 0.875 × that of the mean loss" in note for note in notes] == [True]


@pytest.mark.parametrize("settings", [{"loss_type": "bnpo"}, {"loss_type": "dapo", "entropy_coef": 0.1}])
def test_a_loss_of_trl_that_another_split_changes_is_noted_with_the_one_that_stays(settings):
    pytest.importorskip("transformers")
    from isobatch.guard.trainers import transformers_callback

    notes, kind = [], type("OwnConfig", (type("GRPOConfig", (SimpleNamespace,), {}),), {})
    guard = SimpleNamespace(attach=lambda *_, **__: None, run=SimpleNamespace(note=notes.append))
    begin = transformers_callback(guard).on_train_begin
    state, parts = SimpleNamespace(max_steps=1, global_step=0), ("model", "optimizer", "train_dataloader")
    begin(kind(loss_type="dapo"), state, None, **dict.fromkeys(parts))
    assert notes == []
    begin(kind(**settings), state, None, **dict.fromkeys(parts))
    assert len(notes) == 1
    assert notes[0].endswith("use loss_type dapo" if "entropy_coef" not in settings else "use entropy_coef 0")
