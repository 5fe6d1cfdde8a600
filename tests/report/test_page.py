"""The page of each kind of input: well formed, self-contained, escaped, and with the figures of its input."""

import re
import sys

import msgspec
import pytest

import isobatch as ib
from hostile import HOSTILE
from isobatch.cli import main
from isobatch.report.page import html
from isobatch.report.pages import page_of_file, page_of_value, write
from isobatch.words import figure
from report.pages import (
    Parsed,
    coinciding_fleet,
    columns_of,
    comparison,
    hostile_fleet,
    split_result,
    timed_profile,
    validation,
    wide_fleet,
)

RECIPE = ib.Recipe.from_gpus(
    gpus=8, batch_per_gpu=32, lr=0.1, optimizer="sgd", dataset_size=100_000, duration="9ep", warmup="1ep"
)


def shown(value, **keywords):
    text = html(page_of_value(value, **keywords))
    parsed = Parsed(text)
    assert not parsed.open
    self_contained(text, parsed)
    readable(parsed)
    return text, parsed


def self_contained(text, parsed):
    """Nothing is fetched: no address is in an attribute that loads or links, and the page forbids it, too."""
    assert len(text.encode()) < 5_000_000
    for tag, attributes in parsed.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"<{tag} {name}>"
            if name in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
                assert value.startswith("#"), f'<{tag} {name}="{value}">'
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    policy = next(
        item["content"] for item in parsed.of("meta") if item.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")


def readable(parsed):
    """Headings in order, a caption for each table, a name for each chart, a language."""
    assert parsed.of("html")[0]["lang"] == "en" and parsed.texts["title"]
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and set(levels[1:]) == {2}
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("table") == tags.count("caption") > 0
    assert all(item.get("scope") in ("col", "row") for item in parsed.of("th"))
    for chart in parsed.of("svg"):
        assert chart["role"] == "img" and len(chart["aria-label"]) > 30
    names = [item["id"] for _, item in parsed.tags if "id" in item]
    assert len(names) == len(set(names))


def test_hostile_texts_stay_texts():
    text, parsed = shown(hostile_fleet(), title=HOSTILE[0])
    tags = {tag for tag, _ in parsed.tags}
    assert "img" not in tags and len(parsed.of("script")) == 1
    assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text and "\u2028" not in text
    output = parsed.text("bdi")
    assert all(text in output for text in (HOSTILE[0], HOSTILE[1], HOSTILE[7], "\\u202egnp.exe"))
    cells = {cell for column in columns_of(parsed).values() for cell in column}
    assert HOSTILE[0] in cells and "a\\x00b\\x1b[2J\\nc" in cells
    assert all(cell.isprintable() for cell in cells)


def test_a_fleet_says_how_many_and_why_not_the_others():
    table = hostile_fleet()
    text, parsed = shown(table)
    many = len(HOSTILE)
    assert f"{many} of {3 * many} rows can be planned" in text
    reason = ib.Reason.NOT_DIVISIBLE
    assert f"Most often in the way: {reason.text} ({2 * many} rows)." in parsed.text("bdi")
    statuses = columns_of(parsed)["status"]
    assert statuses == ["infeasible" if gpus < 8 else statuses[0] for gpus in table["world_size"].to_pylist()]
    assert parsed.text("p").count("the plans were made without a profile") == 0
    assert "unknown" in parsed.text("bdi")


def test_a_fleet_names_the_jobs_without_a_plan_and_the_profile_of_the_others(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    sized = msgspec.structs.replace(timed_profile(), parameters=13 * 10**9, seq_len=4096)
    sized.save("profile.json")
    jobs = ["job,effective_batch,lr,duration,parameters,seq_len", "large,64,0.1,90st,13000000000,4096"]
    jobs += ["small,64,0.1,90st,1000000000,4096", "wrong,64,0.1,3 parsecs,,", "odd,7,0.1,90st,,"]
    (tmp_path / "jobs.csv").write_text("\n".join(jobs))
    (tmp_path / "clusters.csv").write_text("cluster,gpus_per_node,price_per_gpu_hour\na,8,2\nb,4,2\n")
    request = ["fleet", "jobs.csv", "clusters.csv", "--profile", "profile.json"]
    output = ran([*request, "-o", "plans.parquet"])
    assert "--profile is of parameters 13,000,000,000, seq_len 4,096: jobs of another size" in output.err
    page = page_of_file("plans.parquet")
    assert page.title.startswith("2 of 4 jobs can be planned, 1 of them for $")
    assert "2 rows have no times by the profile, which is of parameters 13,000,000,000" in page.lead
    assert "Each job is planned as if it had its cluster to itself" in page.lead
    assert next(item for item in page.headlines if item.label == "jobs with a plan").value == "2"
    (section,) = (each for each in page.sections if each.title == "Jobs without a plan")
    rows = [(reason, many, names) for reason, many, _, names in section.tables[0].rows]
    assert section.folded and rows == [("invalid_length", "1", "wrong"), ("not_divisible", "1", "odd")]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"effective_batch": [7], "duration": ["90st"]}, "no row has a plan"),
        ({"effective_batch": [64]}, "the jobs have no duration"),
        (
            {"effective_batch": [64], "parameters": [10**9]},
            "the profile is of another GPU type, model or sequence length",
        ),
    ],
)
def test_unknown_gpu_hours_have_their_reason(columns, why):
    sized = msgspec.structs.replace(timed_profile(), parameters=13 * 10**9)
    page = page_of_value(ib.plan_fleet({"lr": [0.1], **columns}, [8], profile=sized))
    (card,) = (item for item in page.headlines if item.label == "GPU-hours")
    assert card.value == "unknown" and card.note.startswith(why)


