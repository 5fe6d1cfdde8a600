"""Tools of other distributions, by entry points: that of docs/tools.md beside faulty ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.doctor.examine import examine
from isobatch.tools.detect import readers, tool_of
from isobatch.tools.installed import installed
from isobatch.tools.map import Setting, by_code, read_settings, write_settings
from isobatch.tools.read import read_file
from isobatch.tools.sheet import SettingsSheet
from isobatch.tools.testing import LAWS, no_part_is_lost, the_map_is_true

PAGE = Path(__file__).parents[2] / "docs/tools.md"
(TOY,) = [
    block
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if "MYTRAINER =" in block
]
MODULES = {
    "mytrainer_isobatch": TOY,
    "broken_import": "import package_that_is_not_there",
    "broken_exit": "raise SystemExit('no license')",
    "broken_kind": "TOOL = {'name': 'kind'}",
    "broken_name": "from isobatch.tools.tool import Tool\nEMPTY = Tool('empty', 'E')\nOTHER = Tool('other', "
    "'O')\n",
}
ENTRIES = {
    "mytrainer": "mytrainer_isobatch:MYTRAINER",
    "import-er": "broken_import:TOOL",
    "exits": "broken_exit:TOOL",
    "kind": "broken_kind:TOOL",
    "empty": "broken_name:EMPTY",
    "misnamed": "broken_name:OTHER",
    "gone": "mytrainer_isobatch:GONE",
    "axolotl": "mytrainer_isobatch:MYTRAINER",
}
FAULTS = {
    "import-er": "No module named 'package_that_is_not_there'",
    "exits": "no license",
    "kind": "must be an isobatch.tools.tool.Tool, got dict",
    "empty": "neither a reader nor a writer",
    "misnamed": "its record is named 'other'",
    "gone": "has no attribute 'GONE'",
}
FILE = "images_per_gpu: 4\nbase_lr: 0.1\nmax_iter: 90\nsync_bn: false\n"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of installed packages, as pip leaves it."""
    folder = tmp_path / "site"
    for name, text in MODULES.items():
        (folder / f"{name}.py").parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    info = folder / "mytrainer_isobatch-1.2.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: mytrainer-isobatch\nVersion: 1.2\n")
    lines = "".join(f"{name} = {value}\n" for name, value in ENTRIES.items())
    info.joinpath("entry_points.txt").write_text(f"[isobatch.tools]\n{lines}")
    monkeypatch.syspath_prepend(folder)
    installed.cache_clear()
    yield folder
    installed.cache_clear()
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_tool_of_another_distribution_is_read_and_written_as_our_own(packages, tmp_path, ran):
    file = tmp_path / "train.yaml"
    file.write_text(FILE)
    page = read_file(file)
    assert (page.tool, page.title, page.guessed, page.notes) == ("mytrainer", "My Trainer", True, [])
    recipe = ib.Recipe.read(file, gpus=8)
    assert recipe == ib.Recipe.read(file, tool="MyTrainer", gpus=8)
    assert (recipe.effective_batch, recipe.lr, recipe.duration, recipe.optimizer) == (32, 0.1, "90st", "sgd")
    moved = ib.plan(recipe, 8, policy=64).to("mytrainer")
    batch = {"images_per_gpu": 4, "accumulate": 2}
    rate = {"base_lr": pytest.approx(0.2), "max_iter": 45, "solver": "sgd"}
    assert dict(moved.settings) == batch | rate
    (finding,) = examine(file, 8, tuned_gpus=8).findings
    assert finding.change == "sync_bn: true"
    run = ran(["plan", "--from", str(file), "--set", "gpus=8", "--gpus", "4", "--to", "mytrainer"])
    assert "read as My Trainer" in run.err and "images_per_gpu: 4\n" in run.out


