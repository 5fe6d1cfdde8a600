"""Tables as spreadsheets and other programs write them: separators, encodings, blank rows, lists as texts."""

import pytest

import isobatch as ib
from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")

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


def test_a_decimal_comma_is_named_and_not_guessed_at(tmp_path, capsys):
    path = tmp_path / "jobs.csv"
    path.write_text("job;effective_batch;lr\na;256;0,1\nb;8.192;0.1\n")
    assert main(["fleet", str(path), "--gpus", "8", "-o", str(tmp_path / "plans.csv")]) == 0
    said = capsys.readouterr().err
    assert "got the text '0,1'" in said and "2 rows: 0 feasible" in said


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
@pytest.mark.parametrize("before", [0, 40_000])
def test_another_encoding_is_named(tmp_path, encoding, before):
    rows = [*(f"{n},256,0.1,x" for n in range(before)), *ROWS]
    with pytest.raises(ib.InputError, match=r"jobs\.csv: cannot be read: it is not UTF-8; save it as UTF-8"):
        ib.plan_fleet(written(tmp_path, [HEADER, *rows], encoding=encoding), [8])


def test_plans_in_tsv_are_explained(tmp_path, capsys):
    jobs, plans = written(tmp_path, [HEADER, *ROWS]), str(tmp_path / "plans.tsv")
    assert main(["fleet", str(jobs), "--gpus", "8,7", "-o", plans]) == 0
    assert main(["explain", plans, "--job", "a", "--gpus", "8"]) == 0
    assert "job a, cluster 0, 8 GPUs: ok" in capsys.readouterr().out
