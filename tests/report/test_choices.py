"""The comparisons of a page: jobs on all their clusters, each GPU type by itself, always the same jobs."""

import json

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.fleet.results import of_metadata
from isobatch.report.fleet_page import fleet_page
from isobatch.report.page import html
from isobatch.report.table import plans_of, rows_of
from isobatch.report.times import knees
from isobatch.words import figure
from report.pages import Parsed, columns_of, timed_profile

pa = pytest.importorskip("pyarrow")


def made(table, select, top=1, types=None):
    output = {"isobatch.select": json.dumps({"by": select, "top": top})}
    return table.replace_schema_metadata(output | {"isobatch.gpu_types": json.dumps(types or {})})


def of_rows(**columns):
    many = len(columns["hours"])
    gpus = columns["world_size"]
    work = [a * b for a, b in zip(columns["hours"], gpus, strict=True)]
    return pa.table({"status": ["ok"] * many, "reasons": [""] * many, "gpu_hours": work, **columns})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Plans of three jobs on two types of GPUs, whole and by --select, as the command writes them."""
    folder = tmp_path_factory.mktemp("choices")
    jobs = ["job,effective_batch,lr,duration", "a,256,0.1,9000st", "b,512,0.1,900st", "c,64,0.1,9000st"]
    clusters = ["cluster,nodes,gpus_per_node,gpu,price_per_gpu_hour"]
    for gpu, price in (("H100", 4), ("A100", 1)):
        clusters += [f"{nodes}x{gpu},{nodes},4,{gpu},{price}" for nodes in (1, 2, 4)]
    (folder / "jobs.csv").write_text("\n".join(jobs))
    (folder / "clusters.csv").write_text("\n".join(clusters))
    timed_profile().save(folder / "profile.json")
    words = ["fleet", *(str(folder / name) for name in ("jobs.csv", "clusters.csv"))]
    for name, options in (
        ("all.parquet", []),
        ("best.parquet", ["--select", "cheapest"]),
        ("best.csv", ["--select", "cheapest"]),
        ("three.parquet", ["--select", "fastest", "--top", "3"]),
    ):
        output = ["--profile", str(folder / "profile.json"), "-o", str(folder / name)]
        assert main([*words, *options, *output]) == 0
    return folder


def page(files, name):
    main(["report", str(files / name), "-o", str(files / "page.html")])
    return Parsed((files / "page.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["best.parquet", "best.csv", "three.parquet"])
def test_chosen_rows_are_not_compared(files, name):
    output = page(files, name)
    text = output.text("bdi")
    assert "knee" not in output.text("dt", "th", "caption") and "Where each job is fastest" not in text
    assert not [item for item in output.of("svg") if "over GPUs" in item["aria-label"]]
    assert "A knee, and where a job is fastest or cheapest, need a table of all rows" in text
    chosen = "--select fastest kept 3 rows" if name == "three.parquet" else "--select cheapest kept 1 row"
    assert (chosen in text) == (name != "best.csv")


def test_the_figures_of_chosen_rows_are_theirs(files):
    import pyarrow.parquet as pq

    table = pq.read_table(files / "three.parquet")
    best = [table["job"].to_pylist().index(job) for job in "abc"]
    figures = {item.label: item for item in fleet_page(table).headlines}
    spent = sum(table["gpu_hours"][row].as_py() for row in best)
    assert figures["GPU-hours"].value == figure(spent)
    assert figures["GPU-hours"].note == "the best row of each job"


def test_all_rows_are_compared_by_cluster_and_type(files):
    output = page(files, "all.parquet")
    text = output.text("bdi")
    # An hour on an H100 is no hour on an A100.
    assert "knee" not in output.text("dt", "th", "caption")
    assert "GPUs on 4xH100" in text and "GPUs on 1xA100" in text and "cheapest" in text
    labels = [item["aria-label"] for item in output.of("svg")]
    (hours,) = (label for label in labels if label.startswith("Hours over"))
    assert "a line for each job and GPU type" in hours and "a on H100" in hours


def test_rows_without_a_cost_are_left_out_and_counted():
    unknown = float("nan")
    hours, cost = [4.0, 2.0, unknown, unknown], [9.0] + 3 * [unknown]
    table = of_rows(job=["a"] * 4, world_size=[8, 16, 32, 64], hours=hours, cost=cost)
    table = table.set_column(0, "status", pa.array(["ok", "ok", "ok", "infeasible"]))
    notes = {figure.label: figure.note for figure in fleet_page(table).headlines}
    assert notes["cost"] == "each job where it is cheapest; 2 rows not compared: cost not known"
    assert notes["GPU-hours"] == "each job where it needs the fewest; 1 row not compared: gpu-hours not known"
    priced = of_rows(job=["a"] * 2, world_size=[8, 16], hours=[4.0, 2.0], cost=[9.0, 8.0])
    notes = {figure.label: figure.note for figure in fleet_page(priced).headlines}
    assert notes["cost"] == "each job where it is cheapest"


def test_a_file_says_how_it_was_made(files):
    import pyarrow.parquet as pq

    result = of_metadata(pq.read_schema(files / "three.parquet").metadata)
    assert (result.select, result.top, result.settings["policy"]) == ("fastest", 3, "keep")
    assert result.gpu_types == {f"{n}x{gpu}": gpu for gpu in ("H100", "A100") for n in (1, 2, 4)}
    assert of_metadata(pq.read_schema(files / "all.parquet").metadata).select == "all"


def test_jobs_on_one_cluster_have_no_knee():
    jobs = {"job": ["a", "b"], "effective_batch": [64, 128], "lr": [0.1] * 2, "duration": ["9st"] * 2}
    shown = fleet_page(ib.plan_fleet(jobs, [8], profile=timed_profile()))
    assert "knee" not in [item.label for item in shown.headlines]
    assert "Each job has one row" in shown.lead
    assert [section.title for section in shown.sections] == ["Where each job is", "Reasons", "All rows"]


def test_one_type_has_a_knee_and_two_have_none():
    clusters, gpus = ["h8", "h16", "a8", "a16"], [8, 16, 8, 16]
    table = of_rows(job=["a"] * 4, cluster=clusters, world_size=gpus, hours=[4.0, 3.5, 9.0, 4.0])
    assert knees(plans_of(made(table, "all", types={"h8": "H", "h16": "H", "a8": "A", "a16": "A"}))) == {}
    assert knees(plans_of(made(table, "all"))) == {0: 0}


def test_of_many_jobs_those_with_most_gpu_hours_are_drawn():
    rows = [(f"j{n}", gpus, (n + 1) / gpus) for n in range(9) for gpus in (1, 2, 4)]
    names, gpus, hours = (list(each) for each in zip(*rows, strict=True))
    table = of_rows(job=names, cluster=[f"c{n}" for n in gpus], world_size=gpus, hours=hours)
    drawing = fleet_page(made(table, "all")).drawings[0]
    assert "the 6 of 9 that take the most GPU-hours; j8 9 on 1 GPU, 2.25 on 4 GPUs" in drawing.described
    points = drawing.chart.to_dict()["layer"][0]["data"]["values"]
    assert list(dict.fromkeys(point["job"] for point in points)) == [f"j{n}" for n in range(8, 2, -1)]


def test_figures_are_rounded_once():
    hours = [0.123537, 0.1235, 12.345, 98_765.4, 1e-7, 1234.5]
    table = of_rows(job=list("abcdef"), world_size=[8] * 6, hours=hours)
    assert columns_of(Parsed(html(fleet_page(table))))["hours"] == [figure(value) for value in hours]


def test_a_status_filter_needs_the_statuses():
    from isobatch.report.page import HtmlPage, Section

    def shown(table):
        return html(HtmlPage("t", "", [], [Section("All rows", tables=[table])]))

    rows = rows_of(plans_of(of_rows(job=["a"], world_size=[8], hours=[1.0])), "one row")
    without = rows._replace(columns={f"a{n}": "text" for n in range(len(rows.columns))})
    assert "<label>Status" in shown(rows) and "<label hidden>Status" in shown(without)


def test_plans_without_their_reasons_are_plans():
    table = of_rows(job=["a"], world_size=[8], hours=[1.0]).drop(["reasons"])
    with pytest.raises(
        ib.InputError, match="has no column 'reasons', which a page needs: plan again with reasons among"
    ):
        plans_of(table)
    with pytest.raises(ib.InputError, match="it does not hold a fleet's plans"):
        plans_of(pa.table({"job": ["a"], "effective_batch": [8], "lr": [0.1]}))


def test_why_a_place_cannot_be_written(tmp_path, monkeypatch):
    from pathlib import Path

    from isobatch.files.whole import check_place

    with pytest.raises(ib.InputError, match="cannot be written: it is a folder"):
        check_place(tmp_path)

    def refuse(self, **_):
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ib.InputError, match=r"a\.html: cannot be written: Read-only file system"):
        check_place(tmp_path / "a.html")
