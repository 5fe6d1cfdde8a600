"""Probes of a convex problem whose best learning rate is known, in this process; what they say of bad input; and two real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.cli import main

torch = pytest.importorskip("torch", reason="probes need torch")

from probing import tiny  # noqa: E402

TESTS = Path(__file__).parent.parent
SMALL = {"budget": "1h", "samples": 64, "seeds": 2, "device": "cpu"}


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads of a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(**changes):
    return ib.Recipe(
        **{"effective_batch": 4, "lr": 0.1, "optimizer": "sgd", "gpus": 1, "micro_batch": 4, **changes}
    )


@pytest.fixture
def grown():
    """Four times the batch, and by the linear rule four times the learning rate: 0.4."""
    return ib.plan(recipe(), 4, policy="grow")


def test_the_best_learning_rate_of_a_bowl_is_found():
    found = ib.probe(ib.plan(recipe(), 1), tiny.bowl, **SMALL)
    assert 0.3 < found.lr.lr < 2 / 3
    # The search began at 0.1: the tuned learning rate is not the best one, and that is said.
    assert not found.lr.within and found.exit_code == 1
    assert found.lr.exponent is None and "lies outside" in found.show()
    with pytest.raises(ib.InputError, match="no exponent was measured"):
        found.to_recipe()


def test_a_rule_that_this_problem_does_not_follow_is_seen(grown):
    """Without noise the best learning rate hardly depends on the batch: linear is wrong, and the exponent is low."""
    found = ib.probe(grown, tiny.bowl, **SMALL)
    tuned, planned = found.lr.batches
    assert (tuned.batch, planned.batch) == (4, 16)
    assert 0.3 < tuned.best_lr < 2 / 3 and 0.3 < planned.best_lr < 2 / 3
    assert abs(found.lr.exponent) < 0.3
    assert not found.lr.within and found.lr.plan_lr == pytest.approx(0.4)
    assert found.to_recipe().power == found.lr.exponent
    assert ib.plan(found.to_recipe(), 4, policy="grow", rule="power").lr == pytest.approx(
        0.1 * 4**found.lr.exponent
    )
    # Above 2/3 it diverges: those trials are bounded, kept and marked.
    assert any(trial.diverged and trial.lr > 2 / 3 for trial in found.trials)
    assert {trial.seed for trial in found.trials} == {0, 1}


def test_trials_are_kept_and_gone_on_from(grown, tmp_path):
    """A probe that ended early says what it knows, and goes on to what one that never stopped finds."""
    file = tmp_path / "trials.jsonl"
    whole = ib.probe(grown, tiny.bowl, **SMALL)
    clock = tiny.Clock()
    early = ib.probe(
        grown, tiny.ticking(tiny.bowl, clock), **{**SMALL, "budget": 700}, trials=str(file), clock=clock
    )
    assert clock.now <= 700
    assert early.stopped == "budget" and not early.lr.complete
    assert (early.lr.samples, early.lr.whole_samples, early.lr.seeds) == (16, 64, 1)
    assert "trials of a quarter of the samples, 1 of 2 seeds" in early.show()
    assert 1.2 * 700 < early.lr.needed_seconds < 5000
    before = file.read_text().count("\n") - 1
    assert 0 < before == len(early.trials) < len(whole.trials)
    file.write_text(file.read_text() + '{"batch": 4, "lr"')  # killed while it wrote
    again = ib.probe(grown, tiny.ticking(tiny.bowl, clock), **SMALL, trials=str(file))
    assert again.reused == before and again.stopped is None and again.lr.complete
    assert again.lr == whole.lr
    assert [t.losses for t in again.trials] == [t.losses for t in whole.trials]


def test_a_file_of_other_trials_is_refused(grown, tmp_path):
    file = tmp_path / "trials.jsonl"
    options = {**SMALL, "seeds": 1, "trials": str(file)}
    factory = tiny.ticking(tiny.bowl, tiny.Clock())
    ib.probe(grown, factory, **options)
    kept = file.read_bytes()
    with pytest.raises(ib.InputError, match="another probe"):
        ib.probe(ib.plan(recipe(lr=0.2), 4, policy="grow"), factory, **options)
    with pytest.raises(ib.InputError, match="have 64 samples, got 128: leave --samples out"):
        ib.probe(grown, factory, **{**options, "samples": 128})
    # The same name, and another loss: it was edited.
    with pytest.raises(ib.InputError, match="it has changed, or its data has"):
        ib.probe(grown, tiny.ticking(tiny.regression, tiny.Clock()), **options)
    assert file.read_bytes() == kept
    file.write_text("a note of mine, in one line")
    with pytest.raises(ib.InputError, match="cannot be read"):
        ib.probe(grown, factory, **options)
    assert file.read_text() == "a note of mine, in one line"


def test_the_budget_holds_wherever_it_ends(grown):
    """In a trial or between two, in the first round or the last: never a second too long, and always an answer."""
    seen = set()
    whole = tiny.Clock()
    ib.probe(grown, tiny.ticking(tiny.bowl, whole), **SMALL, clock=whole)
    for budget in [10, 100, *range(300, int(whole.now), 130)]:
        clock = tiny.Clock()
        try:
            found = ib.probe(
                grown, tiny.ticking(tiny.bowl, clock), **{**SMALL, "budget": budget}, clock=clock
            )
            seen.add((found.lr.samples, found.lr.seeds))
            assert found.stopped == "budget" and "The budget ended" in found.show()
        except ib.InputError as error:
            seen.add(None)
            said = str(error)
            assert "so that nothing can be said" in said and budget < 900, said
            assert "would likely do" in said or budget == 10, said
        assert clock.now <= budget
    assert seen >= {None, (16, 1), (32, 1), (64, 1)}


def test_ctrl_c_says_what_is_known(grown):
    made = []

    def stop(line):
        made.append(line)
        if len(made) == 25:
            raise KeyboardInterrupt

    found = ib.probe(grown, tiny.bowl, **SMALL, say=stop)
    assert found.stopped == "interrupted" and len(found.trials) == 24
    assert "It was interrupted before all trials were made" in found.show()


def test_keep_is_the_same_training_at_every_split():
    found = ib.probe(
        ib.plan(recipe(effective_batch=64, micro_batch=16, gpus=4), 8), tiny.regression, measure="same"
    )
    assert found.same.same and found.exit_code == 0
    names = [split.split for split in found.same.splits]
    assert names == [
        "the tuned recipe's own",
        "the plan's own",
        "2 × 32",
        "4 × 16",
        "8 × 8",
        "2 × 8 × 4",
        "ragged over 3",
        "uneven over 3",
        "elastic, moved half-way",
    ]
    assert all(0 < split.difference < 1e-12 for split in found.same.splits), found.same


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "muon"])
def test_keep_is_the_same_with_other_optimizers(optimizer):
    found = ib.probe(ib.plan(recipe(effective_batch=16, optimizer=optimizer), 2), measure="same")
    # Muon orthogonalizes in bfloat16, Lion takes signs: both may amplify a last bit.
    assert all(split.difference < (1e-9 if optimizer == "adamw" else 0.05) for split in found.same.splits)


@pytest.mark.parametrize("workload", [tiny.normed, tiny.undeclared_sum])
def test_what_depends_on_the_split_is_not_the_same(workload):
    found = ib.probe(ib.plan(recipe(effective_batch=64, micro_batch=16), 4), workload, measure="same")
    assert not found.same.same and found.exit_code == 1
    assert "NOT THE SAME" in found.show() and "batch norm" in found.show()


def test_where_the_batch_grows_the_gap_has_an_interval(grown):
    found = ib.probe(grown, tiny.regression, measure="same", **SMALL)
    low, high = found.same.gap_interval
    assert low < found.same.gap < high
    assert found.same.gap == pytest.approx(found.same.planned_loss - found.same.tuned_loss)
    assert "this is another training" in found.show()


def test_the_critical_batch_by_branches():
    options = {"budget": "1h", "samples": 320, "seeds": 2, "device": "cpu"}
    tuned = ib.plan(recipe(lr=0.02), 1)
    wide = ib.probe(tuned, tiny.regression, measure="critical", tolerance=10.0, **options).critical
    assert [branch.k for branch in wide.branches] == [1, 2, 4, 8] and wide.critical_batch == 32
    assert not wide.bounded and all(branch.holds for branch in wide.branches)
    assert [branch.lr for branch in wide.branches] == pytest.approx([0.02, 0.04, 0.08, 0.16])
    # 0.3 is well below where it diverges, 0.6 just below, 2/3: twice the batch at twice the learning rate does not hold.
    narrow = ib.probe(ib.plan(recipe(lr=0.3), 1), tiny.noisy_bowl, measure="critical", **options)
    assert narrow.critical.bounded and narrow.critical.critical_batch == 4
    assert [branch.holds for branch in narrow.critical.branches] == [True, False]
    assert "already twice the batch fails" in narrow.show()


def test_a_checkpoint_is_gone_on_from(tmp_path, grown):
    model = tiny.bowl().model
    torch.save({"model": model.state_dict()}, tmp_path / "at.pt")
    found = ib.probe(grown, tiny.bowl, **SMALL, checkpoint=str(tmp_path / "at.pt"))
    assert "checkpoint" in found.show() and found.lr.exponent is not None
    torch.save(torch.nn.Linear(3, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ib.InputError, match="not of this workload's model"):
        ib.probe(grown, tiny.bowl, **SMALL, checkpoint=str(tmp_path / "other.pt"))


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (tiny.other_weights, "cannot be reseeded: made twice after torch.manual_seed"),
        (tiny.other_samples, "cannot be reseeded: batch gave other samples for the same state"),
        (tiny.constant_samples, "cannot be reseeded: batch gives the same samples whatever its generator"),
        (tiny.not_finite, "the loss is nan before the first step, at seed 0"),
        (
            tiny.never_moves,
            "the loss never moves: 1.5 before, at best 1.5 behind learning rates 0.0125 to 0.8, 16 samples each",
        ),
    ],
)
def test_a_workload_that_cannot_be_probed_is_said_plainly(workload, said, grown):
    with pytest.raises(ib.InputError) as error:
        ib.probe(grown, workload, **SMALL)
    assert said in str(error.value)


def test_a_budget_that_is_too_small_says_what_is_needed(grown):
    clock = tiny.Clock()
    with pytest.raises(
        ib.InputError,
        match=r"5 min is too short for trials at batches 4, 16: 10 steps at 16 take .*, and the first round has 14 trials. "
        r"A budget of \d+m would likely do for all",
    ):
        ib.probe(grown, tiny.ticking(tiny.bowl, clock), budget="5m", clock=clock, device="cpu")
    assert clock.now < 300


def test_bad_input_is_named(grown, capsys, tmp_path):
    with pytest.raises(ib.InputError, match="unknown argument 'seed'"):
        ib.probe(grown, tiny.bowl, seed=3)
    with pytest.raises(ib.InputError, match="--workload|package.module:factory, or other --batches"):
        ib.probe(ib.plan(recipe(), 1))
    with pytest.raises(ib.InputError, match="has no lamb"):
        ib.probe(ib.plan(recipe(optimizer="lamb"), 4, policy="grow"))
    grown.save(tmp_path / "plan.json")
    assert main(["probe", str(tmp_path / "plan.json"), "--budget", "soon"]) == 2
    assert '--budget must be a time above 0 such as "90s", "10m" or "2h"' in capsys.readouterr().err


def test_the_command_writes_recipe_and_report(grown, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grown.save("plan.json")
    words = [
        "probe",
        "plan.json",
        "--workload",
        "probing.tiny:bowl",
        "--samples",
        "64",
        "--seeds",
        "2",
        "--device",
        "cpu",
    ]
    assert main([*words, "--recipe", "tuned.toml", "-o", "probe.json", "--trials", "trials.jsonl"]) == 1
    assert "Learning rate to take at batch 16" in capsys.readouterr().out
    text = Path("tuned.toml").read_text()
    assert text.startswith("# power: measured by isobatch probe on probing.tiny:bowl, 95 % interval")
    report = json.loads(Path("probe.json").read_text())
    assert ib.Recipe.load("tuned.toml").power == pytest.approx(report["lr"]["exponent"])
    assert len(report["trials"]) == Path("trials.jsonl").read_text().count("\n") - 1
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["lr"] == report["lr"]


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(tmp_path):
    """The same seeds and data order on one rank and on two: the same losses up to rounding."""
    ib.plan(recipe(), 4, policy="grow").save(tmp_path / "plan.json")
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment["OMP_NUM_THREADS"] = "1"
    words = [sys.executable, "-m", "isobatch", "probe", "plan.json", "--workload", "probing.tiny:regression"]
    found = {}
    for ranks in (1, 2):
        out = f"{ranks}.json"
        more = ["--samples", "64", "--seeds", "2", "--budget", "4m", "--device", "cpu", "-o", out]
        done = subprocess.run(
            [*words, *more, "--nproc-per-node", str(ranks)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode in (0, 1), done.stderr
        found[ranks] = json.loads((tmp_path / out).read_text())
    assert found[2]["ranks"] == 2
    losses = [
        {(t["batch"], round(t["lr"], 9), t["seed"], t["samples"]): t["losses"] for t in found[r]["trials"]}
        for r in (1, 2)
    ]
    shared = losses[0].keys() & losses[1].keys()
    assert len(shared) > 20
    for key in shared:
        assert losses[1][key] == pytest.approx(losses[0][key], rel=1e-3), key
