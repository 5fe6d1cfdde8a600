"""A stopped run, started again: finished files are not planned again, and each plan is there once."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import isobatch as ib
from isobatch.files import whole as whole_files
from isobatch.fleet import plan_folder
from jobs_in_files import Jobs, names_in, plans_in

REPETITIONS = range(int(os.environ.get("ISOBATCH_REPETITIONS", "1")))
"""Of what depends on the moment at which a run is stopped."""

GPUS = [8, 96]


def plan(jobs, tmp_path, **settings):
    return ib.plan_files(jobs.folder, GPUS, tmp_path / "plans", **settings)


def whole(jobs, tmp_path):
    """The folder holds each plan once, and nothing else."""
    assert plans_in(tmp_path / "plans").equals(ib.plan_fleet(jobs.table, GPUS))
    assert names_in(tmp_path / "plans") == [f"{n:02}.parquet" for n in range(len(jobs.tables))]
    return True


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def planned_anew(monkeypatch):
    """Collects the names of the files planned from now on."""
    names = []
    read_jobs = plan_folder.read_jobs

    def listening(query, fs, file, *rest):
        names.append(file.name)
        return read_jobs(query, fs, file, *rest)

    monkeypatch.setattr(plan_folder, "read_jobs", listening)
    return names


def test_finished_files_are_not_planned_again(make_jobs, tmp_path, monkeypatch):
    jobs = make_jobs(files=6, rows=50)
    settle = whole_files.settle

    def failing(partial, path):
        if Path(path).stem >= "03":
            raise OSError("the disk is gone")
        settle(partial, path)

    with monkeypatch.context() as patched:
        patched.setattr(whole_files, "settle", failing)
        with pytest.raises(ib.InputError, match="cannot be written: the disk is gone"):
            plan(jobs, tmp_path)
    finished = names_in(tmp_path / "plans")
    assert finished and set(finished) <= {f"{n:02}.parquet" for n in range(3)}, "only what is whole is left"
    again = planned_anew(monkeypatch)
    plans = plan(jobs, tmp_path)
    assert sorted([*(name.removesuffix(".parquet") for name in finished), *again]) == [
        f"{n:02}" for n in range(6)
    ]
    assert plans.skipped == len(finished) and whole(jobs, tmp_path)
    again.clear()
    assert plan(jobs, tmp_path).summary == plans.summary
    assert again == []


@pytest.mark.race("the run may be over before the signal is sent to it")
@pytest.mark.parametrize("_", REPETITIONS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, how, _):
    jobs, output = Jobs(tmp_path / "jobs", 30, 2000), tmp_path / "plans"
    (tmp_path / "clusters.csv").write_text("nodes,gpus_per_node\n1,8\n12,8\n")
    words = [sys.executable, "-m", "isobatch", "fleet", str(jobs.folder), f"{tmp_path}/clusters.csv", "-o"]
    subprocess.run([*words, str(tmp_path / "once")], check=True, capture_output=True)
    process = subprocess.Popen([*words, str(output)], stderr=subprocess.PIPE, text=True)
    target = random.randrange(1, 10)
    while process.poll() is None and len(list(output.glob("*.parquet"))) < target:
        time.sleep(0.001)
    process.send_signal(how)
    error = process.communicate()[1]
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}.get(how, -how)
    if how != signal.SIGKILL:
        message = f"What is done is kept in {output}: rerun the same command to continue"
        assert error.splitlines()[-1] == f"isobatch fleet: stopped. {message}"
    stopped = {path.name for path in output.glob("*.parquet")}
    assert len(stopped) < 30
    finished = {name: (output / name).read_bytes() for name in stopped}
    subprocess.run([*words, str(output)], check=True, capture_output=True)
    once = contents(tmp_path / "once")
    assert contents(output) == once and finished.items() <= once.items()


@pytest.mark.parametrize("place", ["data", "footer"])
def test_a_corrupt_file_is_named_and_stops_no_other(make_jobs, tmp_path, place):
    jobs = make_jobs(files=4, rows=3000, row_group_size=1000)
    bad = jobs.folder / "02.parquet"
    good = bad.read_bytes()
    # After some of the rows, or in what is read first.
    lr = pq.read_metadata(bad).row_group(1).column(2)
    cut = lr.data_page_offset + lr.total_compressed_size // 2 if place != "footer" else len(good) - 6
    bad.write_bytes(good[:cut] + bytes([good[cut] ^ 0x55]) + good[cut + 1 :])
    plans = plan(jobs, tmp_path)
    assert plans.failed[str(bad)].startswith(f"{bad}: cannot be read")
    assert names_in(tmp_path / "plans") == ["00.parquet", "01.parquet", "03.parquet"]
    assert plans.rows == plans_in(tmp_path / "plans").num_rows == 3 * 3000 * 2
    bad.write_bytes(good)
    again = plan(jobs, tmp_path)
    assert again.skipped == 3 and not again.failed and whole(jobs, tmp_path)


def test_other_columns_are_refused_in_their_file(make_jobs, tmp_path):
    import pyarrow as pa

    jobs = make_jobs(files=3, rows=20)
    pq.write_table(jobs.tables[1].drop_columns(["team"]), jobs.folder / "01.parquet")
    pq.write_table(jobs.tables[2].set_column(6, "team", pa.array([["x"]] * 20)), jobs.folder / "02.parquet")
    plans = plan(jobs, tmp_path)
    missing = "its columns are not those of the other files: missing: team; new: none"
    assert missing in plans.failed[f"{jobs.folder}/01.parquet"]
    assert "its columns do not fit" in plans.failed[f"{jobs.folder}/02.parquet"]
    assert plans.rows == 40


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "grow", "max_micro_batch": 8},
        {"clusters": [8, 97]},
        {"columns": ["job", "cluster", "lr"]},
        {"resume": False},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_arguments_plan_all_anew(make_jobs, tmp_path, monkeypatch, change):
    jobs = make_jobs(files=2, rows=20)
    plan(jobs, tmp_path)
    names = planned_anew(monkeypatch)
    settings = {"clusters": GPUS} | change
    plans = ib.plan_files(jobs.folder, output=tmp_path / "plans", **settings)
    assert sorted(names) == ["00", "01"] and plans.skipped == 0
    settings.pop("resume", None)
    assert plans_in(tmp_path / "plans").equals(
        ib.plan_fleet(jobs.table, settings.pop("clusters"), **settings)
    )


def test_a_file_of_other_jobs_is_planned_anew(make_jobs, tmp_path, monkeypatch):
    """So is a file that is new."""
    jobs = make_jobs(files=3, rows=20)
    last = jobs.folder / "02.parquet"
    last.rename(tmp_path / "later")
    plan(jobs, tmp_path)
    (tmp_path / "later").rename(last)
    jobs.tables[1] = jobs.tables[1].set_column(2, "lr", [[0.5] * 20])
    pq.write_table(jobs.tables[1], jobs.folder / "01.parquet")
    names = planned_anew(monkeypatch)
    assert plan(jobs, tmp_path).skipped == 1
    assert sorted(names) == ["01", "02"] and whole(jobs, tmp_path)


def test_files_of_one_size_and_one_tick_are_not_taken_for_each_other(make_jobs, tmp_path, monkeypatch):
    """A copy of another file's plans, and jobs written over within a tick of the clock."""
    jobs = make_jobs(files=1, rows=20)
    text = "job,effective_batch,lr,optimizer,gpus\n{},256,0.1,sgd,8\n"
    (jobs.folder / "00.parquet").unlink()
    for name in ("a", "b", "c"):
        (jobs.folder / f"{name}.csv").write_text(text.format(name))
        os.utime(jobs.folder / f"{name}.csv", ns=(10**18, 10**18))
    plan(jobs, tmp_path)
    (tmp_path / "plans" / "a.parquet").write_bytes((tmp_path / "plans" / "b.parquet").read_bytes())
    (jobs.folder / "c.csv").write_text(text.format("d"))
    os.utime(jobs.folder / "c.csv", ns=(10**18, 10**18))
    names = planned_anew(monkeypatch)
    assert plan(jobs, tmp_path).skipped == 1 and sorted(names) == ["a", "c"]
    plans = [pq.read_table(tmp_path / "plans" / f"{name}.parquet")["job"][0].as_py() for name in "abc"]
    assert plans == ["a", "b", "d"]