def test_a_fleet_with_times_has_the_knee_and_the_deadline():
    table = wide_fleet(5, profile=timed_profile())
    _, parsed = shown(table, deadline=2.0, currency="€")
    labels = [item["aria-label"].split(".")[0] for item in parsed.of("svg")]
    assert labels[:2] == ["Hours over GPUs", "Cost over GPUs"]
    output = parsed.text()
    assert "knee" in output and "deadline met" in output and "€" in output
    hours, gpus = table["hours"], table["world_size"]
    least = sum(
        min(h * g for h, g in zip(hours[at : at + 10], gpus[at : at + 10], strict=True) if h == h)
        for at in range(0, 50, 10)
    )
    assert figure(least) in parsed.text("bdi")


def test_below_a_chart_each_job_has_its_own_ends():
    jobs = {
        "job": ["long", "short"],
        "effective_batch": [256] * 2,
        "lr": [0.1] * 2,
        "duration": ["9000st", "9st"],
    }
    # The long job runs on 8 GPUs only, the short one on 8 and 16.
    pairs = {"job": ["long", "short", "short"], "cluster": [0, 0, 1]}
    clusters = [ib.Cluster(nodes=nodes, gpus_per_node=8) for nodes in (1, 2)]
    table = ib.plan_fleet(jobs, clusters, pairs=pairs, profile=timed_profile())
    _, parsed = shown(table)
    long, short, more = (figure(hours) for hours in table["hours"])
    (hours,) = (item["aria-label"] for item in parsed.of("svg") if item["aria-label"].startswith("Hours"))
    assert f"long {long} on 8 GPUs; short {short} on 8 GPUs, {more} on 16 GPUs." in hours


def test_equal_lines_are_drawn_once_in_the_colours_of_the_legend():
    jobs = {"job": ["a and b", "c", "d"], "effective_batch": [512] * 3, "lr": [0.1] * 3}
    jobs |= {"duration": ["9000st", "9000st", "90st"]}
    table = ib.plan_fleet(jobs, [8, 16, 32], profile=timed_profile())
    hours = page_of_value(table).drawings[0]
    assert "the 2 of" not in hours.described and "(3 lines, equal ones drawn as one)" in hours.described
    layers = hours.chart.to_dict()["layer"]
    names = {point["job"] for layer in layers for point in layer["data"]["values"] if "text" not in point}
    assert names == {"a and b and 1 more", "d"}
    assert any(layer["data"]["values"][0].get("text") == "knee" for layer in layers)
    legends = [layer["encoding"]["color"]["legend"] for layer in layers if "color" in layer["encoding"]]
    assert legends and all(legend["symbolOpacity"] == 1 for legend in legends)


