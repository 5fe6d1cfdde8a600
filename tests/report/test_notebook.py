"""What a notebook shows: a few lines, a chart, a data frame; and a repr that fits a screen."""

import subprocess
import sys

import pytest

import isobatch as ib
from hostile import HOSTILE
from report.pages import Parsed, timed_profile

RECIPE = ib.Recipe.from_gpus(
    gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", dataset_size=100_000, duration="9ep", warmup="1ep"
)


def validation():
    from isobatch.validate import Options, Proof, Report, Verdict

    return Report(
        isobatch_version="0",
        started="",
        wall_seconds=1.0,
        verdict=Verdict.FAIL,
        rehearsal=None,
        plan=None,
        plan_digest="",
        options=Options(),
        proofs=[Proof(name="world", verdict=Verdict.FAIL, text=text) for text in HOSTILE],
    )


VALUES = {
    "plan": ib.plan(RECIPE, 32, policy="grow"),
    "never": ib.plan(RECIPE, 7),
    "sweep": ib.sweep(RECIPE, range(1, 257), profile=timed_profile()),
    "elastic": ib.elastic(range(1, 2000), max_batch=720_720, micro_batches=[1, 2, 4]),
    "laws": ib.laws(parameters=1e9, tokens=1e11),
    "report": validation(),
    "recipe": RECIPE,
}


@pytest.mark.parametrize("name", VALUES)
def test_a_repr_fits_a_screen(name):
    text = repr(VALUES[name])
    assert (
        len(text) < 600
        and "\n" not in text
        and text.startswith(("FeasiblePlan(", "Plan(", type(VALUES[name]).__name__))
    )


def test_a_repr_says_what_was_planned():
    assert repr(VALUES["plan"]).startswith(
        "FeasiblePlan(caution: 32 GPUs, 32 × 1 × 32 = 1,024 samples, lr=0.4, 882 steps, policy='grow'; Recipe(effective_batch=256"
    )
    assert repr(VALUES["never"]).startswith("Plan(infeasible: 7 GPUs; Recipe(")
    long = ib.Recipe(
        effective_batch=8, lr=0.1, schedule=f"multistep({', '.join(f'{n}st' for n in range(1, 200))})"
    )
    assert len(repr(ib.plan(long, 8))) < 600
    assert eval(repr(RECIPE), {"Recipe": ib.Recipe}) == RECIPE


@pytest.mark.parametrize("name", VALUES)
def test_a_cell_is_html_without_markup_of_others(name):
    pytest.importorskip("jinja2", reason="cells come with the extra 'report'")
    text = VALUES[name]._repr_html_()
    parsed = Parsed(text)
    assert not parsed.open and not {"script", "img", "link", "style"} & {tag for tag, _ in parsed.tags}
    assert all(not key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    assert all(it.get("scope") for it in parsed.of("th"))


def test_a_plan_in_a_cell_reads_in_five_lines():
    pytest.importorskip("jinja2", reason="cells come with the extra 'report'")
    parsed = Parsed(ib.plan(RECIPE, 64)._repr_html_())
    lines = parsed.texts["bdi"][: 1 + 4]
    assert len(parsed.of("div")) <= 1 + 5 and lines[0].startswith("64 GPUs: micro-batch 4 × accumulation 1")
    assert "Unchanged: batch size" in lines[1]
    assert parsed.texts["summary"] == ["1 warning"]
    menu = Parsed(VALUES["never"]._repr_html_()).text("bdi")
    assert (
        menu.startswith("Cannot train on 7 GPUs as asked\n256 samples cannot be split")
        and "batch_tolerance=" in menu
        and "--" not in menu
    )


def test_what_would_work_can_be_copied_from_a_cell():
    pytest.importorskip("jinja2", reason="cells come with the extra 'report'")
    cells = Parsed(VALUES["never"]._repr_html_()).texts["bdi"]
    ways = [cell for cell in cells if "=" in cell]  # each in a <bdi> of its cell
    assert len(ways) == len(VALUES["never"].options) > 3
    for way, option in zip(ways, VALUES["never"].options, strict=True):
        keywords = {"cluster": 7} | eval(f"dict({way})", {"Cluster": ib.Cluster})
        assert ib.plan(RECIPE, **keywords).layout == option.layout


@pytest.mark.parametrize("profile", [None, timed_profile()])
def test_a_cell_says_how_long_the_run_is(profile):
    pytest.importorskip("jinja2", reason="cells come with the extra 'report'")
    lines = Parsed(ib.plan(RECIPE, 32, policy="grow", profile=profile)._repr_html_()).texts["bdi"]
    assert any(line.startswith("The run: 882 steps") for line in lines[:5])


def test_a_forecast_without_an_error_claims_none():
    guess = ib.Profile.estimate(
        parameters=100_000_000, flops_per_sample=1e10, gpu_tflops=100, intra_gb_s=200, inter_gb_s=20
    )
    text = ib.plan(RECIPE, 8, profile=guess).explain()
    assert "A step takes " in text and "±" not in text


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("plan", 1, ("lr", "micro_batch")), ("recipe", 1, ("lr", "duration")), ("sweep", 39, ("gpus", "hours")),
     ("laws", None, ("quantity", "value")), ("report", len(HOSTILE), ("proof", "verdict"))],
)  # fmt: skip
def test_figures_are_a_data_frame(name, rows, columns):
    pytest.importorskip("pandas", reason="data frames are pandas'")
    frame = VALUES[name].to_pandas()
    laws = VALUES["laws"]
    every = (*laws.lr_laws, *laws.batch_laws, *laws.critical_laws)
    assert len(frame) == (len(every) if rows is None else rows) and set(columns) <= set(frame.columns)


