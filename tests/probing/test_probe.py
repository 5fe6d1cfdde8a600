"""Probes of a convex problem with a known best learning rate, and of bad input."""

import gc
import json
import pickle
import re
import signal
import weakref
from pathlib import Path

import msgspec
import pytest

import isobatch as ib
from isobatch.cli import main

torch = pytest.importorskip("torch", reason="probes need torch")

from isobatch.probing.lab import Lab  # noqa: E402
from isobatch.probing.options import Budget, ProbeOptions  # noqa: E402
from isobatch.probing.training import device_of  # noqa: E402
from isobatch.schedules.schedule import Schedule  # noqa: E402
from probing import tiny  # noqa: E402

SMALL = {"budget": "1h", "samples": 64, "seeds": 2, "device": "cpu"}
WORDS = ["--samples", "64", "--seeds", "2", "--device", "cpu"]


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads of a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(**changes):
    fields = {"effective_batch": 4, "lr": 0.1, "optimizer": "sgd", "gpus": 1, "micro_batch": 4}
    return ib.Recipe(**fields | changes)


def lab_of(plan, workload=tiny.bowl):
    return Lab(plan, ProbeOptions(), device_of("cpu"), Budget(3600), workload)


@pytest.fixture
def clock(monkeypatch):
    """Stands still but for `tiny.ticking` losses."""
    clock = tiny.Clock()
    monkeypatch.setattr(Budget, "clock", staticmethod(clock))
    return clock


@pytest.fixture
def grown():
    """Four times the batch, and by the linear rule four times the learning rate: 0.4."""
    return ib.plan(recipe(), 4, policy="grow")


def test_the_best_learning_rate_of_a_bowl_is_found():
    probe = ib.probe(ib.plan(recipe(), 1), tiny.bowl, **SMALL)
    assert 0.3 < probe.lr.lr < 2 / 3
    # The search began at 0.1: the tuned learning rate is not the best one.
    assert not probe.lr.within and probe.exit_code == 1
    assert probe.lr.exponent is None and "lies outside" in probe.show()
    with pytest.raises(ib.InputError, match="no exponent was measured"):
        probe.to_recipe()


def test_a_rule_that_this_problem_does_not_follow_is_seen(grown):
    """Without noise the best learning rate hardly depends on the batch: linear is wrong."""
    probe = ib.probe(grown, tiny.bowl, **SMALL)
    tuned, planned = probe.lr.batches
    assert (tuned.batch, planned.batch) == (4, 16)
    assert 0.3 < tuned.best_lr < 2 / 3 and 0.3 < planned.best_lr < 2 / 3
    assert abs(probe.lr.exponent) < 0.3
    assert not probe.lr.within and probe.lr.plan_lr == pytest.approx(0.4)
    assert probe.to_recipe().power == probe.lr.exponent
    again = ib.plan(probe.to_recipe(), 4, policy="grow", rule="power")
    assert again.lr == pytest.approx(0.1 * 4**probe.lr.exponent)
    # Above 2/3 it diverges: those trials are bounded, kept and marked.
    assert any(trial.diverged and trial.lr > 2 / 3 for trial in probe.lr.trials)
    assert {trial.seed for trial in probe.lr.trials} == {0, 1}


def test_a_recipe_that_was_not_tuned_gets_no_ratio(tmp_path, ran):
    """Its own learning rate is fifty times below the best one at its batch: no base for a ratio."""
    plan = ib.plan(recipe(lr=0.01), 4, policy="grow")
    probe = ib.probe(plan, tiny.bowl, **SMALL)
    assert probe.lr.doubt == "untuned" and probe.exit_code == 2
    text, best = probe.show(), probe.lr.batches[0].best_lr
    assert (
        "No learning rate can be named at batch 16: the recipe's 0.01 is far from the "
        "best one at its own batch of 4" in text
    )
    assert f"the lowest losses were at {best:.3g} there" in text and "lies outside" not in text
    with pytest.raises(ib.InputError, match="name no learning rate"):
        probe.to_recipe()
    plan.save(tmp_path / "plan.json")
    words = ["probe", str(tmp_path / "plan.json"), "--workload", "probing.tiny:bowl", *WORDS]
    file = tmp_path / "tuned.toml"
    printed = ran([*words, "--recipe", str(file)], 2)
    assert "No learning rate can be named" in printed.out and "no recipe is written" in printed.err
    assert not file.exists()


def test_a_best_one_at_the_edge_names_none(grown):
    probe = ib.probe(grown, tiny.slope, **SMALL)
    assert all(batch.at_edge for batch in probe.lr.batches)
    assert probe.lr.doubt == "edge" and probe.exit_code == 2
    assert "at batch 4 and 16 the best one is the last one tried" in probe.show()


def test_trials_as_long_as_the_run_need_no_ratio():
    """Then the best learning rate is that of the run itself, however far the recipe's is from it."""
    plan = ib.plan(recipe(lr=0.01, duration="16st"), 4, policy="grow")
    probe = ib.probe(plan, tiny.bowl, budget="1h", seeds=2, device="cpu")
    tuned, planned = probe.lr.batches
    assert probe.lr.samples == 64 and probe.lr.whole_run and probe.lr.doubt is None
    assert probe.lr.lr == planned.best_lr and "64 samples, as many as the run has" in probe.show()
    again = ib.plan(probe.to_recipe(), 4, policy="grow", rule="power")
    assert probe.to_recipe().lr == tuned.best_lr
    assert again.lr == pytest.approx(planned.best_lr)