def test_a_model_with_profiles_of_two_gpu_types_is_named_once(tmp_path, monkeypatch, ran):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text(
        "job,effective_batch,lr,duration,parameters\na,64,0.1,90st,2000000000\n"
    )
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpu\na,1,A100\nb,1,H100\nc,2,H100\n")
    words = ["fleet", "jobs.csv", "clusters.csv", "-o", "plans.parquet"]
    for gpu in ("A100", "H100"):
        msgspec.structs.replace(timed_profile(), gpu=gpu, parameters=10**9).save(f"{gpu}.json")
        words += ["--profile", f"{gpu}.json"]
    noted = ran(words).err
    lead = page_of_file("plans.parquet").lead
    assert lead.count("parameters 1,000,000,000") == noted.count("parameters 1,000,000,000") == 1


def test_a_page_says_that_times_are_estimates_and_how_wide():
    import numpy as np

    guess = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=312, intra_gb_s=240)
    stated, guess = guess, msgspec.structs.replace(guess, scatter=0.25)
    recipe = ib.Recipe(effective_batch=256, lr=0.1, duration="100st")
    table = ib.plan_fleet([recipe], [8, 7], profile=guess, max_micro_batch=32)
    share = np.nanmax(table["step_error"] / table["step_seconds"])
    _, parsed = shown(table)
    assert f"Hours and cost are estimates, not measured: up to ±{figure(share * 100)} %" in parsed.text()
    _, parsed = shown(ib.counts(recipe, [4, 8], profile=guess, max_micro_batch=32))
    assert "Hours and cost are estimates, not measured: up to ±25 % (95 % interval)." in parsed.text()
    _, parsed = shown(ib.counts(recipe, [4, 8], profile=stated, max_micro_batch=32))
    assert "Hours and cost are estimates, not measured: no range is known." in parsed.text()
    _, parsed = shown(ib.counts(recipe, [4, 8], profile=timed_profile()))
    assert "estimates" not in parsed.text()


def test_of_many_rows_the_first_are_shown_and_the_others_counted(tmp_path):
    table = wide_fleet(2_000, profile=timed_profile())
    text, parsed = shown(table)
    assert len(text) < 2_000_000
    columns = columns_of(parsed)
    assert {len(values) for values in columns.values()} == {1_000}
    assert columns["job"] == table["job"][:1_000].tolist()
    batches = [f"{batch:,}" if batch > 0 else "" for batch in table["effective_batch"][:1_000].tolist()]
    assert columns["effective_batch"] == batches
    assert "The first 1,000 of 20,000 rows" in text
    assert "19,000 more are not shown: all are in the table that this page was made of." in text
    # Too many for a map.
    assert "Rows by cluster and status" in text and "Status of each job" not in text


def test_a_plan_has_old_beside_new_and_its_curves():
    plan = ib.plan(RECIPE, 32, policy="grow", profile=timed_profile())
    text, parsed = shown(plan)
    labels = [item["aria-label"].split(".")[0] for item in parsed.of("svg")]
    assert labels == [f"Learning rate over {item}" for item in ("optimizer steps", "samples")]
    assert "as tuned" in text and "1,024" in parsed.text("bdi") and "256" in parsed.text("bdi")
    assert "Learning rate 0.1 → 0.4 by rule linear for sgd" in parsed.text("bdi")


def test_a_ramp_has_its_stages():
    plan = ib.plan(msgspec.structs.replace(RECIPE, ramp="64 64 10000"), 16)
    _, parsed = shown(plan)
    label = parsed.of("svg")[-1]["aria-label"]
    assert label.startswith("Samples per step. Samples per step in 4 stages")


def test_a_plan_that_cannot_be_has_its_menu():
    _, parsed = shown(ib.plan(RECIPE, 7))
    output = parsed.text("bdi")
    assert "Cannot train on 7 GPUs as asked:" in output and "split=" in output


def test_a_validation_has_its_verdicts_and_its_all_reduce():
    text, parsed = shown(validation())
    assert "img" not in {tag for tag, _ in parsed.tags} and len(parsed.of("script")) == 1
    assert "1 of 2 proofs passed" in text and "2/64" in text
    assert HOSTILE[1] in parsed.text("bdi")
    assert parsed.of("svg")[0]["aria-label"].startswith("All-reduce by size")


