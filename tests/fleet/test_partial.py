"""Unfinished files: the next run removes those of a killed writer, and keeps those of a live one."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isobatch.cli import main

pa = pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")

from isobatch import system  # noqa: E402
from isobatch.files import whole  # noqa: E402
from isobatch.files.write import table_writer  # noqa: E402

WRITER = """
import sys, time
import pyarrow as pa
from isobatch.files.write import table_writer
with table_writer(sys.argv[1], {}) as write:
    write(pa.table({"a": list(range(1000))}))
    print("writing", flush=True)
    time.sleep(600)
"""
TABLE = pa.table({"a": [1]})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_leftovers_of_a_killed_process_go_with_the_next_run(tmp_path, suffix):
    output = tmp_path / f"one.{suffix}"
    with subprocess.Popen([sys.executable, "-c", WRITER, output], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"writing\n"
        live = names(tmp_path)
        with table_writer(str(output), {}) as write:
            write(TABLE)
        assert len(live) == 1 and live[0].startswith(f".one.{suffix}.")
        assert names(tmp_path) == [*live, f"one.{suffix}"], "the other process is still writing"
        process.send_signal(signal.SIGKILL)
    assert names(tmp_path) == [*live, f"one.{suffix}"]
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("job,effective_batch,lr\na,256,0.1\n")
    assert main(["fleet", str(jobs), "--gpus", "8", "-o", str(output)]) == 0
    assert names(tmp_path) == ["jobs.csv", f"one.{suffix}"]


def test_other_files_stay(tmp_path):
    with whole.partial_of(str(tmp_path / "one.csv")) as path:
        own = Path(path).name
    strangers = [own[:-1], own.replace("one", "two"), own.replace(own.split(".")[3], "0" * 8), ".one.csv.swp"]
    for name in strangers:
        (tmp_path / name).touch()
    with table_writer(str(tmp_path / "one.csv"), {}) as write:
        write(TABLE)
    assert names(tmp_path) == sorted([*strangers, "one.csv"])


def test_a_link_is_not_followed(tmp_path):
    with whole.partial_of(str(tmp_path / "one.csv")) as path:
        pass
    Path(path).unlink()
    Path(path).symlink_to(tmp_path / "theirs")
    with table_writer(str(tmp_path / "one.csv"), {}) as write:
        write(TABLE)
    assert names(tmp_path) == [Path(path).name, "one.csv"]


def test_a_file_that_its_writer_moves_before_it_is_locked_is_not_taken(tmp_path, monkeypatch):
    flock = system.fcntl.flock

    def late(handle, how):
        (hidden,) = names(tmp_path)
        (tmp_path / hidden).rename(tmp_path / "one.csv")
        flock(handle, how)

    monkeypatch.setattr(system.fcntl, "flock", late)
    with whole.partial_of(str(tmp_path / "one.csv")) as path:
        assert names(tmp_path) == ["one.csv"] and not Path(path).exists()


def test_without_locks_runs_share_no_file(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError("no locks here")

    monkeypatch.setattr(system.fcntl, "flock", none)
    with (
        whole.partial_of(str(tmp_path / "one.csv")) as first,
        whole.partial_of(str(tmp_path / "one.csv")) as two,
    ):
        assert first != two and names(tmp_path) == []


@pytest.mark.race("the run may be over before the signal is sent to it")
@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_fleet_that_is_ended_leaves_no_partial_file(tmp_path, how, code):
    jobs = "".join(f"{job},{64 * job},0.1\n" for job in range(1, 20_001))
    (tmp_path / "jobs.csv").write_text(f"job,effective_batch,lr\n{jobs}")
    words = [sys.executable, "-m", "isobatch", "fleet", "jobs.csv", "--gpus", "1..512", "-o", "plans.csv"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not any(
            path.stat().st_size for path in tmp_path.glob(".plans.csv.*")
        ):
            time.sleep(0.01)
        process.send_signal(how)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == code
    assert "stopped: plans.csv is as it was before" in error and "fault" not in error
    assert names(tmp_path) == ["jobs.csv"]
