"""Many small files: planned in groups that become whole together, and looked at no more often than they must be."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isobatch as ib
from isobatch.fleet.folder import run as run_module
from isobatch.fleet.folder import work
from isobatch.fleet.folder.folder import Folder
from isobatch.fleet.folder.parts import MAX_GROUP_PARTS, Part, group_parts, in_threads
from jobs_in_files import plans_in, stopped_after

GPUS = [8, 96]


def part(number, rows=None, size=0):
    return Part(f"{number}", f"{number}", (0, size), None, rows=rows)


def test_groups_are_of_small_parts_and_leave_no_worker_idle():
    tiny = [part(n, rows=10) for n in range(10_000)]
    groups = group_parts(tiny, 2, 1 << 17, 2)
    assert [it for group in groups for it in group] == tiny
    assert {len(group) for group in groups[:-1]} == {MAX_GROUP_PARTS}
    # Of few parts none is held back by another.
    assert [len(group) for group in group_parts(tiny[:6], 2, 1 << 17, 2)] == [1] * 6
    assert len(group_parts(tiny[:100], 2, 1 << 17, 3)) == 25
    # Ten clusters: 1,000 rows each.
    some = [part(n, rows=100) for n in range(1000)]
    assert max(len(group) for group in group_parts(some, 10, 5000, 2)) == 5
    large = [part(n, rows=10**6) for n in range(1000)]
    assert all(len(group) == 1 for group in group_parts(large, 1, 1 << 17, 2))
    texts = [part(n, size=40_000) for n in range(1000)]
    assert len(group_parts(texts, 10, 1 << 17, 2)[0]) == 3
    assert group_parts([], 1, 1, 1) == []


def test_results_come_in_the_order_of_the_items():
    for items in (range(0), range(1), range(100), range(20_000)):
        assert list(in_threads(lambda item: -item, items)) == [-item for item in items]
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, range(3)))


@pytest.fixture
def together(monkeypatch):
    """All parts in one group."""
    monkeypatch.setattr(run_module, "group_parts", lambda parts, *_: [parts] if parts else [])


def test_a_group_that_is_stopped_leaves_nothing_behind(make_jobs, tmp_path, monkeypatch, together):
    jobs = make_jobs(files=4, rows=100)
    plan_one = work._plan_part

    def failing(run, part, stopped):
        if part.name == "02":
            raise OSError("the disk is gone")
        return plan_one(run, part, stopped)

    with monkeypatch.context() as patched:
        patched.setattr(work, "_plan_part", failing)
        with pytest.raises(ib.InputError, match="the disk is gone"):
            ib.plan_files(jobs.folder, GPUS, tmp_path / "plans")
    assert list((tmp_path / "plans" / "_partial").iterdir()) == []
    assert list((tmp_path / "plans" / "_parts").iterdir()) == []
    assert ib.plan_files(jobs.folder, GPUS, tmp_path / "plans").state == "complete"
    assert plans_in(tmp_path / "plans").equals(ib.plan_fleet(jobs.table, GPUS))


def test_a_file_is_looked_at_once_by_each_resume(make_jobs, tmp_path, monkeypatch):
    """However often a run was killed before: its receipts are in the manifest and beside it."""
    jobs = make_jobs(files=6, rows=20)
    for done in (2, 2):
        with monkeypatch.context() as patched:
            stopped_after(patched, done, OSError("the disk is gone"))
            with pytest.raises(ib.InputError):
                ib.plan_files(jobs.folder, GPUS, tmp_path / "plans")
    hashed, counted = Counter(), []
    is_sound, metadata_of = Folder._is_sound, pq.read_metadata

    def hashing(self, receipt):
        hashed[receipt.file] += 1
        return is_sound(self, receipt)

    def counting(source):
        counted.append(source)
        return metadata_of(source)

    monkeypatch.setattr(Folder, "_is_sound", hashing)
    monkeypatch.setattr(pq, "read_metadata", counting)
    assert ib.plan_files(jobs.folder, GPUS, tmp_path / "plans").state == "complete"
    assert len(hashed) == 4 and set(hashed.values()) == {1}
    hashed.clear()
    counted.clear()
    ib.plan_files(jobs.folder, GPUS, tmp_path / "plans")
    assert len(hashed) == 6 and set(hashed.values()) == {1}
    assert len(counted) == 6, "the footers of the jobs, and none of the plans"


def test_a_file_that_goes_while_the_others_are_planned_is_missed(make_jobs, tmp_path, monkeypatch):
    jobs = make_jobs(files=3, rows=20)
    ib.plan_files(jobs.folder, GPUS, tmp_path / "plans")
    (tmp_path / "plans" / "02.parquet").unlink()
    begin = Folder.begin

    def removing(self, *given):
        begin(self, *given)
        (tmp_path / "plans" / "01.parquet").unlink()

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "begin", removing)
        with pytest.raises(ib.InputError, match=r"01.parquet: is gone: rerun the same command"):
            ib.plan_files(jobs.folder, GPUS, tmp_path / "plans")
    assert ib.plan_files(jobs.folder, GPUS, tmp_path / "plans").state == "complete"
    assert plans_in(tmp_path / "plans").equals(ib.plan_fleet(jobs.table, GPUS))


def test_a_small_file_starts_no_threads(make_jobs, tmp_path, monkeypatch):
    def refused(_):
        raise AssertionError("a thread for a file of one block")

    monkeypatch.setattr(work, "ahead", refused)
    jobs = make_jobs(files=2, rows=20)
    (jobs.folder / "00.parquet").unlink()
    (jobs.folder / "one.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    (jobs.folder / "01.parquet").rename(tmp_path / "01.parquet")
    assert ib.plan_files(jobs.folder, GPUS, tmp_path / "plans").rows == 2
    assert ib.plan_files(tmp_path / "01.parquet", GPUS, tmp_path / "of one").rows == 40
    monkeypatch.setattr(work, "BLOCK_ROWS", 30)
    with pytest.raises(AssertionError, match="a thread"):
        ib.plan_files(tmp_path / "01.parquet", GPUS, tmp_path / "of two")


def test_columns_are_written_as_they_repeat(tmp_path):
    """Texts that are few as numbers, values that differ as they are; a reader sees neither."""
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
    found = pq.ParquetFile(tmp_path / "plans" / "jobs.parquet")
    wanted = ib.plan_fleet(tmp_path / "jobs.parquet", [8])
    assert found.read().replace_schema_metadata().equals(wanted)
    assert found.schema_arrow.field("status").type == pa.string()
    assert found.schema_arrow.metadata[b"isobatch.version"].decode() == ib.__version__
    group = found.metadata.row_group(0)
    has = {
        group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(group.num_columns)
    }
    assert has["status"] and has["effective_batch"] and has["reasons.list.element"] and has["team"]
    assert not has["job"] and not has["lr"]
