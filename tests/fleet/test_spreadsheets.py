"""Tables as spreadsheets and other programs write them: separators, encodings, blank rows, lists as texts."""

import json

import numpy as np
import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")

from isobatch.cli import fleet  # noqa: E402
from isobatch.files import read  # noqa: E402
from isobatch.files.read import read_table  # noqa: E402
from isobatch.fleet import stream  # noqa: E402
from isobatch.report.table import plans_of  # noqa: E402

HEADER, ROWS = "job,effective_batch,lr,name", ["a,256,0.1,größe", "b,480,6e-4,x"]


def written(tmp_path, lines, *, name="jobs.csv", sign=",", encoding="utf-8-sig"):
    path = tmp_path / name
    path.write_bytes("\r\n".join([*(line.replace(",", sign) for line in lines), ""]).encode(encoding))
    return path


@pytest.mark.parametrize("sign", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["jobs.csv", "jobs.tsv"])
def test_any_separator_is_read(tmp_path, sign, name):
    plans = ib.plan_fleet(written(tmp_path, [HEADER, *ROWS], sign=sign, name=name), [8])
    assert plans["job"].to_pylist() == ["a", "b"] and plans["lr"].to_pylist() == [0.1, 6e-4]
    assert plans["name"].to_pylist() == ["größe", "x"] and set(plans["status"].to_pylist()) == {"ok"}


def test_commas_separate_where_a_header_has_any(tmp_path):
    plans = ib.plan_fleet(written(tmp_path, ["job,effective_batch,lr,a;b", "a,256,0.1,1;2"]), [8])
    assert plans["a;b"].to_pylist() == ["1;2"]


def test_a_decimal_comma_is_named_and_not_guessed_at(tmp_path, ran):
    path = tmp_path / "jobs.csv"
    path.write_text("job;effective_batch;lr\na;256;0,1\nb;8.192;0.1\n")
    message = ran(["fleet", str(path), "--gpus", "8", "-o", str(tmp_path / "plans.csv")]).err
    assert "got the text '0,1'" in message and "2 rows: 0 feasible" in message


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("before", [0, 40_000])
def test_another_encoding_is_named(tmp_path, encoding, before):
    rows = [*(f"{n},256,0.1,x" for n in range(before)), *ROWS]
    with pytest.raises(ib.InputError, match=r"jobs\.csv: cannot be read: it is not UTF-8; save it as UTF-8"):
        ib.plan_fleet(written(tmp_path, [HEADER, *rows], encoding=encoding), [8])


def test_plans_in_tsv_are_explained(tmp_path, ran):
    jobs, plans = written(tmp_path, [HEADER, *ROWS]), str(tmp_path / "plans.tsv")
    assert main(["fleet", str(jobs), "--gpus", "8,7", "-o", plans]) == 0
    assert "job a, cluster 8, 8 GPUs: ok" in ran(["explain", plans, "--job", "a", "--gpus", "8"]).out


@pytest.mark.parametrize("carried", ["", ",name"])
def test_a_row_without_an_id_says_so_and_stops_no_other(tmp_path, ran, carried):
    comma = carried and ","
    lines = [f"job,effective_batch,lr{carried}", f"a,256,0.1{carried}", f",,{comma}", f"b,256,0.1{comma}"]
    jobs = str(written(tmp_path, lines))
    columns = ["job", "world_size", "status", "reasons", "micro_batch", "lr"]
    blank = ib.plan_fleet(jobs, [8], columns=columns).to_pylist()
    assert [row["status"] for row in blank] == ["ok", "infeasible", "ok"]
    assert set(blank[1].pop("reasons")) >= {"invalid_id"}
    assert blank[1] == {"job": None, "world_size": 8, "status": "infeasible", "micro_batch": None, "lr": None}
    message = ran(["fleet", jobs, "--gpus", "8"]).err
    assert f"first in a job without an id ({jobs}, row 2): the row is blank: delete it" in message
    lines[2] = f",256,0.1{comma}"
    written(tmp_path, lines)
    assert ib.plan_fleet(jobs, [8])["reasons"].to_pylist() == [[], ["invalid_id"], []]
    assert "row 2): job is missing: each row needs an id" in ran(["fleet", jobs, "--gpus", "8"]).err


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_ids_that_are_missing_in_arrays(missing):
    jobs = {
        "job": np.array(["a", missing, missing, "b"], dtype=object),
        "effective_batch": np.array([256, 256, -1, 480]),
        "lr": np.full(4, 0.1),
    }
    plans = ib.plan_fleet(jobs, [8, 4])
    assert plans["status"].tolist() == ["ok"] * 2 + ["infeasible"] * 4 + ["ok"] * 2
    assert [list(map(str, reasons)) for reasons in ib.Reason.of(plans["reasons"][2:6:2])] == [
        ["invalid_id"],
        ["invalid_batch", "invalid_id"],
    ]
    assert plans["nearest_batch"][2] == plans["micro_batch"][2] == -1
    assert np.isnan(plans["lr"][2:6]).all()
    paired = ib.plan_fleet(jobs, [8, 4], pairs={"job": ["b", "a"], "cluster": [1, 0]})
    assert paired["status"].tolist() == ["ok", "ok"]
    jobs["job"][3] = "a"
    with pytest.raises(ib.InputError, match=r"row 4: duplicate job id 'a' \(also in row 1\)"):
        ib.plan_fleet(jobs, [8])