def test_frames_have_the_figures():
    pytest.importorskip("pandas", reason="data frames are pandas'")
    elastic = VALUES["elastic"]
    frame = elastic.to_pandas()
    assert tuple(frame["gpus"]) == elastic.gpus and tuple(frame["accumulation"]) == elastic.accumulation
    curve = VALUES["plan"].schedule.to_pandas()
    assert curve["lr"].max() == pytest.approx(0.4, rel=0.01) and curve["step"].iloc[-1] == 882
    sweep = VALUES["sweep"].to_pandas()
    assert sweep["status"].tolist()[0] in ("ok", "caution") and sweep["hours"].notna().sum() == 9


@pytest.mark.parametrize("name", ["plan", "sweep", "elastic", "laws"])
def test_values_have_a_chart(name, tmp_path):
    pytest.importorskip("altair", reason="charts come with the extra 'report'")
    pytest.importorskip("vl_convert", reason="charts come with the extra 'report'")
    VALUES[name].plot().save(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_schedule_has_a_chart_to_its_end():
    pytest.importorskip("altair", reason="charts come with the extra 'report'")
    pytest.importorskip("vl_convert", reason="charts come with the extra 'report'")
    points = VALUES["plan"].schedule.plot().to_dict()["data"]["values"]
    assert points[-1]["step"] == 882


def test_small_learning_rates_are_written_shortly(tmp_path):
    pytest.importorskip("altair", reason="charts come with the extra 'report'")
    pytest.importorskip("vl_convert", reason="charts come with the extra 'report'")
    ib.schedules.cosine(3e-4, 9_000, end=3e-5).plot().save(tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert ">2e-4<" in text and ">0<" in text and "0.0002<" not in text


def test_what_cannot_be_drawn_says_why():
    pytest.importorskip("altair", reason="charts come with the extra 'report'")
    pytest.importorskip("vl_convert", reason="charts come with the extra 'report'")
    with pytest.raises(ib.InputError, match="nothing to draw: it is infeasible"):
        VALUES["never"].plot()
    with pytest.raises(ib.InputError, match="nothing to draw: the sweep has no times"):
        ib.sweep(RECIPE, [8]).plot()


def test_without_the_extras_a_cell_is_text():
    program = """
import sys
for name in ("jinja2", "markupsafe", "altair", "vl_convert", "pandas"):
    sys.modules[name] = None
import isobatch as ib
plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="100st"), 8)
assert plan._repr_html_() is None and plan.recipe._repr_html_() is None and plan.schedule._repr_html_().startswith("<svg")
for ask, said in ((plan.plot, "pip install 'isobatch[report]'"), (plan.to_pandas, "pip install pandas")):
    try:
        ask()
    except ib.InputError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
