"""Files in, a folder of files out: the same plans as in one call."""

import json
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.fleet import stream
from jobs_in_files import names_in, plans_in

CLUSTERS = pa.table(
    {"cluster": ["s", "x"], "nodes": [1, 12], "gpus_per_node": [8, 8], "region": ["eu", "us"]}
)


def expected(table, **settings):
    return ib.plan_fleet(table, CLUSTERS, **settings)


def test_each_file_becomes_one(make_jobs, tmp_path):
    jobs = make_jobs()
    plans = ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans", policy="grow", max_micro_batch=64)
    assert names_in(tmp_path / "plans") == ["00.parquet", "01.parquet", "02.parquet"]
    whole = expected(jobs.table, policy="grow", max_micro_batch=64)
    assert plans_in(tmp_path / "plans").equals(whole)
    assert (plans.rows, plans.skipped, plans.failed) == (3000, 0, {})
    assert plans.summary.feasible == sum(s != "infeasible" for s in whole["status"].to_pylist())
    metadata = pq.read_schema(tmp_path / "plans" / "01.parquet").metadata
    assert json.loads(metadata[b"isobatch.settings"])["max_micro_batch"] == 64
    assert metadata[b"isobatch.version"].decode() == ib.__version__


def test_the_summary_counts_reasons_and_shows_the_first(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=200)
    plans = ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans")
    reasons = [reason for row in expected(jobs.table)["reasons"].to_pylist() for reason in row]
    assert plans.summary.reasons == {name: reasons.count(name) for name in set(reasons)}
    optimizers = jobs.tables[0]["optimizer"].to_pylist()
    row = optimizers.index("sdg")
    assert (
        f"job j{row} ({jobs.folder}/00.parquet, row {row + 1})" in plans.summary.examples["invalid_optimizer"]
    )


@pytest.mark.parametrize("row_group_size", [70, 1000])
def test_texts_that_parquet_has_as_dictionaries_or_has_not(make_jobs, tmp_path, monkeypatch, row_group_size):
    monkeypatch.setattr(stream, "BLOCK_ROWS", 300)
    table = make_jobs(files=1, rows=1000).tables[0]
    steps = pa.array([f"{number}st" for number in range(1, 1001)])
    table = table.append_column("warmup", pa.array(["5ep", None, "", "100st"] * 250)).append_column(
        "gpu", pa.array(["A100", "H100"] * 500)
    )
    for name, texts in (("few", table), ("many", table.set_column(4, "duration", steps))):
        row_groups = []
        for dictionaries in (False, True):
            jobs, plans = tmp_path / f"{name}{dictionaries}.parquet", tmp_path / f"{name}-{dictionaries}"
            pq.write_table(texts, jobs, row_group_size=row_group_size, use_dictionary=dictionaries)
            ib.plan_files(jobs, CLUSTERS, plans)
            assert plans_in(plans).equals(expected(texts))
            file = pq.ParquetFile(plans / f"{name}{dictionaries}.parquet")
            row_groups.append([file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)])
        assert row_groups[0] == row_groups[1] == [300] * 6 + [200]


def test_jobs_without_ids_are_numbered_through_all_files(make_jobs, tmp_path):
    jobs = make_jobs(files=3, rows=50)
    for number, table in enumerate(jobs.tables):
        pq.write_table(table.drop_columns(["job"]), jobs.folder / f"{number:02}.parquet")
    ib.plan_files(jobs.folder, [8], tmp_path / "plans", columns=["job", "micro_batch"])
    numbers = [pq.read_table(tmp_path / "plans" / f"{n:02}.parquet")["job"].to_pylist() for n in range(3)]
    assert numbers == [list(range(50)), list(range(50, 100)), list(range(100, 150))]


