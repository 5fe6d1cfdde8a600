"""Former faults at the edges: endless, infinite, refused, or off by more than the promised error."""

import numpy as np
import pytest

import isobatch as ib
from isobatch import schedules as S
from isobatch.errors import InputError
from isobatch.schedules import extent
from isobatch.schedules.form import Cycle, Form, Inner, Segment, Track


def test_a_cap_over_a_curve_that_overflows():
    schedule = S.optax.exponential_decay(0.01, 1000, 2.0, end_value=0.1)
    assert schedule.at(1_100_000) == 0.1
    for dtype in ("f4", "f8"):
        row = ib.schedule_matrix([schedule], range(0, 1_200_001, 50_000), dtype=dtype)[0]
        assert row.tolist() == schedule.values(range(0, 1_200_001, 50_000)).astype(dtype).tolist()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_value_that_overflows_is_named(dtype):
    steps = range(0, 3000, 7)
    with pytest.raises(InputError, match="overflows at step") as error:
        ib.schedule_matrix([S.constant(0.1), S.exponential(0.1, 2.0)], steps, dtype=dtype)
    assert error.value.row == 2
    with pytest.raises(InputError, match="overflows at step 2000"):
        S.exponential(0.1, 2.0).at(2000)
    with pytest.raises(InputError, match="overflows at step 2000"):
        S.exponential(0.1, 2.0).values([0, 2000])
    # Nothing to grow from.
    assert S.exponential(0.0, 2.0).at(2000) == 0
    assert (ib.schedule_matrix([S.exponential(0.0, 2.0)], steps, dtype=dtype) == 0).all()
    # Too large for float32 alone.
    big = S.constant(1e39)
    assert ib.schedule_matrix([big], range(3), dtype="f8").tolist() == [[1e39] * 3]
    with pytest.raises(InputError, match="overflows"):
        ib.schedule_matrix([big], range(3))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_wave_so_far_out_that_no_float_holds_its_angle_is_named(dtype):
    shape = '{"kind": "cosine", "stretch": 15000000000.0}'
    text = f'{{"length": 1000, "a": 0.1, "b": 0, "beyond": true, "shape": {shape}}}'
    schedule = S.Schedule.from_json(f'{{"schema": 1, "form": {{"tracks": [{{"segments": [{text}]}}]}}}}')
    assert schedule.at(10) == 0.1
    with pytest.raises(InputError, match="overflows at step 5000"):
        schedule.at(5000)
    with pytest.raises(InputError, match="overflows at step 5000"):
        ib.schedule_matrix([schedule], [10, 5000], dtype=dtype)


def test_no_share_of_a_curve_that_overflows_is_nothing():
    text = (
        '{"length": 1200, "a": 1, "b": 0, "beyond": true, "shape": {"kind": "exponential", "rate": 15616.0}}'
    )
    schedule = S.Schedule.from_json(
        f'{{"schema": 1, "form": {{"tracks": [{{"segments": [{text}]}}], "scale": 0}}}}'
    )
    assert schedule.at(10**9) == 0
    assert ib.schedule_matrix([schedule], [0, 10**9], dtype="f8").tolist() == [[0.0, 0.0]]


def test_a_cycle_that_has_decayed_to_nothing_is_at_its_centre():
    grown = Segment(
        length=1.0, a=1.0, b=0.0, beyond=True, shape=S.exponential(1.0, 1e3).form.tracks[0].segments[0].shape
    )
    cycle = Cycle(period=1000.0, amplitude_decay=0.0, about=0.25)
    schedule = S.Schedule(Form(tracks=(Track(segments=(grown,), cycle=cycle),)))
    assert schedule.at(1999) == 0.25
    assert ib.schedule_matrix([schedule], range(1500, 2000), dtype="f8")[0].tolist() == [0.25] * 500


