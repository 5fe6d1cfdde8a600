"""Splits beside the reference, on invented recordings: nothing is started."""

import msgspec
import numpy as np
import pytest

from isobatch.equivalence.compare import Comparison
from isobatch.equivalence.evidence import measure, verdict
from isobatch.equivalence.laws import break_of
from isobatch.equivalence.records import RankStep, RecordedStep, Recording
from isobatch.equivalence.rounding import Rounding
from isobatch.equivalence.shared import advised, share_clock, share_factor
from isobatch.equivalence.split import Split
from isobatch.equivalence.split_runs import _part_results

SAMPLES = np.random.default_rng(0).normal(size=(16, 32))
"""The gradient of each sample."""
STEP = {
    **{"optimizer": 0, "kind": "SGD", "half": False, "seconds": 1.0},
    **{"names": ["weight"], "sizes": [32], "entries": [32], "own": [True]},
    **{"drawn": [], "notes": {}, "versions": {}},
}
"""The record of every rank."""
QUIET = Rounding(exact=1e-4, gradients=[0.0, 0.0, 0.0], updates={0: 0.0})
GROUP = {"lr": 0.1, "weight_decay": 0.01, "betas": [0.9, 0.99], "tensors": 1}


def recording(
    text: str,
    *,
    factor=1.0,
    averaged=True,
    samples=range(8),
    norms=((1.0, 9.0),),
    each_pass=False,
    groups=(GROUP,),
    rates=(0.1, 0.1, 0.1),
    passes=None,
    finite=True,
    change=1.0,
    measured="gradient",
    update=1.0,
    ended=True,
    trainer="",
) -> Recording:
    """A run of a split, with a step for each rate; each rank has its part of the samples."""
    split = Split.parse(text)
    shares = np.array_split(np.array(samples), split.ranks)
    gradients = factor * np.stack([SAMPLES[share].mean(0) for share in shares])
    if averaged:
        gradients[:] = gradients.mean(0)
    steps = {}
    for number, rate in enumerate(rates):
        ranks = []
        for rank, share in enumerate(shares):
            parts = np.array_split(share, passes or split.accumulation)
            record = {
                **{"rank": rank, "world": split.ranks, "norms": norms, "step": number, "trainer": trainer},
                "measured": measured,
                "passes": [
                    {"hashes": list(map(str, part)), "tokens": [], "finite": finite} for part in parts
                ],
                "groups": [{**group, "lr": rate} for group in groups],
            }
            ranks.append(msgspec.convert(STEP | record, RankStep))
        weights = np.ones((split.ranks, 32)) - 0.1 * number * change * gradients[0]
        after = weights - 0.1 * change * gradients[0] if ended else None
        changes = SAMPLES[:8] / 8 if each_pass else np.empty((0, 32))
        steps[0, number] = RecordedStep(
            ranks, gradients * (update if number else 1.0), weights, changes, after
        )
    return Recording(split, 1.0, steps)


@pytest.fixture
def comparison() -> Comparison:
    return Comparison(recording("1x1x8"), recording("1x8x1", each_pass=True), QUIET)


def answer(*runs: Recording, reference: Recording | None = None, noise: Rounding = QUIET):
    """The verdict on runs beside a reference, and why something was not measured."""
    reference = reference or recording("1x1x8")
    results = [Comparison(reference, None, noise).compare(run) for run in runs]
    measured = measure([reference, *runs], reference, results, noise)
    missing = "; ".join(row.text for row in measured if row.holds is None)
    return (
        verdict(measured, reference, results, whole_question=True),
        missing,
        [names(result) for result in results],
    )


def names(result) -> list[str]:
    return [cause.name for cause in result.causes]


def test_a_split_of_the_same_samples_is_the_same(comparison):
    assert comparison.compare(recording("2x2x2")).same