def test_a_cluster_without_an_id_is_refused(tmp_path):
    clusters = tmp_path / "clusters.csv"
    clusters.write_text("cluster,nodes,gpus_per_node\na,1,8\n,2,8\n")
    with pytest.raises(ib.InputError, match=r"clusters.csv, row 2: cluster is missing: each row needs an id"):
        ib.plan_fleet(written(tmp_path, [HEADER, *ROWS]), clusters)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("b,256", r"has 2 cells for 4 columns: an unknown cell is empty, and keeps its ','. The row: b,256"),
        ("b,256,0.1,x,y", r"has 5 cells for 4 columns: put a cell that has ',' in it between quotes"),
        ('"b,256,0.1,x', "a quote that is opened here is not closed where the row ends"),
    ],
)
@pytest.mark.parametrize("before", [1, 3000])
def test_a_row_with_other_cells_than_the_header_is_named(tmp_path, monkeypatch, row, message, before):
    monkeypatch.setattr(read, "_CSV_BYTES", 1 << 14)  # of which 3,000 rows take several
    rows = [f"j{n},256,0.1,x" for n in range(before)]
    jobs = written(tmp_path, [HEADER, *rows, row, "z,256,0.1,x"])
    with pytest.raises(ib.InputError, match=rf"jobs\.csv, row {before + 1:,}: {message}"):
        ib.plan_fleet(jobs, [8])
    manifest = ib.plan_files(jobs, [8], tmp_path / "plans")
    assert f"row {before + 1:,}: " in manifest.failed[str(jobs)]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_header_alone_is_a_table_without_rows(tmp_path, end):
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(HEADER + end)
    assert ib.plan_fleet(jobs, [8]).num_rows == 0


def test_cells_between_bars_and_a_suffix_in_capitals(tmp_path, capsys):
    (tmp_path / "JOBS.CSV").write_text("job|effective_batch|lr\na|256|0.1\n")
    for jobs in (tmp_path, tmp_path / "JOBS.CSV"):
        assert ib.plan_fleet(jobs, [8])["micro_batch"].to_pylist() == [32]
    assert main(["fleet", str(tmp_path / "JOBS.CSV"), "--gpus", "8", "-o", str(tmp_path / "PLANS.TSV")]) == 0
    assert (tmp_path / "PLANS.TSV").read_text().startswith("job\tcluster")
    capsys.readouterr()


@pytest.mark.parametrize("name", ["b\tc", 'b"c', "b\nc"])
def test_a_text_that_tsv_cannot_hold_is_named(tmp_path, capsys, monkeypatch, name):
    monkeypatch.setattr(stream, "BLOCK_ROWS", 2)
    rows = [{"job": f"{n}", "effective_batch": 256, "lr": 0.1, "team": "x"} for n in range(4)]
    rows.append({"job": "4", "effective_batch": 256, "lr": 0.1, "team": name})
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["fleet", str(jobs), "--gpus", "8", "--columns", "job,status,team", "-o"]
    assert main([*words, str(tmp_path / "plans.tsv")]) == 2
    assert f"plans.tsv: cannot be written: row 5, column team: {name!r} has a tab" in capsys.readouterr().err
    assert not (tmp_path / "plans.tsv").exists()
    assert main([*words, str(tmp_path / "plans.csv")]) == 0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([], "stopped: the rows written so far are incomplete"),
        (["-o", "plans.csv"], "stopped: plans.csv is as it was before; one file is not resumed, a folder is"),
        (["-o", "plans"], "stopped. What is done is kept in plans: rerun the same command to continue"),
    ],
)
def test_ctrl_c_says_what_is_kept(tmp_path, capsys, monkeypatch, output, message):
    monkeypatch.chdir(tmp_path)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fleet, "_into_one", stopped)
    monkeypatch.setattr(fleet, "_into_folder", stopped)
    assert main(["fleet", str(written(tmp_path, [HEADER, *ROWS])), "--gpus", "8", *output]) == 130
    assert capsys.readouterr().err.startswith(f"isobatch fleet: {message}")