def help_of(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help", "all"])
    return capsys.readouterr().out


def test_every_place_that_lists_tools_lists_it(packages, capsys):
    assert readers()[-1] == "mytrainer"
    for command in ("plan", "doctor", "counts"):
        says = help_of(command, capsys)
        assert re.search(r"tools whose files are read.*\n(  .*\n)*.*mytrainer", says)
    assert re.search(r"--to writes.*\n(  .*\n)*.*mytrainer", help_of("plan", capsys))
    with pytest.raises(ib.InputError, match="did you mean 'mytrainer'"):
        ib.Recipe.read({"lr": 1}, tool="mytrainr")
    with pytest.raises(ib.InputError, match=r"one of .*, hyperpod, mytrainer"):
        read_file({"colour": "red"})


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_tool_is_named_with_its_distribution(packages, name):
    says = f"the tool {name} of mytrainer-isobatch 1.2 cannot be used: .*{FAULTS[name]}.*Update or uninstall"
    with pytest.raises(ib.InputError, match=says):
        ib.Recipe.read(FILE, tool=name)
    with pytest.raises(ib.InputError, match=says):
        ib.plan(ib.Recipe(effective_batch=8, lr=0.1, duration="9st"), 8).to(name)
    with pytest.raises(ib.InputError, match=says):
        read_file({"colour": "red"})


def test_no_distribution_takes_the_name_of_our_own_tool(packages):
    assert tool_of("axolotl").title == "axolotl"
    with pytest.raises(
        ib.InputError, match="the tool axolotl of .*: isobatch itself has a tool of that name"
    ):
        read_file({"colour": "red"})


@pytest.mark.parametrize("law", LAWS)
def test_a_writer_of_another_distribution_keeps_the_laws_of_our_own(packages, law):
    law("mytrainer")


def test_a_writer_that_loses_a_value_is_named_with_it(packages):
    tool = tool_of("mytrainer")
    whole = tool.settings
    object.__setattr__(tool, "settings", tuple(row for row in whole if row.field != "lr"))
    with pytest.raises(AssertionError, match=r"the writer of mytrainer loses \['lr'\]"):
        no_part_is_lost("mytrainer")


FAULTY_MAPS = {
    "the map of mytrainer lacks \\['base_lr'\\], written and read": lambda rows: rows[:2] + rows[3:],
    "the map of mytrainer has \\['nothing'\\], neither written nor read": lambda rows: (
        *rows,
        by_code("nothing", "lr"),
    ),
    "mytrainer writes \\['base_lr'\\] not as its map does": lambda rows: (
        *rows[:2],
        Setting("base_lr", "min_lr", off=7.0),
        *rows[3:],
    ),
    "mytrainer reads accumulate as accumulation 1, its map as 2": lambda rows: rows,
}


@pytest.mark.parametrize("fault", FAULTY_MAPS)
def test_a_map_that_is_not_as_the_code_is_named(packages, fault):
    """Code that reads and writes, beside a map that lost a row, gained one, or has it otherwise."""
    tool = tool_of("mytrainer")
    rows = tool.settings

    def read(page):
        read_settings(page, rows)
        if "1, its map" in fault:
            page.give("accumulation", 1, "accumulate")

    def write(plan, job):
        return SettingsSheet(write_settings(plan, rows))

    object.__setattr__(tool.reader, "read", read)
    object.__setattr__(tool.writer, "write", write)
    object.__setattr__(tool, "settings", FAULTY_MAPS[fault](rows))
    with pytest.raises(AssertionError, match=fault):
        the_map_is_true("mytrainer")


def test_it_is_loaded_when_a_tool_is_asked_for(packages):
    code = (
        "import sys, isobatch as ib; ib.plan(ib.Recipe(effective_batch=8, lr=0.1), 8); "
        "print('mytrainer_isobatch' in sys.modules)"
    )
    reading_code = code.replace(
        "print(", "ib.Recipe.read({'images_per_gpu': 1, 'base_lr': 1.0}, gpus=1); print("
    )
    for text, loaded in ((code, "False"), (reading_code, "True")):
        path = os.pathsep.join(map(str, (packages, *filter(None, sys.path))))
        run = subprocess.run(
            [sys.executable, "-c", text],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert run.stdout.strip() == loaded