def test_rows_with_their_own_cluster(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=40)
    nodes = pa.array([1, 2, 3, 4] * 10)
    rows = [
        t.append_column("nodes", nodes).append_column("cluster", pa.array(["c"] * 40)) for t in jobs.tables
    ]
    for number, table in enumerate(rows):
        pq.write_table(table, jobs.folder / f"{number:02}.parquet")
    ib.plan_files(jobs.folder, None, tmp_path / "plans")
    whole = ib.plan_table(pa.concat_tables(rows))
    assert {gpus for gpus in whole["world_size"].to_pylist() if gpus} == {8, 16, 24, 32}
    assert whole["job"].equals(jobs.table["job"])
    assert plans_in(tmp_path / "plans").equals(whole)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_csv_and_json_lines(make_jobs, tmp_path, kind):
    import pyarrow.csv

    jobs = make_jobs(files=2, rows=100)
    for number, table in enumerate(jobs.tables):
        (jobs.folder / f"{number:02}.parquet").unlink()
        if kind == "csv":
            pyarrow.csv.write_csv(table, jobs.folder / f"{number:02}.csv")
        else:
            lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
            (jobs.folder / f"{number:02}.jsonl").write_text(lines)
    ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans")
    assert plans_in(tmp_path / "plans").equals(expected(jobs.table))


def test_folders_in_the_folder_stay_and_hidden_names_are_no_jobs(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=10)
    for place in ("2026/01", "_old", ".git"):
        (jobs.folder / place).mkdir(parents=True)
    (jobs.folder / "01.parquet").rename(jobs.folder / "2026/01/b.parquet")
    (jobs.folder / "_old/c.parquet").write_text("x")
    (jobs.folder / ".git/d.parquet").write_text("x")
    ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans")
    assert names_in(tmp_path / "plans") == ["00.parquet", "2026/01/b.parquet"]


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        ({"columns": ["job", "micro"]}, "columns", "unknown column 'micro': did you mean"),
        ({"engine": "spark"}, "engine", "unknown engine 'spark': there are local, ray"),
        ({"pairs": {"job": ["j1"], "cluster": ["s"]}}, "pairs", "unknown setting 'pairs'"),
        ({"select": "fastest"}, "profile", "select='fastest' needs a profile"),
    ],
)
def test_bad_settings_write_nothing(make_jobs, tmp_path, settings, field, message):
    jobs = make_jobs(files=1, rows=10)
    with pytest.raises(ib.InputError, match=message) as caught:
        ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans", **settings)
    assert caught.value.field == field
    assert not (tmp_path / "plans").exists() or names_in(tmp_path / "plans") == []


def test_types_that_differ_between_files_are_joined(make_jobs, tmp_path):
    jobs = make_jobs(files=3, rows=20)
    small = jobs.tables[0].set_column(1, "effective_batch", pa.array([256] * 20, pa.int16()))
    none = jobs.tables[1].set_column(6, "team", pa.nulls(20))
    pq.write_table(small, jobs.folder / "00.parquet")
    pq.write_table(none, jobs.folder / "01.parquet")
    ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans")
    assert {pq.read_schema(p).field("team").type for p in (tmp_path / "plans").glob("*.parquet")} == {
        pa.string()
    }
    assert plans_in(tmp_path / "plans").num_rows == 120


def test_carried_columns_keep_their_type(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=30)
    extra = {
        "kind": pa.array(["a", "b", None] * 10).dictionary_encode(),
        "long": pa.array(["x"] * 30, pa.large_string()),
        "limit": pa.array([5] * 30, pa.duration("s")),
        "sizes": pa.array([[1, 2]] * 30),
    }
    for number, table in enumerate(jobs.tables):
        for name, column in extra.items():
            table = table.append_column(name, column)
        pq.write_table(table, jobs.folder / f"{number:02}.parquet")
    ib.plan_files(jobs.folder, [8], tmp_path / "plans", columns=["job", *extra])
    table_of_plans = pq.read_table(tmp_path / "plans" / "01.parquet")
    assert {name: table_of_plans[name].type for name in extra} == {
        name: column.type for name, column in extra.items()
    }
    assert all(table_of_plans[name].to_pylist() == column.to_pylist() for name, column in extra.items())


def test_plans_never_go_among_the_jobs(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=10)
    for output in (jobs.folder, jobs.folder / "plans"):
        with pytest.raises(ib.InputError, match="is in the folder that is read"):
            ib.plan_files(jobs.folder, CLUSTERS, output)
    with pytest.raises(ib.InputError, match="is in the folder that is read"):
        ib.plan_files(jobs.folder / "00.parquet", CLUSTERS, jobs.folder)
    assert names_in(jobs.folder) == ["00.parquet"] and not (jobs.folder / "plans").exists()