def test_an_optimizer_that_moves_the_weights_less_is_named_by_its_update():
    reference = recording("1x1x8", measured="update")
    assert Comparison(reference, None, QUIET).compare(recording("2x2x2", measured="update")).same
    result = Comparison(reference, None, QUIET).compare(recording("2x2x2", measured="update", update=0.5))
    assert names(result) == ["another update"] and result.step == 1
    assert "SGD moves the weights otherwise" in result.causes[0].text and "× 0.5" in result.causes[0].text


@pytest.mark.parametrize(("change", "name"), [(0.5, "another update"), (1.0, "coupled samples")])
def test_a_gradient_at_other_weights_is_named_by_the_update_before(comparison, change, name):
    run = recording("2x2x2", change=change)
    bend = np.random.default_rng(3).normal(size=32)
    steps = {
        event: msgspec.structs.replace(step, gradients=step.gradients + (bend if event[1] else 0.0))
        for event, step in run.steps.items()
    }
    assert names(comparison.compare(msgspec.structs.replace(run, steps=steps))) == [name]


def test_ranks_whose_gradients_are_not_averaged_lose_no_samples(comparison):
    result = comparison.compare(recording("2x2x2", averaged=False, norms=((1.7, 9.0),)))
    assert names(result) == ["gradients not averaged"]
    assert result.weights == pytest.approx([1.0] * 8)


def test_a_split_that_draws_not_comparable_is_not_judged(comparison):
    result = comparison.compare(recording("2x2x2", samples=range(2, 10)))
    assert names(result) == ["other samples"] and not result.same
    judged, unjudged = _part_results([result, comparison.compare(recording("1x4x2"))])
    assert [result.split for result in judged] == ["1x4x2"] and list(unjudged) == ["2x2x2"]


def test_ranks_that_train_alone_are_named_whatever_their_samples(comparison):
    run = recording("2x2x2", samples=range(2, 10))
    for step in run.steps.values():
        step.ranks[:] = [msgspec.structs.replace(record, world=1) for record in step.ranks]
    judged, unjudged = _part_results([comparison.compare(run)])
    assert (names(judged[0]), unjudged) == (["ranks train alone"], {})


def test_a_split_with_other_random_draws_is_not_judged(comparison):
    result = comparison.compare(recording("1x4x2"))
    draws, rate = break_of("randomness", "draws fall on other samples"), break_of("another_lr", "another")
    random, both = (msgspec.structs.replace(result, causes=causes) for causes in ([draws], [draws, rate]))
    judged, unjudged = _part_results([random, both])
    assert judged == [both] and unjudged == {"1x4x2": draws}


def test_another_batch_has_no_other_cause(comparison):
    assert names(comparison.compare(recording("1x4x2", samples=range(6)))) == ["another batch"]


def early(split: str, **settings) -> Recording:
    """A run whose first step comes after one pass of the split."""
    run, first = recording(split, **settings), recording(split, samples=range(2), passes=1, **settings)
    run.steps[0, 0] = first.steps[0, 0]
    return run


def test_a_first_step_after_one_pass_is_named_and_leaves_no_misfit_beside_a_right_split():
    comparison = Comparison(recording("1x1x8"), early("1x8x1", each_pass=True), QUIET)
    result = comparison.compare(early("1x4x2"))
    assert names(result) == ["first step too early"]
    assert "came after 2 of 8 samples, the next after all" in result.causes[0].text
    right = comparison.compare(recording("2x1x4"))
    assert right.same and right.residual is None


def test_a_multiple_of_the_gradient_is_named_without_the_gradients_of_samples():
    result = Comparison(recording("1x1x8"), None, QUIET).compare(recording("1x4x2", factor=4.0))
    assert names(result) == ["× accumulation"]


def test_all_that_is_measured_and_holds_is_the_same():
    assert answer(recording("2x2x2"), recording("1x4x2")) == (True, "", [[], []])


def test_a_gradient_that_is_not_finite_is_never_the_same():
    nan = {"factor": float("nan"), "finite": False}
    same, missing, _ = answer(recording("2x2x2", **nan), reference=recording("1x1x8", **nan))
    assert same is None and "rank 0 at step 0 is not finite: the loss of pass 0 is not" in missing
    assert missing.count("not measured, for want of a gradient") == 2
    same, missing, causes = answer(recording("2x2x2", **nan))
    assert same is False and causes == [["gradient not finite"]]