def test_a_number_in_the_place_of_clusters_is_named(tmp_path, capsys):
    assert main(["fleet", str(written(tmp_path, [HEADER, *ROWS])), "8"]) == 2
    assert "clusters must be a file, got 8: for that number of GPUs, --gpus 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "not_divisible;uneven_tail",
        "['not_divisible' 'uneven_tail']",
        "['not_divisible', 'uneven_tail']",
        "[not_divisible, uneven_tail]",
    ],
)
def test_lists_of_reasons_that_others_write_into_csv(tmp_path, text, ran):
    path = tmp_path / "plans.csv"
    path.write_text(f'job,cluster,status,reasons,world_size\na,0,infeasible,"{text}",7\nb,0,ok,[],8\n')
    message = ran(["explain", str(path), "--gpus", "7"], 1).out
    assert "cannot be split evenly" in message and "the last step of each epoch is smaller" in message
    assert (
        "plan again with --columns nearest_world_size,nearest_batch" in message
        and "Nothing close" not in message
    )
    plans = plans_of(read_table(path))
    assert [bool(plans.has(reason)[0]) for reason in (ib.Reason.NOT_DIVISIBLE, ib.Reason.UNEVEN_TAIL)] == [
        True
    ] * 2
    assert not plans.has(ib.Reason.NOT_DIVISIBLE)[1]


def test_series_are_gpu_counts_and_mixed_columns_are_named():
    pandas = pytest.importorskip("pandas")
    jobs = pandas.DataFrame({"effective_batch": [256], "lr": [0.1]})
    assert ib.plan_fleet(jobs, pandas.Series([8, 16]))["world_size"].to_pylist() == [8, 16]
    mixed = pandas.DataFrame({"effective_batch": [256, "512"], "lr": [0.1, 0.2]})
    assert ib.plan_fleet(mixed, [8])["effective_batch"].to_pylist() == [256, 512]
    lists = pandas.DataFrame({"effective_batch": [256, [512]], "lr": [0.1, 0.2]})
    with pytest.raises(ib.InputError, match="^the job table cannot be read: .*column effective_batch"):
        ib.plan_fleet(lists, [8])


def test_reasons_are_read_from_the_column_of_any_table():
    jobs = {"effective_batch": [256], "lr": [0.1]}
    arrays = ib.plan_fleet(jobs, [8, 7])
    table = ib.plan_fleet(pa.table(jobs), [8, 7])
    expected = [(), (ib.Reason.NOT_DIVISIBLE,)]
    lists = table["reasons"]
    for column in (arrays["reasons"], lists, lists.to_pylist(), lists.to_numpy()):
        assert ib.Reason.of(column) == expected
    assert ib.Reason.of(arrays["reasons"][1]) == expected[1]
    with pytest.raises(ib.InputError, match="must be names of reasons, .*got 'hot'"):
        ib.Reason.of([["hot"]])
    for wrong in (None, 0.5, "ok", ["ok"]):
        with pytest.raises(ib.InputError, match="bits must be a bit set"):
            ib.Reason.of(wrong)


GERMAN = [
    "job;effective_batch;lr;duration;dataset_size",
    "a;2.000;0,1;10.000st;1.281.167",
    "b;256;1,5e-4;2,5 ep;1\u202f281\u202f167",
]


def test_decimal_commas_and_points_between_thousands_are_read_where_they_are_said(tmp_path, ran):
    (tmp_path / "jobs.csv").write_text("\n".join([*GERMAN, ""]), encoding="utf-8")
    columns = "job,status,effective_batch,lr,total_steps,dataset_size"
    words = ["fleet", str(tmp_path / "jobs.csv"), "--gpus", "2", "--columns", columns]
    assert ran(words).out.count("infeasible") == 2
    assert ran([*words, "--decimal", ","]).out.splitlines()[1:] == [
        '"a","ok",2000,0.1,10000,1281167',
        '"b","ok",256,0.00015,12513,1281167',
    ]


def test_a_point_that_is_no_thousands_is_refused_beside_decimal_commas(tmp_path, ran):
    (tmp_path / "jobs.csv").write_text("job;effective_batch;lr\na;256;0.001\n")
    out, err = ran(["fleet", str(tmp_path / "jobs.csv"), "--gpus", "2", "--decimal", ","])
    assert "infeasible" in out and "0.001 where the decimal sign is ','" in err


def test_points_are_decimal_where_that_is_said(tmp_path, capsys):
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256.000,0.100\n")
    words = ["fleet", str(tmp_path / "jobs.csv"), "--gpus", "2", "--columns", "status,effective_batch"]
    assert main(words) == 0 and "infeasible" in capsys.readouterr().out
    assert main([*words, "--decimal", "."]) == 0 and '"ok",256' in capsys.readouterr().out
