"""Where money is decided a figure has its range, and a verdict says how sure it is."""

import json

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch import Reason
from isobatch.cli import main
from isobatch.forecast.profile import Constant
from isobatch.report import fleet_page, times
from isobatch.report.counts_page import counts_page
from isobatch.report.plan_page import plan_page
from isobatch.report.table import plans_of
from isobatch.words import ranged
from reference.profile import MEASURED, profile_of


def profile(**changes):
    return profile_of(**MEASURED | {"scatter": 0.25} | changes)


RECIPE = ib.Recipe(effective_batch=512, lr=0.1, duration="1000000st")
NODE = ib.Cluster(gpus_per_node=8, price_per_gpu_hour=2.0)
JOB = ["--set", "effective_batch=512", "--set", "lr=0.1", "--set", "duration=1000000st"]


def planned(**settings):
    return ib.plan(RECIPE, NODE, profile=profile(), **settings)


def counts_said(capsys, tmp_path, known, *words):
    known.save(tmp_path / "profile.json")
    main(["counts", *JOB, "--profile", str(tmp_path / "profile.json"), *words])
    return capsys.readouterr()


@pytest.mark.parametrize(("limit", "price"), [("deadline_hours", 1.0), ("budget", 16.0)])
@pytest.mark.parametrize(
    ("share", "reasons", "says"),
    [
        (1.26, (), "met;"),
        (1.24, (Reason.LIMIT_LIKELY,), "likely met, not surely;"),
        (1.001, (Reason.LIMIT_LIKELY,), "likely met, not surely;"),
        (0.999, None, "over the deadline"),
    ],
)
def test_a_verdict_goes_by_the_range(limit, price, share, reasons, says):
    settings = {limit: planned().hours * price * share}
    plan = planned(**settings)
    table = ib.plan_fleet([RECIPE], [NODE], profile=profile(), **settings)
    assert Reason.of(table["reasons"]) == [plan.reasons]
    if reasons is None:
        over = Reason.MISSES_DEADLINE if limit == "deadline_hours" else Reason.ABOVE_BUDGET
        assert plan.reasons == (over,) and plan.status == "infeasible"
        return
    assert (plan.reasons, plan.status) == (reasons, "caution" if reasons else "ok")
    first = plan.explain().splitlines()[0]
    assert first.startswith(("Deadline of", "Budget of")) and f": {says}" in first and " to " in first
    assert ib.Plan.from_json(plan.to_json()) == plan


def test_a_constant_without_an_error_is_no_sure_thing():
    known = profile(scatter=0.0)
    plan = ib.plan(RECIPE, NODE, profile=known, deadline_hours=25)
    assert plan.hours_error is None and plan.reasons == ()
    assert "met, but no range is known" in plan.explain() and "no range known" in plan.explain()
    assert np.isnan(ib.plan_fleet([RECIPE], [NODE], profile=known)["hours_error"]).all()


def test_the_range_of_a_plan():
    plan = planned()
    assert plan.hours_error == pytest.approx(0.25 * plan.hours)
    says = (
        "The run takes 20 h 42 min (15 h 32 min to 1 d 2 h), 166 (124 to 207) GPU-hours, cost $331 "
        "($248 to $414); ± 25 %."
    )
    assert says in plan.explain()
    assert {headline.label: headline.value for headline in plan_page(plan).headlines}[
        "cost"
    ] == "$331 ($248 to $414)"
    wide = ib.plan(RECIPE, NODE, profile=profile(scatter=1.5))
    assert "(up to 2 d 4 h)" in wide.explain()


def test_a_moved_run_has_the_range_of_its_legs():
    run = planned()
    moved = ib.replan(run, at_step=400_000, cluster=ib.Cluster(gpus_per_node=4), profile=profile(scatter=0.1))
    parts = 400_000 * run.step_error / 3600, 600_000 * moved.step_error / 3600
    assert moved.hours_error == pytest.approx(sum(parts)) and moved.hours_error < moved.hours
    unknown = ib.replan(run, at_step=400_000, cluster=4, profile=profile(scatter=0.0))
    assert unknown.hours is not None and unknown.hours_error is None


@pytest.mark.parametrize(
    ("cluster", "known", "recipe", "says"),
    [
        (NODE, None, RECIPE, "Cost is not known: besides a price it needs a profile"),
        (
            ib.Cluster(gpus_per_node=8),
            profile(),
            ib.Recipe(effective_batch=512, lr=0.1),
            "the recipe has no duration",
        ),
        (NODE, profile(memory_fixed_gib=None), RECIPE, "Memory is not known"),
        (ib.Cluster(gpus_per_node=8, memory_gib=0.001), None, RECIPE, "The GPU's memory limits nothing here"),
        (
            ib.Cluster(nodes=2, gpus_per_node=8),
            profile(inter_gb_s=None),
            RECIPE,
            "the profile lacks a link that the run uses",
        ),
    ],
)
def test_unknown_figures_are_named(cluster, known, recipe, says):
    text = ib.plan(recipe, cluster, profile=known).explain()
    assert says in text
    assert "not known" not in planned().explain() and "not known" not in ib.plan(RECIPE, 8).explain()