def test_a_loss_that_is_not_finite_is_named_where_the_gradient_is():
    same, _, causes = answer(recording("1x4x2", finite=False))
    assert same is False and causes == [["gradient not finite"]]


def test_a_command_that_ignores_its_split_is_not_measured():
    same, missing, _ = answer(
        recording("1x4x2", passes=2), recording("1x2x4"), reference=recording("1x1x8", passes=2)
    )
    assert same is None and missing.endswith("2 passes of 4 rows at each split")
    same, missing, _ = answer(recording("1x4x2", passes=2))
    assert same is None and "1x1x8 ran 1 pass of 8 rows, 1x4x2 ran 2 passes of 4 rows" in missing


def test_a_reference_with_other_samples_than_its_split_proves_no_difference():
    same, missing, causes = answer(recording("1x4x2"), reference=recording("1x1x8", samples=range(2)))
    assert causes == [["another batch"]] and same is None and "1x1x8 ran 1 pass of 2 rows" in missing
    assert answer(recording("1x4x2", samples=range(2)))[0] is False  # the split alone has too few


@pytest.mark.parametrize(
    ("name", "value"),
    [("weight_decay", 0.0), ("weight_decay", float("nan")), ("betas", [0.9, 0.95]), ("momentum", 0.9)],
)
def test_a_setting_of_a_group_that_follows_the_split_is_named(name, value):
    same, _, causes = answer(recording("2x2x2", groups=(GROUP | {name: value},)))
    assert same is False and causes == [["another optimizer setting"]]


def test_groups_of_other_tensors_are_named():
    halves = [GROUP | {"tensors": 1}, GROUP | {"tensors": 1, "weight_decay": 0.0}]
    assert answer(recording("2x2x2", groups=halves))[2] == [["another optimizer setting"]]
    assert answer(recording("2x2x2", groups=halves), reference=recording("1x1x8", groups=halves))[0]


def test_weights_that_change_otherwise_are_named_though_the_gradient_is_the_same():
    same, _, causes = answer(recording("2x2x2", change=0.9))
    assert same is False and causes == [["another update"]]
    assert answer(recording("2x2x2", change=0.9999))[0]


def test_an_optimizer_that_amplifies_rounding_may_change_the_weights_by_as_much():
    noise = msgspec.structs.replace(QUIET, updates={0: 0.02})
    assert answer(recording("2x2x2", change=0.9), noise=noise)[0]


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ({"change": 0.0}, "no weight changed"),
        ({"change": 0.0, "rates": (0.0, 0.0)}, "learning rate is 0 at each of 2 steps"),
        ({"ended": False}, "not seen to end"),
        ({"factor": 0.0}, "no gradient at step 0"),
    ],
)
def test_weights_that_do_not_change_are_not_measured(faults, text):
    same, missing, _ = answer(recording("2x2x2", **faults), reference=recording("1x1x8", **faults))
    assert same is None and text in missing
    same, missing, _ = answer(recording("2x2x2", ended=False))
    assert same is None and "of a split was not seen to end" in missing


def test_a_command_that_is_not_itself_when_run_twice_is_not_measured():
    for apart in (0.4, float("inf"), float("nan")):
        noise = msgspec.structs.replace(QUIET, gradients=[apart])
        same, missing, _ = answer(recording("2x2x2", factor=1.2), noise=noise)
        assert same is None and "two runs of one split differ" in missing


def test_a_schedule_that_is_rounded_by_a_step_is_the_same_and_said():
    reference = recording("1x1x8", rates=(5e-5, 4.92308e-5, 4.84615e-5))
    result = Comparison(reference, None, QUIET).compare(
        recording("2x2x2", rates=(5e-5, 4.92248e-5, 4.84496e-5))
    )
    assert result.same and "rounded to whole steps" in result.notes[0]


