"""Schedule texts and their schedules in a plan."""

import msgspec
import numpy as np
import pytest

from isobatch import schedules as S
from isobatch.errors import InputError
from isobatch.schedules import Units, check_spec, resolve
from isobatch.schedules.text import KINDS
from reference import schedules as oracle

ONE = Units(tuned_batch=256, batch=256, steps_per_epoch=100, seq_len=1000)


def made(spec, units=ONE, **change):
    run = {"peak": 0.4, "warmup_steps": 100, "total_steps": 900, "units": units} | change
    return resolve(spec, **run)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.build])
def test_every_kind_warms_up_to_the_peak(kind):
    schedule = made(oracle.ARGUMENTS[kind][1], warmup_start=0.1, min_lr=0.001)
    assert (schedule.at(0), schedule.at(50)) == (0.1, 0.25)
    assert schedule.at(100) == pytest.approx(0.4, rel=1e-4)
    values = schedule.values(range(1500))
    assert values.max() == pytest.approx(0.4, rel=1e-4)
    assert values[100:].min() >= 0.001 or kind == "linear_to_zero"


@pytest.mark.parametrize(
    "kind", ["linear", "cosine", "polynomial", "wsd", "trapezoid", "rex", "one_minus_sqrt"]
)
def test_decays_end_at_the_minimum_with_the_run(kind):
    schedule = made(kind, min_lr=0.01)
    assert schedule.at(900) == 0.01
    assert schedule.at(899) > 0.01
    assert schedule.end == 900


def test_lengths():
    assert made("wsd(decay=20%)").at(720) == 0.4 > made("wsd(decay=20%)").at(721)
    for text in ("250st", "2.5ep", "64000sp", "6.4e7tok"):
        values = made(f"multistep({text})").values([249, 250])
        assert values.tolist() == [0.4, 0.04000000000000001], text
    # By samples, rounded half up: 255 steps of 256 are 127.5 of 512.
    double = Units(tuned_batch=256, batch=512, steps_per_epoch=50)
    assert made("multistep(255st)", double).values([127, 128]).round(3).tolist() == [0.4, 0.04]
    assert made("multistep(253st)", double).values([126, 127]).round(3).tolist() == [0.4, 0.04]
    assert made("step(1ep, gamma=0.5)", double, warmup_steps=0).values([49, 50]).tolist() == [0.4, 0.2]


def test_milestones_count_from_the_start_of_the_run():
    assert made("multistep(1ep, 3ep)").values([100, 299, 300]).round(4).tolist() == [0.04, 0.04, 0.004]
    assert made("goyal", total_steps=9000).values([500, 3000, 6000]).round(5).tolist() == [0.4, 0.04, 0.004]


def test_a_schedule_stands_for_the_tuned_run():
    tuned = S.warmup(S.cosine(0.1, 900), 100)
    assert made(tuned, peak=0.1).form == msgspec.structs.replace(tuned.form, run=900)
    grown = made(tuned, Units(tuned_batch=256, batch=512), peak=0.2)
    steps = np.arange(500)
    assert np.abs(grown.values(steps) - 2 * tuned.values(2 * steps)).max() < 1e-15


def test_a_warmup_as_long_as_the_run():
    assert made("cosine", warmup_steps=900).values([450, 900, 950]).tolist() == [0.2, 0.4, 0.4]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cubic", "unknown schedule 'cubic': there are constant, cosine"),
        ("", "a name and its arguments"),
        ("constant(3)", "takes no arguments"),
        ("cosine)", "a name and its arguments"),
        ("wsd(20)", "a length such as"),
        ("wsd(decay=-20%)", "a length such as"),
        ("wsd(decay=0%)", "a length such as"),
        ("wsd(decay=nan%)", "a length such as"),
        ("wsd(decay=1%, decay=2%)", "twice"),
        ("wsd(decay=1%, shape=cubic)", "cosine, linear, one_minus_sqrt or rex"),
        ("wsd(decay=1%, shape=linaer)", "did you mean 'linear'"),
        ("cosin", "did you mean 'cosine'"),
        ("wsd(dekay=1%)", "did you mean 'decay'"),
        ("wsd(fall=1%)", "unknown argument of wsd 'fall': there are decay, shape"),
        ("wsd(decay=x, shape=y)", "2 faults"),
        ("step", "every of step is missing"),
        ("multistep(gamma=0.1)", "milestones of multistep is missing"),
        ("polynomial(power=two)", "a number"),
        ("polynomial(power=nan)", "a finite number"),
        ("step(3ep, gamma=-1)", "at least 0"),
    ],
)
def test_bad_texts(text, says):
    with pytest.raises(InputError, match=says.replace("(", r"\(")) as error:
        check_spec(text)
    assert error.value.field == "schedule"


def test_texts_that_do_not_fit_the_plan():
    bare = Units(tuned_batch=1, batch=1)
    for text, says in [
        ("step(3ep)", "dataset"),
        ("step(3tok)", "seq_len"),
        ("wsd(decay=95%)", "at most the 800 steps after the warmup"),
        ("exponential", "gamma"),
    ]:
        with pytest.raises(InputError, match=says):
            made(text, bare)
    with pytest.raises(InputError, match="warmup"):
        made("vaswani", warmup_steps=0)
    with pytest.raises(InputError):
        made("cosine", total_steps=0)
    with pytest.raises(InputError, match="peak"):
        made("cosine", peak=float("nan"))