def test_the_command_takes_all_of_them(tmp_path, capsys):
    import pyarrow.parquet as pq

    pq.write_table(hostile_fleet(), tmp_path / "plans.parquet")
    ib.plan(RECIPE, 16).save(tmp_path / "plan.json")
    validation().save(tmp_path / "report.json")
    for name in ("plans.parquet", "plan.json", "report.json"):
        output = tmp_path / f"{name}.html"
        assert main(["report", str(tmp_path / name), "-o", str(output)]) == 0
        parsed = Parsed(output.read_text(encoding="utf-8"))
        assert not parsed.open and f"{name}.html: 0." in capsys.readouterr().err
    assert parsed.texts["title"] == ["Validation: 1 of 2 proofs passed"]
    for suffix, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        output = tmp_path / f"plan.{suffix}"
        assert main(["report", str(tmp_path / "plan.json"), "-o", str(output)]) == 0
        assert output.read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan.json"], "-o is missing: name the page"),
        (["plan.json", "-o", "a.pdf"], "cannot tell the format: use .html, .svg or .png"),
        (["no.json", "-o", "a.html"], "no.json"),
        (["jobs.csv", "-o", "a.html"], "has no column 'status': it does not hold a fleet's plans"),
        (
            ["odd.json", "-o", "a.html"],
            "schema must be that of a plan, a validation or a comparison of splits",
        ),
        (["jobs.csv", "--clusters", "c.csv", "-o", "a.html"], "--clusters needs --to"),
        (["jobs.csv", "--deadline-hours", "-1", "-o", "a.html"], "--deadline-hours must be above 0"),
        (["never.json", "-o", "a.png"], "there is nothing to draw"),
    ],
)
def test_wrong_use(tmp_path, monkeypatch, ran, words, message):
    monkeypatch.chdir(tmp_path)
    ib.plan(RECIPE, 16).save("plan.json")
    ib.plan(RECIPE, 7).save("never.json")
    (tmp_path / "jobs.csv").write_text("job,lr\na,0.1\n")
    (tmp_path / "odd.json").write_text("{}")
    output = ran(["report", *words], 2)
    assert message in output.err and "Traceback" not in output.err
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("suffix", ["html", "svg", "json"])
def test_the_command_of_a_comparison_writes_each_form_of_its_answer(suffix, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch", reason="the command asks scripts of torch")
    monkeypatch.setattr("isobatch.cli.same.same", lambda *_, **__: comparison())
    path = tmp_path / f"answer.{suffix}"
    assert main(["same", "-o", str(path), "--", "python", "train.py"]) == 1
    text = path.read_text(encoding="utf-8")
    assert {"html": "<!doctype html>", "svg": "<svg", "json": "{"}[suffix] in text[:200].lower()
    assert capsys.readouterr().out.startswith("Not the same training")


def test_an_answer_of_no_format_is_refused_before_the_question(monkeypatch, capsys):
    pytest.importorskip("torch", reason="the command asks scripts of torch")
    monkeypatch.setattr("isobatch.cli.same.same", lambda *_, **__: pytest.fail("the question was asked"))
    assert main(["same", "-o", "answer.txt", "--", "python", "train.py"]) == 2
    assert "cannot tell the format: use .html, .svg or .png" in capsys.readouterr().err


def test_a_comparison_names_each_cause_once_with_its_splits(tmp_path):
    comparison().save(tmp_path / "same.json")
    text, parsed = shown(comparison())
    assert text == html(page_of_file(str(tmp_path / "same.json")))
    verdict = "Not the same training: 2 of 3 splits differ from one pass over the batch (1×1×2)"
    assert parsed.texts["title"] == [verdict]
    (causes,) = page_of_value(comparison()).sections[0].tables
    assert causes.rows == [("a sum", "2×1×1, 1×2×1", "at 2×1×1, a sum in 2x1x1", "mend a sum")]
    # Splits of the same weights share their bars, and a telephone shows them whole.
    rows = page_of_value(comparison()).drawings[0].chart.to_dict()["vconcat"]
    assert [row["title"] for row in rows] == ["1×2×1, 2×1×1", "1×1×2"]
    assert int(parsed.of("svg")[0]["width"]) < 370
    assert "4×1×1 was not compared: two GPUs." in parsed.text("bdi")
    healthy = page_of_value(comparison(split_result("2x1x1")))
    assert healthy.title == "The same training at 2 splits of a batch of 2" and healthy.status == "pass"


def test_a_split_without_weights_is_said_to_be_the_same_where_it_is():
    results = split_result("2x1x1", weights=()), split_result("1x2x1", "a sum", difference=1.0, weights=())
    text = shown(comparison(*results))[1].text("bdi")
    assert "2×1×1: the same; too few parameters, or too large a step, to tell each sample's weight." in text
    assert "No weights explain the gradient of 1×2×1." in text


def test_a_note_warns_of_nothing_that_the_move_did():
    """The tuned run has a smaller last step, too; the missing warmup is the larger batch's own."""
    recipe = ib.Recipe(effective_batch=128, lr=0.1, gpus=4, micro_batch=8, dataset_size=1000, duration="9ep")
    page = page_of_value(ib.plan(recipe, 4))
    assert (page.status, page.sections[-1].points) == ("note", [cited(ib.Reason.UNEVEN_TAIL)])
    page = page_of_value(ib.plan(recipe, 8, policy="grow"))
    assert page.status == "caution" and cited(ib.Reason.NO_WARMUP) in page.sections[0].points
    assert cited(ib.Reason.UNEVEN_TAIL) in page.sections[-1].points
    for policy, level in (("keep", "note"), ("grow", "caution")):
        table = ib.plan_fleet([recipe], [4, 8], policy=policy, max_micro_batch=8)
        assert columns_of(shown(table)[1])["status"] == ["note", level]


def cited(reason):
    from isobatch.words import cited

    return cited(reason.text, reason.source)


def test_clusters_that_coincide_over_gpus_are_bars():
    page = page_of_value(coinciding_fleet())
    hours, cost = page.drawings[:2]
    assert (hours.title, cost.title) == ("Hours by cluster", "Cost by cluster")
    first = cost.chart.to_dict()["vconcat"][0]["data"]["values"]
    assert [point["cluster"] for point in first] == list("dbacef")  # the cheapest first
    assert page_of_value(wide_fleet(5, profile=timed_profile())).drawings[0].title == "Hours over GPUs"


def test_the_heading_is_the_answer():
    table = wide_fleet(5, profile=timed_profile())
    headings = {each.label: each.value for each in page_of_value(table, deadline=2.0).headlines}
    title = page_of_value(table, deadline=2.0).title
    met, cost = headings["deadline met"], headings["cost"]
    assert title == f"5 of 5 jobs can be planned, {met} within the deadline, for {cost}"
    assert page_of_value(hostile_fleet()).title == f"{len(HOSTILE)} of {len(HOSTILE)} jobs can be planned"
    never = page_of_value(ib.plan(RECIPE, 7))
    assert never.title.endswith("as asked: 256 samples cannot be split evenly over 7 replicas")
    assert [item.title for item in never.sections] == ["What would work"]
    grown = page_of_value(ib.plan(RECIPE, 64, policy="grow"))
    assert grown.sections[0].title == "Warnings" and grown.sections[0].points
    (changed,), (same,) = grown.sections[1].tables, grown.sections[-1].tables
    assert grown.sections[-1].folded
    assert ("batch, samples per step", "2,048", "256") in changed.rows
    assert all(now != was for _, now, was in changed.rows) and all(now == was for _, now, was in same.rows)


def test_in_python(tmp_path):
    write(ib.plan(RECIPE, 16), tmp_path / "plan.html", title="My plan")
    assert Parsed((tmp_path / "plan.html").read_text(encoding="utf-8")).texts["title"] == ["My plan"]
    with pytest.raises(ib.InputError, match="must be a Plan, Counts, a Report, a Same or a table of plans"):
        write(7, tmp_path / "a.html")


@pytest.mark.parametrize("package", ["altair", "vl_convert", "jinja2"])
def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch, ran, package):
    ib.plan(RECIPE, 16).save(tmp_path / "plan.json")
    monkeypatch.setitem(sys.modules, package, None)
    output = ran(["report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "a.html")], 2)
    assert "pip install '.[report]'" in output.err


@pytest.mark.parametrize("estimated", [False, True])
def test_a_plan_says_whose_times_it_has_and_whether_they_were_measured(estimated):
    guess = ib.Profile.estimate(parameters=10**8, flops_per_sample=1e12, gpu_tflops=312, intra_gb_s=240)
    profile = guess if estimated else timed_profile()
    recipe = msgspec.structs.replace(RECIPE, parameters=10**8, duration="90st")
    lead = page_of_value(ib.plan(recipe, ib.Cluster(gpus_per_node=8, gpu="H100"), profile=profile)).lead
    sure = "an estimate, measured nowhere" if estimated else "measured"
    assert lead.endswith(f" Times of 100,000,000 parameters on H100: {sure}.")