def test_a_probe_that_the_budget_ends_says_what_it_knows(grown, clock):
    early = ib.probe(grown, tiny.ticking(tiny.bowl, clock), **{**SMALL, "budget": 700})
    assert clock.now <= 700
    assert early.stopped == "budget" and not early.lr.complete
    assert (early.lr.samples, early.lr.whole_samples, early.lr.seeds) == (16, 64, 1)
    assert "trials of a quarter of the samples, 1 of 2 seeds" in early.show()
    assert early.lr.doubt == "short" and early.exit_code == 2
    assert "No learning rate can be named at batch 16: the trials have 16 of 64 samples" in early.show()
    assert 1.2 * 700 < early.needed_seconds < 5000


def test_the_budget_holds_wherever_it_ends(grown, clock):
    """In a trial or between two, in the first round or the last: never a second too long, with an answer."""
    samples = set()
    ib.probe(grown, tiny.ticking(tiny.bowl, clock), **SMALL)
    for budget in [10, 100, *range(300, int(clock.now), 130)]:
        clock.now = 0.0
        try:
            probe = ib.probe(grown, tiny.ticking(tiny.bowl, clock), **{**SMALL, "budget": budget})
            samples.add((probe.lr.samples, probe.lr.seeds))
            assert probe.stopped == "budget" and "The budget ended" in probe.show()
        except ib.InputError as error:
            samples.add(None)
            text = str(error)
            assert "so that nothing can be said" in text and budget < 900, text
            assert "would likely do" in text or budget == 10, text
        assert clock.now <= budget
    assert samples >= {None, (16, 1), (32, 1), (64, 1)}


def test_ctrl_c_says_what_is_known(grown):
    results = []

    def stop(line):
        results.append(line)
        if len(results) == 25:
            raise KeyboardInterrupt

    probe = ib.probe(grown, tiny.bowl, **SMALL, say=stop)
    assert probe.stopped == "interrupted" and len(probe.lr.trials) == 25
    assert "It was interrupted before all trials were made" in probe.show()


def test_ctrl_c_before_anything_is_known_says_when(grown, clock):
    def stop(line):
        if line.startswith("batch"):
            clock.now = 1000.0
            raise KeyboardInterrupt

    with pytest.raises(ib.InputError, match="interrupted after 16 min 40 s, before the first round"):
        ib.probe(grown, tiny.ticking(tiny.bowl, clock), **SMALL, say=stop)


def test_sigterm_ends_the_command_as_ctrl_c_does(grown, tmp_path, monkeypatch, capsys):
    """Slurm and `timeout` send it."""
    monkeypatch.setattr(tiny, "remaining", 1200)
    grown.save(tmp_path / "plan.json")
    before = signal.getsignal(signal.SIGTERM)
    assert main(["probe", str(tmp_path / "plan.json"), "--workload", "probing.tiny:ended", *WORDS]) == 130
    assert "It was interrupted before all trials were made" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_workload_is_needed(grown, tmp_path, capsys):
    todo = "workload is missing: give your own training as package.module:factory"
    with pytest.raises(ib.InputError, match=todo):
        ib.probe(grown)
    grown.save(tmp_path / "plan.json")
    assert main(["probe", str(tmp_path / "plan.json")]) == 2
    assert f"--{todo}" in capsys.readouterr().err


@pytest.mark.parametrize("workload", [tiny.regression, tiny.summed, tiny.weighted])
def test_the_gradient_of_a_step_is_that_of_its_batch_in_one_piece(workload):
    """Over micro-batches of 4, 4 and 2 samples, whatever the loss: a mean, a sum, or a mean by weights."""
    lab = lab_of(ib.plan(recipe(), 1), workload)
    shares = lab.split(10)
    assert shares == [range(4), range(4, 8), range(8, 10)]
    gradients = []
    for pieces in (shares, [range(10)]):
        training = lab.training(4, 0)
        training.gradient(pieces)
        gradients.append([weight.grad for weight in training.trained])
    torch.testing.assert_close(*gradients)