def test_two_files_do_not_become_one(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=10)
    (jobs.folder / "00.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    with pytest.raises(ib.InputError, match=r"becomes 00.parquet, as .* does"):
        ib.plan_files(jobs.folder, CLUSTERS, tmp_path / "plans")


def test_files_with_one_name_go_into_one_file(make_jobs, tmp_path, ran):
    """Nothing in such a file has their name."""
    jobs = make_jobs(files=1, rows=10)
    rows = jobs.table.set_column(0, "job", pa.array([f"other-{n}" for n in range(10)]))
    (jobs.folder / "00.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    for output in (["-o", str(tmp_path / "one.jsonl")], ["--json"]):
        assert "20 rows: " in ran(["fleet", str(jobs.folder), "--gpus", "8", *output]).err


def test_a_url(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=30)
    ib.plan_files(f"file://{jobs.folder}/*.parquet", CLUSTERS, f"file://{tmp_path}/plans")
    assert plans_in(tmp_path / "plans").equals(expected(jobs.table))
    with pytest.raises(ib.InputError, match="gopher://x/y: cannot be read"):
        ib.plan_files("gopher://x/y", CLUSTERS, tmp_path / "other")


def test_an_object_store(make_jobs):
    server = pytest.importorskip(
        "moto.server", reason="S3 is tested against moto's server"
    ).ThreadedMotoServer(port=0)
    from pyarrow import fs

    server.start()
    try:
        host, port = server.get_host_and_port()
        where = f"?endpoint_override={host}:{port}&scheme=http&allow_bucket_creation=true"
        root = "s3://key:secret@bucket"
        store, _ = fs.FileSystem.from_uri(f"{root}/{where}")
        store.create_dir("bucket")
        jobs = make_jobs(files=2, rows=100)
        fs.copy_files(str(jobs.folder), "bucket/jobs", fs.LocalFileSystem(), store)
        url = {"jobs": f"{root}/jobs{where}", "output": f"{root}/plans{where}"}
        plans = ib.plan_files(url["jobs"], CLUSTERS, url["output"])
        assert (plans.rows, plans.skipped) == (400, 0)
        listed = store.get_file_info(fs.FileSelector("bucket/plans", recursive=True))
        files = sorted(info.base_name for info in listed if info.type == fs.FileType.File)
        assert files == ["00.parquet", "01.parquet"]
        tables = [pq.read_table(f"bucket/plans/{name}", filesystem=store) for name in files]
        assert pa.concat_tables(tables).replace_schema_metadata().equals(expected(jobs.table))
        again = ib.plan_files(url["jobs"], CLUSTERS, url["output"])
        assert again.skipped == 2 and again.summary == plans.summary
        with pytest.raises(ib.InputError, match="there is no such file") as caught:
            ib.plan_files(f"{root}/nothing.parquet{where}", CLUSTERS, url["output"])
        assert "secret" not in str(caught.value)
    finally:
        server.stop()


def test_the_command_line(make_jobs, tmp_path, capsys, ran):

    jobs = make_jobs(files=2, rows=100)
    pq.write_table(CLUSTERS, tmp_path / "clusters.parquet")
    words = ["fleet", str(jobs.folder), str(tmp_path / "clusters.parquet")]
    assert main([*words, "-o", str(tmp_path / "plans")]) == 0
    assert plans_in(tmp_path / "plans").equals(expected(jobs.table))
    assert "400 rows: " in capsys.readouterr().err
    (jobs.folder / "02.parquet").write_text("no Parquet")
    error = ran([*words, "-o", str(tmp_path / "plans")], 2).err
    assert "02.parquet: cannot be read" in error and "1 file failed; fix them" in error
    assert plans_in(tmp_path / "plans").num_rows == 400
    # Into one file it is whole or not at all.
    assert main([*words, "-o", str(tmp_path / "one.parquet")]) == 2
    assert not (tmp_path / "one.parquet").exists()
    (jobs.folder / "02.parquet").unlink()
    assert main([*words, "-o", str(tmp_path / "one.parquet")]) == 0
    assert pq.read_table(tmp_path / "one.parquet").replace_schema_metadata().equals(expected(jobs.table))
    capsys.readouterr()
    assert main([*words, "-o", str(tmp_path / "one.parquet"), "--engine", "ray"]) == 2
    assert "--engine needs a folder as the output" in capsys.readouterr().err
    assert main([*words, "-o", str(tmp_path / "one.parquet"), "--address", ""]) == 2
    assert "--address needs a folder as the output" in capsys.readouterr().err


def test_a_small_file_starts_no_threads(make_jobs, tmp_path, monkeypatch):
    def refused(_):
        raise AssertionError("a thread for a file of one block")

    monkeypatch.setattr(stream, "ahead", refused)
    jobs = make_jobs(files=1, rows=20)
    (tmp_path / "one.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    assert ib.plan_files(tmp_path / "one.csv", [8, 96], tmp_path / "of text").rows == 2
    assert ib.plan_files(jobs.folder, [8, 96], tmp_path / "of one").rows == 40
    with pytest.raises(AssertionError, match="a thread"):
        ib.plan_files(jobs.folder, range(8, 8000, 8), tmp_path / "of two")


def test_columns_are_written_as_they_repeat(tmp_path):
    """Few texts are written as numbers, different values as they are; a reader sees neither."""
    rows = 40_000
    jobs = pa.table(
        {
            "job": range(rows),
            "effective_batch": [256, 1000] * (rows // 2),
            "lr": [0.1 + n / rows for n in range(rows)],
            "team": pa.array(["a", "b"] * (rows // 2)).dictionary_encode(),
        }
    )
    pq.write_table(jobs, tmp_path / "jobs.parquet")
    ib.plan_files(tmp_path / "jobs.parquet", [8], tmp_path / "plans")
    file = pq.ParquetFile(tmp_path / "plans" / "jobs.parquet")
    assert file.read().replace_schema_metadata().equals(ib.plan_fleet(tmp_path / "jobs.parquet", [8]))
    assert file.schema_arrow.field("status").type == pa.string()
    group = file.metadata.row_group(0)
    columns = map(group.column, range(group.num_columns))
    has = {column.path_in_schema: column.has_dictionary_page for column in columns}
    assert has["status"] and has["effective_batch"] and has["reasons.list.element"] and has["team"]
    assert not has["job"] and not has["lr"]


def test_reading_planning_and_writing_overlap():
    from isobatch.fleet.stream import ahead

    names = []
    is_made = threading.Event()

    def items():
        for number in range(3):
            names.append(threading.current_thread().name)
            if number == 1:
                is_made.set()
            yield number

    items_used = []
    for item in ahead(items()):
        # The second is made while the first is used.
        assert is_made.wait(10)
        items_used.append(item)
    assert items_used == [0, 1, 2]
    assert threading.current_thread().name not in names


def test_an_error_ahead_arrives_where_it_would_have():
    from isobatch.fleet.stream import ahead

    def items():
        yield 1
        raise ValueError("bad")

    numbers = ahead(items())
    assert next(numbers) == 1
    with pytest.raises(ValueError, match="bad"):
        next(numbers)


@pytest.mark.slow
def test_memory_is_flat(tmp_path):
    """A run in a process of its own: eight times the rows, no more memory."""
    import subprocess

    from jobs_in_files import jobs_table

    peaks = {}
    for files in (2, 16):
        folder = tmp_path / f"jobs{files}"
        folder.mkdir()
        pq.write_table(jobs_table(250_000), folder / "00.parquet", row_group_size=100_000)
        for number in range(1, files):
            (folder / f"{number:02}.parquet").write_bytes((folder / "00.parquet").read_bytes())
        code = (
            "import resource, sys, isobatch as ib\n"
            "ib.plan_files(sys.argv[1], [8, 16], sys.argv[2])\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        words = [sys.executable, "-c", code, str(folder), str(tmp_path / f"plans{files}")]
        peaks[files] = int(subprocess.run(words, check=True, capture_output=True, text=True).stdout) / 1024
    assert peaks[16] < 1.25 * peaks[2], peaks