@pytest.mark.parametrize("grown", [{"peak_decay": 2.0}, {"amplitude_decay": 2.0, "about": 0.25}])
@pytest.mark.parametrize("shape", ["rex", "cosine", "one_minus_sqrt"])
def test_a_peak_that_grows_past_every_number_stays_at_its_limit(shape, grown):
    """Doubled each cycle of ten steps it is endless after some 10,000 steps.

    The limit holds it, alone as in bulk.
    """
    curve = getattr(S, shape)(1.0, 10).form.tracks[0].segments[0].shape
    falling = Segment(length=10.0, a=1.0, b=0.0, shape=curve)
    cycle = Cycle(period=10.0, **grown)
    schedule = S.Schedule(Form(tracks=(Track(segments=(falling,), cycle=cycle),), low=0.0, high=1.0))
    steps = range(9900, 11000)
    row = ib.schedule_matrix([schedule], steps, dtype="f8")[0]
    assert row.tolist() == [schedule.at(step) for step in steps]
    assert set(row[600::10].tolist()) == {1.0}


def test_a_small_share_of_a_curve_that_grows_is_kept():
    """A quarter plus 1e-13 of a curve with tenfold growth at each step."""
    growing = S.exponential(1.0, 10.0).form.tracks[0].segments[0].shape
    segment = Segment(length=1.0, a=1.0, b=0.0, beyond=True, shape=growing)
    cycle = Cycle(period=40.0, amplitude_decay=1e-13, about=0.25)
    schedule = S.Schedule(Form(tracks=(Track(segments=(segment,), cycle=cycle),)))
    row = ib.schedule_matrix([schedule], range(120), dtype="f8")[0]
    np.testing.assert_allclose(row, [schedule.at(step) for step in range(120)], rtol=1e-12)
    assert row[79] > 1e25 and 0.25 < row[92] < 0.26


@pytest.mark.timeout(20)
def test_no_cycle_is_endless():
    with pytest.raises(InputError, match="period must be"):
        S.cosine_restarts(0.9, 1e-300)
    for schedule in (
        S.cosine_restarts(0.9, 10, multiplier=1e308),
        S.cosine_restarts(0.9, 10, multiplier=1 + 2**-52),
        S.cosine_restarts(0.9, 2**-30),
        S.cosine_restarts(0.9, 1e15, multiplier=3),
        S.timm.CosineLRScheduler(0.9, 10, cycle_limit=2**52, cycle_mul=1.5),
    ):
        steps = [0.0, 5.0, 1e9, 2.0**53 - 1]
        assert np.isfinite(schedule.values(steps)).all()
        assert np.isfinite(ib.schedule_matrix([schedule], range(5000))).all()
        assert schedule.end is None
        assert np.isfinite(extent.span(schedule.form))


def test_forms_are_bounded():
    schedule = S.cosine(0.1, 10)
    with pytest.raises(InputError, match="200 levels"):
        for _ in range(300):
            schedule = S.product(schedule.scaled(0.5))
    schedule = S.cosine(0.1, 10).scaled(0.5)
    with pytest.raises(InputError, match="65536 parts"):
        for _ in range(40):
            schedule = S.product(schedule, schedule).scaled(0.5)
    inner = '{"segments":[{"shape":{"kind":"inner","form":{"tracks":['
    with pytest.raises(InputError, match="json"):
        S.Schedule.from_json('{"schema":1,"form":{"tracks":[' + inner * 50_000)


@pytest.mark.parametrize(
    "clock",
    [
        [(0, 0), (1e-300, 1)],
        [(0, 0), (1, 1e-300)],
        [(0, 0), (1, 1e300)],
        [(0, 1e30)],
        [(0, 0), (0, 1)],
        [(0, 1), (1, 1)],
        [],
        [(float("nan"), 1)],
    ],
    ids=str,
)
def test_clocks_are_bounded(clock):
    with pytest.raises(InputError, match=r"clock.* must"):
        S.cosine(0.1, 10).with_clock(clock)