@pytest.mark.parametrize(
    ("split", "rates", "name"),
    [
        ("1x4x2", (1e-3, 0.8e-3, 0.6e-3), "scheduler counts passes"),  # four times as fast
        ("2x1x4", (1e-3, 0.9e-3, 0.8e-3), "scheduler counts processes"),
        ("2x1x4", (1e-3, 0.975e-3, 0.95e-3), "scheduler counts processes"),
        ("2x3x2", (1e-3, 0.9667e-3, 0.9333e-3), "scheduler counts passes and processes"),
        ("2x2x2", (2e-3, 1.9e-3, 1.8e-3), "another learning rate"),
        ("2x2x2", (1e-3, 1e-3, 1e-3), "another learning rate"),
    ],
)
def test_a_clock_is_named_by_what_it_counts(split, rates, name):
    reference = recording("1x1x8", rates=(1e-3, 0.95e-3, 0.9e-3))
    result = Comparison(reference, None, QUIET).compare(recording(split, rates=rates))
    assert names(result) == [name]


def test_a_gradient_after_other_rates_is_not_named_beside_the_schedule():
    """The first rates differ by as little as a schedule's rounded length: the next step's weights differ."""
    reference = recording("1x1x8", rates=(0.1, 0.0995, 0.099))
    run = recording("1x4x2", rates=(0.0999, 0.0979, 0.0959))
    gradients = run.steps[0, 1].gradients + 0.1 * np.random.default_rng(1).normal(size=32)
    step = msgspec.structs.replace(run.steps[0, 1], gradients=gradients)
    run = msgspec.structs.replace(run, steps=run.steps | {(0, 1): step})
    result = Comparison(reference, None, QUIET).compare(run)
    assert names(result) == ["scheduler counts passes"]


def test_a_rate_times_the_ranks_is_named_once():
    reference = recording("1x1x8", groups=({**GROUP, "initial_lr": 0.1},))
    run = recording("2x1x4", rates=(0.2, 0.2, 0.2), groups=({**GROUP, "initial_lr": 0.2},))
    (cause,) = Comparison(reference, None, QUIET).compare(run).causes
    assert cause.name == "another learning rate" and cause.text.endswith(": × ranks")


def test_a_split_whose_warmup_is_over_has_the_clock_of_the_others():
    """Stepped by each pass: at 1x16x1 the warmup of 20 ends within the compared steps."""
    reference = Comparison(recording("1x1x16", samples=range(16), rates=(5e-3, 1e-2, 1.5e-2)), None, QUIET)
    rates = {"2x2x4": (1e-2, 2e-2, 3e-2), "1x8x2": (4e-2, 8e-2, 0.1), "1x16x1": (8e-2, 0.1, 0.1)}
    runs = [recording(split, samples=range(16), rates=each) for split, each in rates.items()]
    results = [reference.compare(run) for run in runs]
    assert [names(result) for result in results][::2] == [["another learning rate"]] * 2
    assert {name for result in share_clock(results) for name in names(result)} == {"scheduler counts passes"}
    larger = [recording(split, samples=range(16), rates=(2e-2, 4e-2, 6e-2)) for split in ("1x4x4", "2x4x2")]
    shared = share_clock([reference.compare(run) for run in larger])
    assert {name for result in shared for name in names(result)} == {"another learning rate"}


def test_a_schedule_is_compared_after_a_gradient_that_differs():
    reference = Comparison(recording("1x1x8", rates=(0.0, 0.1, 0.2)), None, QUIET)
    result = reference.compare(recording("1x4x2", factor=0.25, rates=(0.0, 0.4, 0.8)))
    assert names(result)[-1] == "scheduler counts passes" and len(result.causes) == 2 and result.step == 0
    assert result.causes[-1].text.endswith("(step 1)")
    other_steps = recording("1x4x2", factor=0.25, samples=range(6), rates=(0.0, 0.4, 0.8))
    assert "scheduler counts passes" not in names(reference.compare(other_steps))