def test_a_price_without_a_profile_says_what_is_missing(capsys):
    assert main(["counts", *JOB, "--gpus", "8,16", "--price-per-gpu-hour", "2"]) == 0
    assert "cost is not known: besides a price it needs --profile" in capsys.readouterr().err


def test_a_budget_that_the_profile_cannot_check_names_the_link(capsys, tmp_path):
    mute = profile(inter_gb_s=None)
    text = counts_said(
        capsys, tmp_path, mute, "--gpus", "8..64", "--price-per-gpu-hour", "2", "--budget", "1e4"
    ).err
    assert "no plan on 16, 32, 64 GPUs: the profile lacks a link that the run uses" in text
    knee = next(line for line in text.splitlines() if line.startswith("knee: 8 GPUs"))
    assert "the hours of more GPUs are not known" in knee
    where = ib.Cluster(nodes=2, gpus_per_node=8)
    refused = ib.plan(RECIPE, where, profile=mute, deadline_hours=25).explain()
    assert "the profile lacks a link" in refused
    assert "the profile lacks a link" not in ib.plan(RECIPE, where, deadline_hours=25).explain()


def test_a_sweep_says_how_surely_the_deadline_is_met(capsys, tmp_path):
    shown = counts_said(capsys, tmp_path, profile(), "--gpus", "1,2,4,8", "--deadline-hours", "40")
    rows = [line.split() for line in shown.out.splitlines()]
    assert "range" in rows[0] and all("±" in row for row in rows[1:])
    assert [row[-1] for row in rows[1:]] == ["missed", "missed", "likely", "met"]
    says = (
        "deadline 1 d 16 h: met at 1 count, from 8 GPUs; likely at 1 count, from 4 GPUs; with the fewest "
        "GPU-hours on 8 GPUs"
    )
    assert says in shown.err
    output = counts_said(capsys, tmp_path, profile(), "--gpus", "4", "--deadline-hours", "40")
    assert "surely met at none, likely at 1 count" in output.err
    bare = counts_said(capsys, tmp_path, profile(scatter=0.0), "--gpus", "8", "--json")
    assert json.loads(bare.out)["hours_error"] is None
    assert "no range known of hours and cost" in bare.err


def test_the_most_that_can_split_the_batch_is_no_end_of_the_range(capsys, tmp_path):
    known = profile(inter_gb_s=Constant(value=2000.0), inter_latency_us=Constant(value=0.1))
    text = counts_said(capsys, tmp_path, known, "--gpus", "8..4096").err
    fastest = next(line for line in text.splitlines() if line.startswith("fastest: 512 GPUs"))
    assert fastest.endswith("(the most that can split the batch)")
    least = counts_said(capsys, tmp_path, known, "--gpus", "1,2").err
    assert "fewer GPUs may be better" not in least


@pytest.mark.parametrize(
    ("gpus", "note"),
    [
        ([8, 16, 32], "more GPUs may be better"),
        ([1, 2, 4, 8, 16, 32, 64, 128], "past it, more GPUs cost more than they save"),
    ],
)
def test_a_page_says_of_the_knee_what_the_command_says(gpus, note):
    fast = {"inter_gb_s": Constant(value=200.0)} if len(gpus) == 3 else {}
    swept = ib.counts(RECIPE, gpus, profile=profile(**fast), cluster=NODE)
    knee = next(headline for headline in counts_page(swept).headlines if headline.label == "knee")
    assert note in knee.note and knee.value == f"{swept.knee} GPUs"