def test_a_field_of_another_sort_is_named():
    segment = Segment(shape=Inner(form=S.constant(0.1).form), length=0.0)
    with pytest.raises(InputError, match="length must be a finite number above 0, got 0"):
        S.Schedule(Form(tracks=(Track(segments=(segment,)),)))
    with pytest.raises(InputError, match="limit must be a number of cycles, got -1"):
        S.Schedule(
            Form(
                tracks=(
                    Track(
                        segments=(Segment(shape=Inner(form=S.constant(0.1).form)),),
                        cycle=Cycle(period=1.0, limit=-1),
                    ),
                )
            )
        )
    with pytest.raises(InputError, match="tracks must hold at least one track"):
        S.Schedule(Form(tracks=()))


@pytest.mark.parametrize(
    "text",
    [
        "multistep(30ep, 60ep)",
        "step(30ep)",
        "goyal",
        "cosine_restarts(10ep)",
        "wsd(decay=9ep)",
        "exponential(gamma=0.9, every=2.4ep)",
        "cosine(until=80ep)",
    ],
)
def test_epochs_where_the_trainer_has_none(text):
    common = {"effective_batch": 256, "lr": 0.1, "dataset_size": 25_600, "duration": "90ep", "schedule": text}
    megatron = ib.plan(ib.Recipe(**common, convention="megatron"), 8)
    torch = ib.plan(ib.Recipe(**common), 8)
    assert megatron.steps_per_epoch is None
    steps = range(0, 9001, 50)
    assert megatron.schedule.values(steps).tolist() == torch.schedule.values(steps).tolist()


def test_a_plot_ends_with_the_run():
    recipe = ib.Recipe(effective_batch=256, lr=0.1, dataset_size=25_600, duration="90ep", schedule="goyal")
    assert extent.span(ib.plan(recipe, 8).schedule.form) == 9000
    larger = ib.plan(recipe, 16, policy=512)
    assert larger.schedule.form.run == larger.total_steps == 4500
    assert S.multistep(0.1, [30, 60]).form.run is None


def test_megatron_without_a_decay_drops_at_the_end():
    schedule = S.megatron.OptimizerParamScheduler(
        max_lr=0.1,
        min_lr=0.01,
        lr_decay_steps=100,
        lr_decay_style="WSD",
        wsd_decay_steps=0,
        lr_wsd_decay_style="cosine",
    )
    assert schedule.values([1, 99, 100, 101]).tolist() == [0.1, 0.1, 0.1, 0.01]


@pytest.mark.parametrize(
    "steps", [[1 + 1j], np.array([1 + 1j]), ["5"], np.array(["1970-01-01"], "M8[s]"), np.array(["5"], object)]
)
def test_steps_are_real_numbers(steps):
    with pytest.raises(ib.InputError, match="steps must be numbers"):
        ib.schedules.cosine(1.0, 10).values(steps)


def test_a_height_that_is_left_by_a_jump_is_the_peak():
    """A milestone within the warmup: the learning rate rises to 0.1 and falls to 0.001 at once.

    It was taken for a schedule whose highest value is 0.001, and as a
    recipe's schedule planned at 95 times its learning rates."""
    tuned = {"effective_batch": 64, "lr": 0.1, "gpus": 1, "duration": "100st"}
    first = ib.plan(ib.Recipe(**tuned, warmup="20st", schedule="multistep(5st, 10st)"), 1)
    assert first.schedule.peak == pytest.approx(0.1, rel=1e-12)
    second = ib.plan(ib.Recipe(**tuned, schedule=first.schedule), 1)
    steps = range(100)
    np.testing.assert_allclose(second.schedule.values(steps), first.schedule.values(steps), rtol=1e-12)
    sawtooth = S.Schedule(
        Form(tracks=(Track(segments=first.schedule.form.tracks[0].segments[:1], cycle=Cycle(period=20.0)),))
    )
    assert sawtooth.peak == pytest.approx(0.1, rel=1e-12)
    assert sawtooth.with_clock([(0, 0), (10, 7.3)]).peak == pytest.approx(0.1, rel=1e-9)