def test_a_schedule_has_one_cause_for_all_splits():
    """Its length counts passes, and it is stepped by each process."""
    reference = recording("1x1x12", samples=range(12), rates=(1e-3, 0.94e-3, 0.88e-3))
    changed = {"1x6x2": 0.01, "2x1x6": 0.12, "2x3x2": 0.04}
    runs = [
        recording(split, samples=range(12), rates=(1e-3, 1e-3 - 1e-3 * by, 1e-3 - 2e-3 * by))
        for split, by in changed.items()
    ]
    results = [Comparison(reference, None, QUIET).compare(run) for run in runs]
    assert len({cause.name for result in results for cause in result.causes}) == 3
    shared = [cause for result in share_clock(results) for cause in result.causes]
    assert {cause.name for cause in shared} == {"scheduler counts passes and processes"}
    assert share_clock(results[:1]) == results[:1]


def with_tensor(run: Recording, name: str, notes=None) -> Recording:
    """The last bucket of a run is a tensor of its own."""
    own = {"names": ["body.weight", name], "sizes": [31, 1], "entries": [31, 1], "own": [True] * 2}
    for step in run.steps.values():
        ranks = [msgspec.structs.replace(record, notes=notes or {}, **own) for record in step.ranks]
        step.ranks[:] = ranks
    return run


@pytest.mark.parametrize(
    ("tensor", "notes", "name"),
    [
        ("layers.0.router.weight", {}, "balance loss of experts"),
        ("head", {"batch norm": {"batch norm": 3}}, "batch norm"),
        ("head", {"draws": {"random draws of torch within a step": 1}}, "randomness"),
        ("head", {}, "coupled samples"),
    ],
)
def test_samples_that_act_on_one_another_are_named_by_what_couples_them(tensor, notes, name):
    reference, run = (with_tensor(recording(text), tensor, notes) for text in ("1x1x8", "1x4x2"))
    for step in run.steps.values():
        step.gradients[:, 31] *= 1.7
    assert names(Comparison(reference, None, QUIET).compare(run)) == [name]


def test_ranks_that_start_apart_are_named_alone():
    run = recording("2x2x2")
    for step in run.steps.values():
        step.weights[1] += 0.1
    assert names(Comparison(recording("1x1x8"), None, QUIET).compare(run)) == ["weights differ between ranks"]


def test_a_split_with_other_first_weights_is_not_judged(comparison):
    run = recording("2x2x2", factor=-0.05)
    for step in run.steps.values():
        step.weights[:] += 0.1
    result = comparison.compare(run)
    assert names(result) == ["other first weights"]
    assert _part_results([result])[0] == []


@pytest.mark.parametrize("norm", [0.7, float("nan")])
def test_another_norm_of_the_same_gradient_is_named(norm):
    written = None if norm != norm else norm
    run = recording("2x2x2", norms=((written, 9.0),))
    assert names(Comparison(recording("1x1x8"), None, QUIET).compare(run)) == ["gradients clipped otherwise"]


def test_users_of_a_trainer_get_its_remedy():
    comparison = Comparison(recording("1x1x8"), None, QUIET)
    remedy = {}
    for trainer in ("", "transformers", "accelerate"):
        result = comparison.compare(recording("1x4x2", factor=4.0))
        remedy[trainer] = advised(share_factor([result]), trainer)[0].causes[0].remedy
    assert remedy[""].startswith("divide each pass's mean loss")
    assert "accepts_loss_kwargs" in remedy["transformers"]
    assert "accelerator.accumulate" in remedy["accelerate"]


def test_a_factor_on_some_tensors_never_asks_to_divide_the_loss():
    reference, run = (with_tensor(recording(text), "logit_scale") for text in ("1x1x8", "1x4x2"))
    for step in run.steps.values():
        step.gradients[:, 31] *= 4
    cause = Comparison(reference, None, QUIET).compare(run).causes[0]
    assert cause.name == "a factor on some tensors" and "logit_scale is 4 ×" in cause.text
    assert "leave the loss as it is" in cause.remedy and "divide" not in cause.remedy