def test_a_composed_schedule_is_in_the_report():
    halves = [ib.schedules.cosine(0.1, 10), ib.schedules.cosine(0.05, 10)]
    tuned = recipe(schedule=ib.schedules.join(halves, [10]), duration="20st")
    probe = ib.probe(ib.plan(tuned, 2), tiny.bowl, **SMALL)
    schedule = json.dumps(json.loads(probe.to_json())["recipe"]["schedule"])
    assert Schedule.from_json(schedule) == tuned.schedule
    assert pickle.loads(pickle.dumps(probe)) == probe  # as ranks hand it over


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (tiny.other_weights, "cannot be reseeded: made twice after torch.manual_seed"),
        (tiny.other_samples, "cannot be reseeded: batch gave other samples for the same state"),
        (tiny.constant_samples, "cannot be reseeded: batch gives the same samples whatever its generator"),
        (tiny.not_finite, "the loss is nan before the first step, at seed 0"),
        (tiny.nan_in_training, "the loss is nan before the first step, in training mode, at seed 0"),
        (
            tiny.no_gradient,
            "Workload.loss must return a tensor with a gradient: compute it by calling the model",
        ),
        (
            tiny.no_tensor,
            "Workload.loss must return a scalar tensor, got float: return the loss, without .item()",
        ),
        (tiny.nothing_to_train, "no parameter with requires_grad: there is nothing to train"),
        (tiny.too_few_samples, "batch was asked for 4 samples, and gave a tensor of shape (2, 2)"),
        (tiny.no_weight, "the weights of a step sum to 0, not above 0"),
        (
            tiny.never_moves,
            "the loss never moves: 1.5 before, at best 1.5 behind learning rates 0.0125 to "
            "0.8, 16 samples each",
        ),
    ],
)
def test_a_workload_that_cannot_be_probed_is_refused(workload, message, grown):
    with pytest.raises(ib.InputError, match=re.escape(message)):
        ib.probe(grown, workload, **SMALL)


def test_a_trials_memory_is_free_when_it_ends(grown):
    lab = lab_of(grown)
    training = lab.training(16, 0)
    training.step(lab.split(16), 0.1)
    model = weakref.ref(training.model)
    gc.disable()  # it looks at objects, and knows nothing of the bytes on a GPU
    try:
        del training
        assert model() is None
    finally:
        gc.enable()


def test_a_budget_that_is_too_small_says_what_is_needed(grown, clock):
    text = (
        r"5 min is too short for 40 trials at batches 4, 16, the whole ones of 640 "
        r"samples. A budget of \d+m would likely do"
    )
    with pytest.raises(ib.InputError, match=text):
        ib.probe(grown, tiny.ticking(tiny.bowl, clock), budget="5m", device="cpu")
    assert clock.now < 300


def test_bad_input_is_named(grown, capsys, tmp_path):
    with pytest.raises(ib.InputError, match="unknown argument 'seed'"):
        ib.probe(grown, tiny.bowl, seed=3)
    grown.save(tmp_path / "plan.json")
    assert main(["probe", str(tmp_path / "plan.json"), "--budget", "soon"]) == 2
    assert '--budget must be a time above 0 such as "90s", "10m" or "2h"' in capsys.readouterr().err


def test_the_command_writes_recipe_and_report(grown, capsys, ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grown.save("plan.json")
    words = ["probe", "plan.json", "--workload", "probing.tiny:bowl", *WORDS]
    assert main([*words, "--recipe", "tuned.toml", "-o", "probe.json"]) == 1
    assert "Learning rate to take at batch 16" in capsys.readouterr().out
    text = Path("tuned.toml").read_text()
    assert text.startswith("# power: measured by isobatch probe on probing.tiny:bowl, 95 % interval")
    report = json.loads(Path("probe.json").read_text())
    assert ib.Recipe.load("tuned.toml").power == pytest.approx(report["lr"]["exponent"])
    assert {trial["batch"] for trial in report["lr"]["trials"]} == {4, 16}
    assert json.loads(ran([*words, "--json"], 1).out)["lr"]["batches"] == report["lr"]["batches"]


@pytest.mark.parametrize("wide", [False, True])
def test_an_interval_that_holds_everything_is_said_to(wide):
    probe = ib.probe(ib.plan(recipe(lr=0.5), 1), tiny.bowl, **SMALL)
    ends = (0.001, 0.00401) if wide else (0.001, 0.004)
    lr = msgspec.structs.replace(probe.lr, interval=ends, within=True)
    text = msgspec.structs.replace(probe, lr=lr).show()
    assert ("these trials give no reason to change" in text) != wide
    assert ("the interval spans a factor of 4, in which" in text) == wide


def test_trials_at_other_batches_move_what_the_plan_moves():
    recipe = ib.Recipe(
        effective_batch=64, lr=1e-3, optimizer="muon", weight_decay=0.1, decay="sqrt", duration="1000st"
    )
    settings = {"rule": "sqrt", "beta2_rule": "half_life:0.95", "duration_scale": "2.0^0.3"}  # fmt: skip
    plan = ib.plan(recipe, 8, policy=512, **settings)
    lab = lab_of(plan)
    own_plan = lab.plan_of(128).require()
    expected = ib.plan(recipe, 1, policy=128, **settings).require()
    for name in ("lr", "weight_decay", "beta1", "beta2", "eps"):
        assert getattr(own_plan, name) == getattr(expected, name), name
    assert own_plan.weight_decay != recipe.weight_decay


def test_an_exponent_that_tells_no_growth_from_a_square_root_is_not_written(grown):
    probe = ib.probe(grown, tiny.bowl, **SMALL)
    wide = msgspec.structs.replace(probe.lr, exponent_interval=(-0.9, 1.1))
    with pytest.raises(ib.InputError, match="holds 0 and 0.5: .* try more seeds"):
        msgspec.structs.replace(probe, lr=wide).to_recipe()