@pytest.mark.parametrize("name", ["thesis.txt", "twice.parquet", "old/00.parquet"])
def test_a_folder_with_something_else_in_it_is_left_alone(make_jobs, tmp_path, name):
    jobs = make_jobs(files=1, rows=20)
    stranger = tmp_path / "plans" / name
    stranger.parent.mkdir(parents=True)
    stranger.write_text("ten years")
    for resume in (True, False):
        with pytest.raises(ib.InputError, match=f"{name}: is not a file of these jobs' plans: move it"):
            plan(jobs, tmp_path, resume=resume)
    assert names_in(tmp_path / "plans") == [name] and stranger.read_text() == "ten years"


def test_plans_whose_jobs_are_gone_are_named(make_jobs, tmp_path):
    """A reader of the folder would take them for plans of this run."""
    jobs = make_jobs(files=2, rows=20)
    plan(jobs, tmp_path)
    (jobs.folder / "01.parquet").unlink()
    with pytest.raises(ib.InputError, match=r"01.parquet: is not a file of these jobs' plans"):
        plan(jobs, tmp_path)


@pytest.mark.parametrize(
    "harm",
    [
        lambda plans: (plans / "01.parquet").unlink(),
        lambda plans: os.truncate(plans / "01.parquet", 100),
        lambda plans: (plans / "01.parquet").write_bytes(b""),
        lambda plans: pq.write_table(pq.read_table(plans / "01.parquet"), plans / "01.parquet"),
    ],
    ids=["deleted", "cut", "emptied", "written by another"],
)
def test_a_file_of_plans_that_is_not_whole_is_planned_anew(make_jobs, tmp_path, monkeypatch, harm):
    jobs = make_jobs(files=3, rows=20)
    plan(jobs, tmp_path)
    harm(tmp_path / "plans")
    names = planned_anew(monkeypatch)
    assert plan(jobs, tmp_path).rows == 120
    assert names == ["01"] and whole(jobs, tmp_path)


