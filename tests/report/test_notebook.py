"""The view in a notebook: a few lines, a small table, a chart; and a repr that fits a screen."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import isobatch as ib
from hostile import HOSTILE
from isobatch.report.notebook import TYPES, html_of
from report.pages import Parsed, timed_profile, validation

RECIPE = ib.Recipe.from_gpus(
    gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", dataset_size=100_000, duration="9ep", warmup="1ep"
)


VALUES = {
    "plan": ib.plan(RECIPE, 32, policy="grow"),
    "never": ib.plan(RECIPE, 7),
    "counts": ib.counts(RECIPE, range(1, 257), profile=timed_profile()),
    "laws": ib.laws(parameters=1e9, tokens=1e11),
    "report": validation(*HOSTILE),
    "recipe": RECIPE,
    "rules": ib.rules(),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_repr_fits_a_screen(name):
    text = repr(VALUES[name])
    assert len(text) < 600 and "\n" not in text
    assert text.startswith(("FeasiblePlan(", "Plan(", type(VALUES[name]).__name__))


def test_a_repr_says_what_was_planned():
    split = "32 GPUs, 32 × 1 × 32 = 1,024 samples, lr=0.4, 882 steps, policy='grow'"
    assert repr(VALUES["plan"]).startswith(f"FeasiblePlan(caution: {split}; Recipe(effective_batch=256")
    assert repr(VALUES["never"]).startswith("Plan(infeasible: 7 GPUs; Recipe(")
    turns = ", ".join(f"{n}st" for n in range(1, 200))
    long = ib.Recipe(effective_batch=8, lr=0.1, schedule=f"multistep({turns})")
    assert len(repr(ib.plan(long, 8))) < 600
    assert eval(repr(RECIPE), {"Recipe": ib.Recipe}) == RECIPE


@pytest.mark.parametrize("name", VALUES)
def test_a_cell_is_html_without_markup_of_others(name):
    text = html_of(VALUES[name])
    parsed = Parsed(text)
    assert not parsed.open and not {"script", "img", "link", "style"} & {tag for tag, _ in parsed.tags}
    assert all(not key.startswith("on") for _, attributes in parsed.tags for key in attributes)
    assert all(item.get("scope") for item in parsed.of("th"))


def test_a_plan_in_a_cell_reads_in_five_lines():
    parsed = Parsed(html_of(ib.plan(RECIPE, 64)))
    lines = parsed.texts["bdi"][: 1 + 4]
    assert len(parsed.of("div")) <= 1 + 5 and lines[0].startswith("64 GPUs: micro-batch 4 × accumulation 1")
    assert "Unchanged: batch size" in lines[1]
    assert parsed.texts["summary"] == ["1 warning"]
    noted = ib.Recipe.from_gpus(
        gpus=1, batch_per_gpu=8, accumulation=2, lr=1, dataset_size=99, duration="9ep"
    )
    assert Parsed(html_of(ib.plan(noted, 1))).texts["summary"] == ["1 note"]
    menu = Parsed(html_of(VALUES["never"])).text("bdi")
    assert menu.startswith("Cannot train on 7 GPUs as asked\n256 samples cannot be split")
    assert "batch_tolerance=" in menu and "--" not in menu


def test_ways_out_can_be_copied_from_a_cell():
    cells = Parsed(html_of(VALUES["never"])).texts["bdi"]
    ways = [cell for cell in cells if "=" in cell]  # each in a <bdi> of its cell
    assert len(ways) == len(VALUES["never"].options) > 3
    for way, option in zip(ways, VALUES["never"].options, strict=True):
        keywords = {"cluster": 7} | eval(f"dict({way})", {"Cluster": ib.Cluster})
        assert ib.plan(RECIPE, **keywords).layout == option.layout


@pytest.mark.parametrize("profile", [None, timed_profile()])
def test_a_cell_says_how_long_the_run_is(profile):
    lines = Parsed(html_of(ib.plan(RECIPE, 32, policy="grow", profile=profile))).texts["bdi"]
    assert any(line.startswith("The run: 882 steps") for line in lines[:5])


def test_a_forecast_without_an_error_claims_none():
    guess = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e10, gpu_tflops=100, intra_gb_s=200)
    text = ib.plan(RECIPE, 8, profile=guess).explain()
    assert "A step takes " in text and "±" not in text


def test_a_cell_has_the_figures():
    counts = VALUES["counts"]
    cells = Parsed(html_of(counts)).texts["bdi"]
    assert f"GPU counts (the first 20 of {len(counts.columns['gpus'])})" in cells
    assert "hours" in cells and f"knee: {counts.knee} GPUs" in cells and "cost" not in cells


@pytest.mark.parametrize("name", ["plan", "counts", "rules"])
def test_values_have_a_chart(name, tmp_path):
    ib.plot(VALUES[name]).save(tmp_path / "chart.svg")
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8").startswith("<svg")


def test_without_a_profile_batch_and_learning_rate_are_drawn():
    for policy, names in (("grow", ("effective_batch", "lr")), ("keep", ("micro_batch", "accumulation"))):
        listing = ib.counts(RECIPE, [1, 8, 16], policy=policy)
        for layer, name in zip(ib.plot(listing).chart.to_dict()["vconcat"], names, strict=True):
            values = {row["gpus"]: row[name] for row in layer["data"]["values"]}
            assert values == {gpus: getattr(listing.plan_at(gpus), name) for gpus in (1, 8, 16)}


def test_the_rules_are_drawn_as_they_are_planned():
    rows = ib.plot(ib.rules()).chart.to_dict()["data"]["values"]
    factors = {(row["rule"], row["k"]): row["factor"] for row in rows}
    assert factors["linear", 4] == 4 and factors["sqrt", 4] == 2 and factors["none", 64] == 1
    # McCandlish et al., eq. 2.6, at a noise scale of 8 times the batch.
    assert factors["saturating", 8] == pytest.approx((1 + 8) / (1 + 1))
    assert {rule for rule, _ in factors} < {each.rule for each in ib.rules()}


def test_a_notebook_shows_each_of_our_types():
    formatters = pytest.importorskip("IPython.core.formatters", reason="notebooks come with IPython")
    shell = SimpleNamespace(display_formatter=formatters.DisplayFormatter())
    ib.load_ipython_extension(shell)
    shown = [*VALUES.values(), VALUES["plan"].schedule]
    kinds = (kind for value in shown for kind in type(value).__mro__)
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds} >= {*TYPES}
    for value in shown:
        data, _ = shell.display_formatter.format(value)
        assert data["text/html"] == html_of(value) and "text/plain" in data
    data, _ = shell.display_formatter.format(ib.plot(VALUES["plan"]))
    assert data["image/svg+xml"].startswith("<svg") and "text/html" not in data


@pytest.mark.parametrize("first", ["IPython", "isobatch"])
def test_importing_isobatch_in_a_notebook_registers_the_cells(first):
    pytest.importorskip("IPython", reason="notebooks come with IPython")
    program = f"""
