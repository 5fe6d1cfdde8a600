"""Power cuts: after one at any moment each output is whole or absent, and the same command finishes the work."""

import sys

import pytest

import isobatch as ib
from disk import Disk, restore
from isobatch.cli import main
from isobatch.files.whole import sync, write_whole
from isobatch.fleet.folder import run as run_module
from jobs_in_files import Jobs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks up open files in /proc")

GPUS = [8, 96]


@pytest.fixture
def jobs(tmp_path):
    return Jobs(tmp_path / "jobs", files=3, rows=40)


def contents(folder):
    """Every file of plans by its path in the folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).parts[0].startswith("_")
    }


def survives(disk, jobs, tmp_path, every=1):
    """A tree after each cut has whole files or none, and the command that was cut makes of it what it would have made."""
    wanted = contents(disk.root / "out" / "plans")
    for number, (event, *trees) in enumerate(disk.cuts):
        for kind, tree in zip(("late", "early"), trees, strict=True):
            case = f"{kind}, after {event}, cut {number} of {len(disk.cuts)}"
            plans = {name.removeprefix("out/plans/"): text for name, text in tree.items()}
            for name, text in plans.items():
                if not name.startswith("_"):
                    assert text == wanted[name], f"{name} is not whole: {case}"
            if number % every and number != len(disk.cuts) - 1:
                continue
            again = restore(tree, tmp_path / f"{kind}{number}") / "out" / "plans"
            manifest = ib.plan_files(jobs.folder, GPUS, again)
            assert manifest.state == "complete", case
            assert contents(again) == wanted, case
            assert sorted(path.name for path in again.glob("_*")) == ["_manifest.json"], case
    return True


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["alone", "together"])
def test_a_folder_of_plans_survives_a_power_cut(jobs, tmp_path, monkeypatch, every, how):
    """Files that get their places each by itself, and all at once."""
    if how == "together":
        monkeypatch.setattr(run_module, "group_parts", lambda parts, *_: [parts])
    disk = Disk(tmp_path / "disk", monkeypatch)
    ib.plan_files(jobs.folder, GPUS, disk.root / "out" / "plans")
    monkeypatch.undo()
    last = disk.cuts[-1][1]
    assert contents(disk.root / "out" / "plans") == {
        name.removeprefix("out/plans/"): text for name, text in last.items() if "/_" not in name
    }, "what is complete is on the disk"
    assert len(disk.cuts) > 15 or how == "together"
    assert survives(disk, jobs, tmp_path, every)


def test_a_file_is_whole_or_the_old_one(tmp_path, monkeypatch):
    disk = Disk(tmp_path / "disk", monkeypatch)
    plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1), 8)
    texts = []
    for lr in (0.1, 0.2):
        plan = ib.plan(ib.Recipe(effective_batch=256, lr=lr), 8)
        plan.save(disk.root / "plan.json")
        texts.append((disk.root / "plan.json").read_bytes())
        assert disk.cuts[-1][1] == {"plan.json": texts[-1]}, "saved is on the disk"
    found = [tree.get("plan.json") for _, *trees in disk.cuts for tree in trees]
    assert set(found) == {None, *texts}
    for _, *trees in disk.cuts:
        for tree in trees:
            others = {text for name, text in tree.items() if name != "plan.json"}
            assert others <= {b"", *texts}  # what was being written, under another name


def test_a_table_is_whole_or_absent(jobs, tmp_path, monkeypatch):
    disk = Disk(tmp_path / "disk", monkeypatch)
    output = disk.root / "plans.parquet"
    clusters = tmp_path / "clusters.csv"
    clusters.write_text("cluster,nodes,gpus_per_node\na,1,8\nb,12,8\n")
    assert main(["fleet", str(jobs.folder), str(clusters), "-o", str(output)]) == 0
    written = output.read_bytes()
    assert disk.cuts[-1][1] == {"plans.parquet": written}
    assert {tree.get("plans.parquet") for _, *trees in disk.cuts for tree in trees} <= {None, written}


def test_the_disk_loses_what_nobody_waited_for(tmp_path, monkeypatch):
    """The simulation itself: without fsync a file is absent or empty, and a folder without a name is gone."""
    disk = Disk(tmp_path / "disk", monkeypatch)
    (disk.root / "a.part").write_bytes(b"whole")
    (disk.root / "a.part").replace(disk.root / "a")
    assert disk.cuts[-1] == ("replace a", {}, {"a": b""})
    (disk.root / "new").mkdir()
    write_whole(disk.root / "new" / "b", b"b")
    assert disk.cuts[-1][1] == {}, "nobody synced the folder's own name"
    sync(disk.root)
    assert disk.cuts[-1][1] == {"new/b": b"b"}
    assert disk.cuts[-1][2] == {"a": b"", "new/b": b"b"}