def test_plans_are_on_the_disk_before_they_have_their_name(make_jobs, tmp_path, monkeypatch):
    calls = []
    sync, replace = whole_files.sync, Path.replace

    def syncing(path):
        calls.append(("sync", Path(path).name.partition(".parquet.")[0]))
        sync(path)

    def replacing(partial, path):
        calls.append(("move", Path(path).name))
        return replace(partial, path)

    monkeypatch.setattr(whole_files, "sync", syncing)
    monkeypatch.setattr(Path, "replace", replacing)
    plan(make_jobs(files=1, rows=20), tmp_path)
    assert calls == [("sync", ".00"), ("move", "00.parquet"), ("sync", "plans")]


def test_leftovers_of_a_killed_run_go_with_the_next(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    (tmp_path / "plans").mkdir()
    with whole_files.partial_of(str(tmp_path / "plans" / "00.parquet")) as partial:
        Path(partial).write_bytes(b"half a file")
    assert names_in(tmp_path / "plans") == [Path(partial).name]
    plan(jobs, tmp_path)
    assert whole(jobs, tmp_path)


def test_a_folder_that_cannot_be_written_is_named(make_jobs, tmp_path):
    jobs = make_jobs(files=1, rows=20)
    (tmp_path / "plans").write_text("a file")
    with pytest.raises(ib.InputError) as caught:
        plan(jobs, tmp_path)
    assert caught.value.file == str(tmp_path / "plans")
    assert Path(tmp_path / "plans").read_text() == "a file"