import {first}
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "isobatch") if {first == "isobatch"} else shell.run_cell("import isobatch")
html = shell.display_formatter.formatters["text/html"]
assert ("isobatch.planning.plan", "Plan") in html.deferred_printers
import sys
assert "isobatch.report.cells" not in sys.modules
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_a_schedule_has_a_chart_to_its_end():
    points = ib.plot(VALUES["plan"].schedule).chart.to_dict()["data"]["values"]
    assert points[-1]["step"] == 882


def test_small_learning_rates_are_written_shortly():
    text = ib.plot(ib.schedules.cosine(3e-4, 9_000, end=3e-5))._repr_svg_()
    assert ">2e-4<" in text and ">0<" in text and "0.0002<" not in text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (VALUES["never"], "nothing to draw: Cannot train on 7 GPUs .* plan.options has what would work"),
        (ib.counts(RECIPE, [8]), "nothing to draw: pass counts with a profile="),
        (3, "value must be a Plan, a Recipe, a Schedule or its name, .* got a int"),
        ({"a": 1}, "has no column 'status': it does not hold a fleet's plans"),
        ({"status": 1, "reasons": 2}, "table must have columns of values of one length"),
        ([], "value must be a list of 1 to 6 plans, or of as many schedules, got 0"),
        ([VALUES["plan"], 3], r"value must be a list of 1 to 6 plans, .* got 2 \(FeasiblePlan, int\)"),
        ([VALUES["plan"], "cosine"], r"got 2 \(FeasiblePlan, str\)"),
        ([VALUES["plan"], VALUES["never"]], "nothing to draw: Cannot train on 7 GPUs"),
        (ib.Recipe(effective_batch=8, lr=0.1), "nothing to draw: the run has no length: set duration"),
        ("cosin", "did you mean 'cosine'"),
        ("plans.parquet", "plans.parquet: there is no such file"),
    ],
)
def test_values_without_a_chart_say_why(value, why):
    with pytest.raises(ib.InputError, match=why):
        ib.plot(value)


def test_steps_are_checked_before_the_curve():
    with pytest.raises(
        ib.InputError, match=r"steps must be a number above 0 and below 2\^53, got the text 'x'"
    ):
        ib.plot(VALUES["plan"].schedule, steps="x")


def test_a_recipe_plans_and_a_schedules_name_have_a_chart(tmp_path):
    assert ib.plot(RECIPE).chart.to_dict() == ib.plot(ib.plan(RECIPE, 8)).chart.to_dict()
    plans = (ib.plan(RECIPE, gpus, policy="grow") for gpus in (8, 16, 32))
    rows = ib.plot(plans).chart.to_dict()["data"]["values"]
    peaks = {run: max(row["lr"] for row in rows if row["run"] == run) for run in {row["run"] for row in rows}}
    assert peaks == pytest.approx({"1: 8 GPUs": 0.1, "2: 16 GPUs": 0.2, "3: 32 GPUs": 0.4})
    rows = ib.plot("linear", steps=10).chart.to_dict()["data"]["values"]
    assert (rows[0]["lr"], rows[-1]["step"], rows[-1]["lr"]) == (1.0, 10.0, 0.0)
    rows = ib.plot(["cosine", "linear"]).chart.to_dict()["data"]["values"]
    assert {row["run"] for row in rows} == {"1: cosine", "2: linear"}
    ib.plan(RECIPE, 8).save(tmp_path / "plan.json")
    RECIPE.save(tmp_path / "job.toml")
    for path in (tmp_path / "plan.json", str(tmp_path / "plan.json"), tmp_path / "job.toml"):
        assert ib.plot(path).chart.to_dict() == ib.plot(RECIPE).chart.to_dict()


def test_without_the_extras_a_cell_is_text():
    program = """
import sys
for name in ("jinja2", "markupsafe", "altair", "vl_convert", "pandas"):
    sys.modules[name] = None
import isobatch as ib
plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="100st"), 8)
from isobatch.report.notebook import html_of
assert html_of(plan) is None and html_of(plan.recipe) is None and html_of(plan.schedule) is None
try:
    ib.plot(plan)
except ib.InputError as error:
    assert "pip install '.[report]'" in str(error), error
else:
    raise AssertionError("no error")
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
