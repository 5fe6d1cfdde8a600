"""A script is compared with itself under other releases of a package, which pip takes from a folder here."""

import base64
import hashlib
import stat
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch")

from isobatch.equivalence.commands import environments
from isobatch.equivalence.commands.environments import Release, make_environment, releases_between
from isobatch.equivalence.order.answer import OrderedSame
from isobatch.equivalence.session import same
from isobatch.errors import InputError
from isobatch.report import pages

RELEASES = {
    "1.0": "RATE = 1e-2\n",
    "1.1": "RATE = 1e-2\n# the same\n",
    "1.2": "raise ImportError('it needs another Python')\n",
    "1.3": "RATE = 5e-3\n",
    "1.4": "RATE = 5e-3\n",
    "1.5rc1": "RATE = 1.0\n",
}
SCRIPT = """
import torch
from ratelib import RATE
torch.manual_seed(0)
net = torch.nn.Linear(4, 3)
optimizer = torch.optim.AdamW(net.parameters(), RATE)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
for x, y in torch.utils.data.DataLoader(data, 4, shuffle=True):
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def write_wheel(folder: Path, version: str, source: str) -> None:
    """Writes a wheel of one module by hand: no build tool is needed."""
    info = f"ratelib-{version}.dist-info"
    files = {
        "ratelib.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: ratelib\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"ratelib-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Makes pip take packages from a folder alone, and keep environments in another one."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version, source in RELEASES.items():
        write_wheel(folder, version, source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("ISOBATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(environments, "KEPT", ())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return folder


COMMAND = [sys.executable, "train.py"]


def test_releases_in_a_range_are_listed_without_pre_releases(index):
    assert releases_between(sys.executable, "ratelib", "1.0", "1.3") == ["1.0", "1.1", "1.2", "1.3"]
    assert releases_between(sys.executable, "ratelib", "1.3", "1.9") == ["1.3", "1.4"]
    with pytest.raises(InputError, match="the index has no release of ratelib there"):
        releases_between(sys.executable, "ratelib", "2.0", "2.9")
    with pytest.raises(InputError, match="after the last one"):
        releases_between(sys.executable, "ratelib", "1.3", "1.0")


def test_an_environment_is_made_once_and_a_release_that_is_not_there_is_named(index, monkeypatch):
    environment = make_environment(sys.executable, [Release("ratelib", "1.0")])
    assert environment.changes == ("ratelib 1.0",)
    assert (environment.folder / "ratelib.py").read_text() == RELEASES["1.0"]
    monkeypatch.setattr(environments, "_call", None)  # nothing is asked or installed again
    assert make_environment(sys.executable, [Release("ratelib", "1.0")]) == environment
    monkeypatch.undo()


def test_a_release_that_does_not_exist_is_an_error(index):
    with pytest.raises(InputError, match=r"ratelib 9\.9 cannot be installed: .*No matching distribution"):
        make_environment(sys.executable, [Release("ratelib", "9.9")])


def other_python(folder: Path, script: str, module: str, second: str) -> str:
    """Writes a script with its module, and an interpreter with another one: a line of shell around ours."""
    (folder / "train.py").write_text(script)
    (folder / "ratelib.py").write_text(module)
    shadow = folder / "other" / "ratelib.py"
    shadow.parent.mkdir()
    shadow.write_text(second)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nISOBATCH_X=1 exec {sys.executable} -c "{_SHADOW}" {shadow.parent} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return str(python)


def test_another_interpreter_is_compared_up_to_the_first_difference(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = other_python(tmp_path, SCRIPT, RELEASES["1.0"], RELEASES["1.3"])
    answer = same(COMMAND, against_python=python, steps=2)
    assert isinstance(answer, OrderedSame) and answer.same is False, answer.text
    assert answer.cause is not None and answer.cause.id == "release_rate"
    states = {row.id: row.holds for row in answer.measured}
    assert states["rows"] and states["inputs"] and states["weights"] and states["loss"] is None
    row = next(row for row in answer.measured if row.id == "rate")
    assert row.values == ["0.01", "0.005"] and row.step == 0
    assert "differs at step 0: 0.01 → 0.005" in answer.text
    with pytest.raises(AssertionError, match="first in the learning rate at step 0"):
        answer.require()


WEIGHED = """
import argparse
import torch
from ratelib import scale
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--accum_steps", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)
rows = torch.randint(1, 50, (64, 8))
for number, row in enumerate(rows):
    row[2 + number % 7 :] = 0
net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
passes = torch.utils.data.DataLoader(rows, args.batch_size)
for step in zip(*[iter(passes)] * args.accum_steps):
    for tokens in step:
        logits, labels = net(tokens).flatten(0, 1), tokens.flatten()
        loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=0, reduction="sum")
        (loss * scale(tokens, step)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
"""A language model by hand; a release of its library divides the loss."""
BY_STEP = "def scale(tokens, step): return 1 / sum(int((part != 0).sum()) for part in step)\n"
BY_PASS = "def scale(tokens, step): return 1 / int((tokens != 0).sum()) / len(step)\n"


def test_each_samples_weight_is_told_of_both_sides_at_a_split_that_the_code_has(tmp_path, monkeypatch):
    """`--split` sets the numbers of the code, on both sides."""
    monkeypatch.chdir(tmp_path)
    python = other_python(tmp_path, WEIGHED, BY_STEP, BY_PASS)
    answer = same(COMMAND, "1x3x2", against_python=python, steps=1)
    assert [cause.id for cause in answer.causes] == ["release_loss", "own_units"], answer.text
    row = next(row for row in answer.measured if row.id == "samples")
    assert row.values[0] == "1.0000" and len(row.values[1].split()) == 6 and row.step == 0
    pages.write(answer, tmp_path / "same.html")
    for text in (answer.causes[0].text, (tmp_path / "same.html").read_text()):
        assert all(value in text for value in row.values)
    assert f"with {python}: samples weigh as 1/tokens of their pass" in answer.causes[1].text
    answer.save(tmp_path / "same.json")
    assert OrderedSame.load(tmp_path / "same.json") == answer


_SHADOW = (
    "import sys, runpy, os; sys.path[:1] = [sys.argv[1]]; del sys.argv[:2]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.slow
def test_a_bisection_finds_the_first_release_that_differs_and_steps_over_one_that_does_not_start(index, ran):
    answer = same(COMMAND, against="ratelib", bisect="1.0..1.4", steps=2)
    assert answer.same is False and answer.sides == ["ratelib 1.0", "ratelib 1.3"], answer.text
    assert answer.cause.text.startswith("since ratelib 1.3, and not in 1.1: the learning rate")
    states = {start.name: start.text for start in answer.starts}
    assert states["1.1"] == "the same" and states["1.3"] == states["1.4"] == "learning rate differs"
    assert "it needs another Python" in states["1.2"]


@pytest.mark.slow
def test_the_same_releases_are_the_same_and_pages_and_json_say_so(index, ran, tmp_path):
    answer = same(COMMAND, against="ratelib==1.1", bisect="ratelib==1.0..1.1", steps=2)
    assert answer.same and not answer.causes, answer.text
    answer.save(tmp_path / "same.json")
    assert OrderedSame.load(tmp_path / "same.json") == answer
