"""isobatch schedule."""

import json

import pytest

import isobatch as ib
from isobatch import schedules as S
from isobatch.cli.schedule import characters


@pytest.fixture
def call(ran):
    return lambda *words, code=0: ran(["schedule", *words], code)


def test_prints_a_table(call):
    lines = call("linear", "--lr", "0.5", "--steps", "20").out.splitlines()
    assert [lines[at] for at in (0, 1, 11, -1)] == ["step\tlr", "0\t0.5", "10\t0.25", "20\t0"]


def test_prints_json_that_can_be_read_back(tmp_path, call):
    printed = call("wsd(decay=20%)", "--steps", "100", "--warmup", "10", "--json")
    schedule = S.Schedule.from_json(printed.out)
    assert json.loads(printed.out)["schema"] == 1
    assert ".0" not in printed.out and '"length":10,' in printed.out
    assert schedule.values([5, 80, 100]).tolist() == [0.5, 1.0, 0.0]
    assert "first_update_at_zero" in printed.err
    path = tmp_path / "s.json"
    path.write_text(printed.out)
    assert call(str(path)).out.splitlines()[-1] == "100\t0"


def test_draws(tmp_path, call):
    assert "█" in call("cosine", "--steps", "100", "--plot").out
    path = tmp_path / "s.svg"
    pytest.importorskip("vl_convert", reason="charts come with the extra 'report'")
    call("cosine", "--lr", "3e-4", "--steps", "1234567", "--plot", str(path))
    assert path.read_text().startswith("<svg") and list(tmp_path.iterdir()) == [path]
    call("cosine", "--steps", "100", "--plot", str(tmp_path / "no" / "s.svg"), code=2)
    assert ">Learning rate 0.0003 at most, 1,234,567 steps<" in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cosine"], "--steps"),
        (["cubic", "--steps", "9"], "unknown schedule"),
        (["step(3ep)", "--steps", "9"], "--steps-per-epoch is missing"),
        (["nowhere.json"], "nowhere.json"),
        (["cosine", "--steps", "0"], "--steps must be at least 1, got 0"),
    ],
)
def test_wrong_use(arguments, says, call):
    assert says in call(*arguments, code=2).err


def test_a_plot_shows_the_whole_run_with_ticks_and_its_peak(call):
    # A peak of three steps in 100,000: a column of the plot is 1,389.
    short = ib.schedules.warmup(ib.schedules.exponential(0.8, 0.5, every=1.0), 3)
    assert characters(short, 100_000).lstrip().startswith(f"{short.peak:.6g} │█")
    words = ["multistep(30ep, 60ep, 80ep)", "--lr", "0.1", "--steps", "450450", "--steps-per-epoch", "5005"]
    out = call(*words, "--warmup", "25025", "--plot").out.splitlines()
    assert out[0].lstrip().startswith("0.1 │") and out[-1].rstrip().endswith("450,450 steps")
    assert [word for word in out[-1].split() if word[0].isdigit()][:4] == ["0", "225,225", "450,450"]
    # The last thousandth is small, and not nothing.
    assert out[-3].endswith("▁")


def test_a_saved_plan_shows_its_schedule(tmp_path, ran):
    plan = ib.plan(ib.Recipe(effective_batch=256, lr=0.1, duration="100st", warmup="10st"), 8)
    plan.save(tmp_path / "plan.json")
    lines = ran(["schedule", str(tmp_path / "plan.json"), "--steps", "100"]).out.splitlines()
    assert lines[0] == "step\tlr" and lines[3] == f"10\t{plan.lr_at(10):.9g}"


def test_a_ramps_end_is_whole_steps_on_the_axis(tmp_path, ran):
    plan = ib.plan(ib.Recipe(effective_batch=1024, lr=0.1, ramp="128 128 50000", duration="500000sp"), 8)
    plan.save(tmp_path / "plan.json")
    end = ran(["schedule", str(tmp_path / "plan.json"), "--plot"]).out.splitlines()[-1].split()[-2:]
    assert end[1] == "steps" and end[0].replace(",", "").isdecimal()