def test_a_batch_that_grows_has_no_knee_without_a_noise_scale(capsys, tmp_path):
    grow = {"policy": "grow", "max_micro_batch": 64}
    counts = range(8, 129, 8)
    bare = ib.counts(RECIPE, counts, profile=profile(), cluster=NODE, **grow)
    assert bare.knee is None and bare.fastest == 128
    assert "knee" not in [headline.label for headline in counts_page(bare).headlines]
    noisy = profile(noise_scale=Constant(value=5000, error=1500))
    known = ib.counts(RECIPE, counts, profile=noisy, cluster=NODE, **grow)
    columns = known.columns
    worth = columns["hours"] * columns["gpu_hours"] * columns["samples_over_least"] ** 2
    assert known.knee == columns["gpus"][worth.argmin()] != 128
    assert "3,500 to 6,500" in known.definition
    words = ("--gpus", "8..64", "--policy", "grow", "--max-micro-batch", "64")
    assert "no knee is known: it needs a noise scale" in counts_said(capsys, tmp_path, profile(), *words).err
    assert "the knee counts that" in counts_said(capsys, tmp_path, noisy, *words).err
    swept_again = ib.counts(RECIPE, counts, profile=noisy, cluster=NODE, rule="adascale", **grow)
    assert swept_again.knee is not None
    clusters = [ib.Cluster(nodes=nodes, gpus_per_node=8) for nodes in (1, 2, 4)]
    for policy, knees in (("grow", 0), ("keep", 1)):
        table = ib.plan_fleet([RECIPE], clusters, profile=profile(), max_micro_batch=64, policy=policy)
        assert len(times.knees(plans_of({"job": np.zeros(3, int)} | table))) == knees


def test_a_page_counts_who_only_likely_meets_the_deadline():
    jobs = {"job": ["sure", "likely", "late"], "effective_batch": [512] * 3, "lr": [0.1] * 3}
    jobs["duration"] = ["500000st", "1000000st", "2000000st"]
    deadline = planned().hours * 1.1
    table = ib.plan_fleet(jobs, [NODE], profile=profile())
    page = fleet_page.fleet_page(table, deadline=deadline)
    output = next(headline for headline in page.headlines if headline.label == "deadline met")
    assert output.value == "1" and output.note.endswith("likely, not surely, by 1 more")
    work = sum(table["gpu_hours"])
    spent = next(headline for headline in page.headlines if headline.label == "GPU-hours")
    assert spent.value == ranged(work, work / 4)


def test_a_critical_batch_has_its_interval_or_says_that_none_is_known():
    measured = profile(noise_scale=Constant(value=300.0, error=40.0))
    assert "260 to 340 (95 % interval)" in ib.counts(RECIPE, [8], profile=measured).definition
    assert "no range known" in ib.counts(msgspec.structs.replace(RECIPE, noise_scale=300.0), [8]).definition
    above = ib.plan(msgspec.structs.replace(RECIPE, noise_scale=300.0), 8).explain()
    assert "the batch of 512 is above the critical batch" in above and "noise_scale 300" in above


def test_slurm_gives_the_run_the_upper_end_of_its_range():
    for known, share in ((profile(), 1.25), (profile(scatter=0.01), 1.1)):
        plan = ib.plan(RECIPE, NODE, profile=known).require()
        assert f"--time={int(plan.hours * 60 * share) + 1}\n" in str(plan.to("slurm"))


def test_goodput_names_the_noise_scale_that_decided(capsys, ran, tmp_path):
    goodput = ["plan", *JOB, "--gpus", "8", "--policy", "goodput", "--rule", "sqrt", "--profile"]
    profile(noise_scale=Constant(value=5000, error=1500)).save(tmp_path / "profile.json")
    assert main([*goodput, str(tmp_path / "profile.json"), "--max-batch", "1000000"]) == 0
    known = {"policy": "goodput", "rule": "sqrt", "profile": profile()}
    recipes = [msgspec.structs.replace(RECIPE, noise_scale=end) for end in (3500, 6500)]
    ends = [f"{ib.plan(recipe, 8, **known).effective_batch:,}" for recipe in recipes]
    text = capsys.readouterr().err
    says = (
        f"5,000 (3,500 to 6,500) as the noise scale; at the ends of that range it would be {ends[0]} and "
        f"{ends[1]}"
    )
    assert says in text
    profile(noise_scale=Constant(value=5000)).save(tmp_path / "profile.json")
    assert "a noise scale whose range is not known" in ran([*goodput, str(tmp_path / "profile.json")]).err


@pytest.mark.parametrize(
    ("deadline", "value", "note"),
    [
        (40, "8 GPUs", "met: 20 h 42 min (15 h 32 min to 1 d 2 h), $331 ($248 to $414)"),
        (25, "8 GPUs", "likely met, not surely"),
        (2, "missed", ""),
    ],
)
def test_the_first_figure_of_a_sweeps_page_is_the_answer(deadline, value, note):
    page = counts_page(ib.counts(RECIPE, [1, 2, 4, 8], profile=profile(), cluster=NODE), deadline=deadline)
    first = page.headlines[0]
    assert first.label.startswith("deadline") and first.value == value and first.note.startswith(note)
    assert note or "none of these" in [cell for row in page.sections[0].tables[0].rows for cell in row]
