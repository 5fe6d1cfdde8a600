"""Whatever stops a run, the next one goes on: no row is lost, none is there twice."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import isobatch as ib
from isobatch.fleet.folder import run, work
from isobatch.fleet.folder.folder import Folder
from jobs_in_files import Jobs, names_in, plans_in, stopped_after

REPETITIONS = range(int(os.environ.get("ISOBATCH_REPETITIONS", "1")))
"""Of what depends on the moment at which a run is stopped."""

GPUS = [8, 96]


def plan(jobs, tmp_path, **asked):
    return ib.plan_files(jobs.folder, GPUS, tmp_path / "plans", **asked)


def whole(jobs, tmp_path):
    """The folder holds each plan once, and nothing else."""
    assert plans_in(tmp_path / "plans").equals(ib.plan_fleet(jobs.table, GPUS))
    names = names_in(tmp_path / "plans")
    assert names == [*(f"{n:02}.parquet" for n in range(len(jobs.tables))), "_manifest.json"]
    return True


def planned_anew(monkeypatch):
    """The names of the parts that are planned from now on."""
    names = []
    plan_one = work._plan_part

    def listening(work, part, stopped):
        names.append(part.name)
        return plan_one(work, part, stopped)

    monkeypatch.setattr(work, "_plan_part", listening)
    return names


def test_what_is_done_is_not_done_again(make_jobs, tmp_path, monkeypatch):
    jobs = make_jobs(files=6, rows=50)
    with monkeypatch.context() as patched:
        stopped_after(patched, 3, OSError("the disk is gone"))
        with pytest.raises(ib.InputError, match="cannot be written: the disk is gone"):
            plan(jobs, tmp_path)
    done = {path.stem for path in (tmp_path / "plans" / "_parts").iterdir()}
    assert len(done) == 3
    again = planned_anew(monkeypatch)
    manifest = plan(jobs, tmp_path)
    assert sorted([*done, *again]) == [f"{n:02}" for n in range(6)]
    assert manifest.state == "complete" and whole(jobs, tmp_path)
    again.clear()
    assert plan(jobs, tmp_path) == manifest
    assert again == []


@pytest.mark.race("the run may be over before the signal is sent to it")
@pytest.mark.parametrize("_", REPETITIONS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on(tmp_path, how, _):
    jobs = Jobs(tmp_path / "jobs", 30, 2000)
    words = [sys.executable, "-m", "isobatch", "fleet", str(jobs.folder), str(tmp_path / "clusters.csv")]
    words += ["-o", str(tmp_path / "plans")]
    (tmp_path / "clusters.csv").write_text("nodes,gpus_per_node\n1,8\n12,8\n")
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    receipts = tmp_path / "plans" / "_parts"
    wanted = random.randrange(1, 10)
    while process.poll() is None and len(list(receipts.glob("*.json"))) < wanted:
        time.sleep(0.001)
    process.send_signal(how)
    said = process.communicate()[1]
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    if how == signal.SIGINT:
        kept = f"What is done is kept in {tmp_path / 'plans'}: rerun the same command to go on"
        assert said.splitlines()[-1] == f"isobatch fleet: stopped. {kept}"
    assert json.loads((tmp_path / "plans" / "_manifest.json").read_text())["state"] == "running"
    subprocess.run(words, check=True, capture_output=True)
    assert (
        plans_in(tmp_path / "plans")
        .drop_columns(["cluster"])
        .equals(ib.plan_fleet(jobs.table, GPUS).drop_columns(["cluster"]))
    )
    assert names_in(tmp_path / "plans") == [*(f"{n:02}.parquet" for n in range(30)), "_manifest.json"]


@pytest.mark.parametrize("_", REPETITIONS)
def test_a_full_disk_stops_the_run_which_then_goes_on(make_jobs, tmp_path, _):
    jobs = make_jobs(files=8, rows=2000)
    ib.plan_files(jobs.folder, GPUS, tmp_path / "elsewhere")
    needed = sum(file.stat().st_size for file in (tmp_path / "elsewhere").iterdir()) // 1024
    disk = tmp_path / "plans"
    disk.mkdir()
    size = random.randrange(needed // 5, needed * 4 // 5)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        with pytest.raises(ib.InputError, match=r"cannot be written: .*(No space left|space)") as caught:
            plan(jobs, tmp_path)
        assert caught.value.file == str(disk)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert plan(jobs, tmp_path).state == "complete"
        assert whole(jobs, tmp_path)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("place", ["data", "footer", "data, in a group"])
def test_a_corrupt_file_is_named_and_stops_no_other(make_jobs, tmp_path, monkeypatch, place):
    if place.endswith("group"):
        monkeypatch.setattr(run, "group_parts", lambda parts, *_: [parts] if parts else [])
    jobs = make_jobs(files=4, rows=3000, row_group_size=1000)
    bad = jobs.folder / "02.parquet"
    good = bad.read_bytes()
    # After some of the rows, or in what is read first.
    lr = pq.read_metadata(bad).row_group(1).column(2)
    cut = lr.data_page_offset + lr.total_compressed_size // 2 if place != "footer" else len(good) - 6
    bad.write_bytes(good[:cut] + bytes([good[cut] ^ 0x55]) + good[cut + 1 :])
    manifest = plan(jobs, tmp_path)
    assert manifest.state == "incomplete"
    assert manifest.failed[str(bad)].startswith(f"{bad}: cannot be read")
    assert "02.parquet" not in names_in(tmp_path / "plans")
    assert plans_in(tmp_path / "plans").num_rows == 3 * 3000 * 2
    bad.write_bytes(good)
    assert plan(jobs, tmp_path).state == "complete"
    assert whole(jobs, tmp_path)


def test_other_columns_are_refused_in_their_file(make_jobs, tmp_path):
    jobs = make_jobs(files=3, rows=20)
    pq.write_table(jobs.tables[1].drop_columns(["team"]), jobs.folder / "01.parquet")
    pq.write_table(jobs.tables[2].set_column(6, "team", pa.array([["x"]] * 20)), jobs.folder / "02.parquet")
    manifest = plan(jobs, tmp_path)
    assert (
        "its columns are not those of the other files: missing: team; new: none"
        in manifest.failed[f"{jobs.folder}/01.parquet"]
    )
    assert "its columns do not fit" in manifest.failed[f"{jobs.folder}/02.parquet"]
    assert manifest.rows == 40


def test_other_arguments_are_refused_and_named(make_jobs, tmp_path):
    jobs = make_jobs(files=2, rows=20)
    plan(jobs, tmp_path, policy="keep")
    with pytest.raises(ib.InputError, match="policy was 'keep', is 'grow', max_micro_batch was None, is 8"):
        plan(jobs, tmp_path, policy="grow", max_micro_batch=8)
    with pytest.raises(ib.InputError, match="clusters has other values"):
        ib.plan_files(jobs.folder, [8, 97], tmp_path / "plans")
    with pytest.raises(ib.InputError, match="clusters was '2 clusters', is '3 clusters'"):
        ib.plan_files(jobs.folder, [8, 96, 97], tmp_path / "plans")
    assert whole(jobs, tmp_path)
    plan(jobs, tmp_path, policy=512, resume=False)
    assert plans_in(tmp_path / "plans").equals(ib.plan_fleet(jobs.table, GPUS, policy=512))


def test_other_jobs_are_refused_and_named(make_jobs, tmp_path):
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    one, two = jobs.folder / "01.parquet", jobs.folder / "02.parquet"
    # A new time alone is no change.
    os.utime(one)
    assert plan(jobs, tmp_path).state == "complete"
    good = one.read_bytes()
    changed = bytearray(good)
    changed[100] ^= 1
    one.write_bytes(changed)
    with pytest.raises(
        ib.InputError, match=r"holds plans of other jobs: .*01.parquet has changed since it was planned"
    ):
        plan(jobs, tmp_path)
    one.write_bytes(good)
    content = two.read_bytes()
    two.unlink()
    with pytest.raises(ib.InputError, match=r"02.parquet is gone"):
        plan(jobs, tmp_path)
    assert json.loads((tmp_path / "plans" / "_manifest.json").read_text())["state"] == "complete"
    two.write_bytes(content)
    assert whole(jobs, tmp_path)
    plan(jobs, tmp_path)


def test_new_files_join(make_jobs, tmp_path, monkeypatch):
    jobs = make_jobs(files=3, rows=20)
    last = jobs.folder / "02.parquet"
    content = last.read_bytes()
    last.unlink()
    plan(jobs, tmp_path)
    last.write_bytes(content)
    again = planned_anew(monkeypatch)
    plan(jobs, tmp_path)
    assert again == ["02"] and whole(jobs, tmp_path)


def test_a_folder_with_something_else_in_it_is_left_alone(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "thesis.txt").write_text("ten years")
    for resume in (True, False):
        with pytest.raises(ib.InputError, match="not empty and not from an earlier run"):
            plan(jobs, tmp_path, resume=resume)
    assert names_in(tmp_path / "plans") == ["thesis.txt"]


def test_the_end_is_checked(make_jobs, tmp_path, monkeypatch):
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    plans = tmp_path / "plans"
    shutil.copy(plans / "00.parquet", plans / "twice.parquet")
    with pytest.raises(ib.InputError, match="twice.parquet: unexpected file in the output folder"):
        plan(jobs, tmp_path)
    (plans / "twice.parquet").unlink()


@pytest.mark.parametrize("damaged", ["_manifest.json", "_parts/00.json"])
@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("content", [b'{"version": 1}', b'{"state": "\xff"}', b"[" * 100_000])
def test_a_damaged_manifest_is_named_and_nothing_is_removed(make_jobs, tmp_path, damaged, resume, content):
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    plans = tmp_path / "plans"
    (plans / damaged).parent.mkdir(exist_ok=True)
    (plans / damaged).write_bytes(content)
    before = names_in(plans)
    with pytest.raises(
        ib.InputError, match=rf"{damaged}: is not a manifest or receipt of this version: .* delete this one"
    ):
        plan(jobs, tmp_path, resume=resume)
    assert names_in(plans) == before


def flipped(plans):
    content = bytearray((plans / "01.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (plans / "01.parquet").write_bytes(content)


@pytest.mark.parametrize(
    "harm",
    [
        flipped,
        lambda plans: (plans / "01.parquet").unlink(),
        lambda plans: os.truncate(plans / "01.parquet", 100),
        lambda plans: shutil.copy(plans / "00.parquet", plans / "01.parquet"),
    ],
    ids=["flipped", "deleted", "cut", "copied over"],
)
def test_a_part_that_is_damaged_is_planned_anew(make_jobs, tmp_path, monkeypatch, harm):
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    harm(tmp_path / "plans")
    names = planned_anew(monkeypatch)
    assert plan(jobs, tmp_path).state == "complete"
    assert names == ["01"]
    assert whole(jobs, tmp_path)


def test_plans_and_receipts_are_on_the_disk_before_the_run_goes_on(make_jobs, tmp_path, monkeypatch):
    """The receipt first, with the digests of the plans, so that no plans are without one; then the plans, and their names."""
    from isobatch.files import whole as files

    done = []
    sync, settle = files.sync, Path.replace

    def syncing(path):
        done.append(("sync", Path(path).name))
        sync(path)

    def replacing(partial, path):
        done.append(("move", Path(path).name))
        return settle(partial, path)

    monkeypatch.setattr(files, "sync", syncing)
    monkeypatch.setattr(Path, "replace", replacing)
    plan(make_jobs(files=1, rows=20), tmp_path)
    moved = done.index(("move", "00.parquet"))
    receipt = done.index(("move", "00.json"))
    assert done[receipt - 1][0] == "sync"  # the receipt, before it gets its name
    assert done[receipt + 1 : receipt + 3] == [("sync", "_parts"), ("sync", "plans")]  # its name
    assert receipt + 2 < moved
    assert done[moved - 1][0] == "sync"  # the plans, before they get their name
    assert done[moved + 1] == ("sync", "plans")  # their name, in the folder


KILLED = """
import os, signal, sys
import isobatch as ib
from isobatch.files import whole
from isobatch.fleet.folder import run

jobs, plans, where = sys.argv[1], sys.argv[2], int(sys.argv[3])
settle, moved = whole.settle, []
run.group_parts = lambda parts, *_: [parts]

def settling(partial, path):
    if not path.endswith(".parquet"):
        return settle(partial, path)
    if len(moved) == where:
        os.kill(os.getpid(), signal.SIGKILL)
    settle(partial, path)
    moved.append(path)

whole.settle = settling
ib.plan_files(jobs, [8, 96], plans)
"""
"""A run that is killed before its first move, its second, or its last, of files that get their places together."""


@pytest.mark.parametrize("moved", [0, 1, 3])
def test_a_run_killed_while_files_get_their_places_goes_on_and_leaves_none_that_nothing_knows(
    make_jobs, tmp_path, moved
):
    jobs = make_jobs(files=4, rows=50)
    plans, copy, once = (tmp_path / name for name in ("plans", "copy", "once"))
    words = [sys.executable, "-c", KILLED, str(jobs.folder), str(plans), str(moved)]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    assert len(list(plans.glob("*.parquet"))) == moved
    shutil.copytree(plans, copy)
    ib.plan_files(jobs.folder, GPUS, once)
    assert ib.plan_files(jobs.folder, GPUS, copy).state == "complete"
    files = [name for name in names_in(once) if name.endswith(".parquet")]
    assert names_in(once) == names_in(copy)
    assert all((once / name).read_bytes() == (copy / name).read_bytes() for name in files)
    assert plan(jobs, tmp_path, resume=False).state == "complete"
    assert whole(jobs, tmp_path)


def test_a_damaged_file_whose_jobs_are_gone_goes_too(make_jobs, tmp_path):
    """Its part is not planned again, so that nothing would replace it."""
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    os.truncate(tmp_path / "plans" / "02.parquet", 100)
    (jobs.folder / "02.parquet").unlink()
    assert plan(jobs, tmp_path).state == "complete"
    assert names_in(tmp_path / "plans") == ["00.parquet", "01.parquet", "_manifest.json"]


def test_two_runs_do_not_share_a_folder(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    with (
        Folder.at(str(tmp_path / "plans")).locked(),
        pytest.raises(ib.InputError, match="plans: another run is planning into this folder"),
    ):
        plan(jobs, tmp_path)
    assert plan(jobs, tmp_path).state == "complete"


@pytest.mark.parametrize(
    "name", ["../victim.parquet", "/victim.parquet", "a/../../victim.parquet", "_parts/x", ""]
)
def test_a_manifest_that_names_files_elsewhere_is_refused(make_jobs, tmp_path, name):
    jobs = make_jobs(files=1, rows=20)
    plan(jobs, tmp_path)
    victim = tmp_path / "victim.parquet"
    victim.write_bytes(b"mine")
    path = tmp_path / "plans" / "_manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["part"]["name"] = (
        name.replace("/victim", f"{tmp_path}/victim") if name[:1] == "/" else name
    ).removesuffix(".parquet")
    path.write_text(json.dumps(manifest))
    for resume in (True, False):
        with pytest.raises(ib.InputError, match="is no file of the folder"):
            plan(jobs, tmp_path, resume=resume)
    assert victim.read_bytes() == b"mine"


def test_a_folder_that_has_become_a_link_is_not_followed(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    (jobs.folder / "inner").mkdir()
    (jobs.folder / "00.parquet").rename(jobs.folder / "inner" / "00.parquet")
    plan(jobs, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    inside = tmp_path / "plans" / "inner"
    shutil.move(inside / "00.parquet", tmp_path / "elsewhere" / "00.parquet")
    inside.rmdir()
    inside.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ib.InputError, match="leads out of the folder"):
        plan(jobs, tmp_path, resume=False)
    assert (tmp_path / "elsewhere" / "00.parquet").exists()


def test_a_folder_that_cannot_be_written_is_named(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    (tmp_path / "plans").write_text("a file")
    with pytest.raises(ib.InputError) as caught:
        plan(jobs, tmp_path)
    assert caught.value.file == str(tmp_path / "plans")
    assert Path(tmp_path / "plans").read_text() == "a file"
