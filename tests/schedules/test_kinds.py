"""The native kinds against their formulas, and schedules as values."""

import numpy as np
import pytest

from isobatch import schedules as S
from isobatch.errors import InputError
from isobatch.schedules.text import KINDS
from reference import schedules as oracle

X = np.concatenate([np.arange(0, 140), np.linspace(0, 139, 333)])


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_its_formula(name):
    first, options = oracle.FIRST.get(name, 0.1), oracle.ARGUMENTS[name][0]
    values = getattr(S, name)(first, **options).values(X)
    expected = getattr(oracle, name)(X, first, **options)
    assert np.abs(values - expected).max() <= 8 * np.spacing(expected.max())


def test_warmup_joins_on():
    schedule = S.warmup(S.cosine(0.1, 90), 20, start=0.02)
    expected = oracle.warmup(X, lambda x: oracle.cosine(x, 0.1, 90), 20, 0.02)
    assert np.abs(schedule.values(X) - expected).max() < 1e-16
    assert schedule.at(20) == 0.1
    assert S.warmup(S.cosine(0.1, 90), 0) == S.cosine(0.1, 90)


def test_values_keep_their_shape():
    schedule = S.linear(1.0, 4)
    assert schedule.values(np.arange(6).reshape(2, 3)).tolist() == [[1.0, 0.75, 0.5], [0.25, 0.0, 0.0]]
    assert schedule.values(np.arange(6, dtype=np.int32)[::2]).tolist() == [1.0, 0.5, 0.0]
    assert schedule.values([]).shape == (0,)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [0, -1, NAN, INF, 2.0**53, "5", None, True])
def test_bad_lengths(bad):
    for build in (S.linear, S.cosine, S.rex, S.cosine_restarts, S.inverse_sqrt, S.step):
        with pytest.raises(InputError):
            build(0.1, bad)


@pytest.mark.parametrize("bad", [-1e-9, -1, NAN, INF, 2.0**53, 1e300])
def test_bad_steps(bad):
    schedule = S.cosine(0.1, 100)
    with pytest.raises(InputError, match="numbers from 0 to below 2\\^53") as error:
        schedule.at(bad)
    assert error.value.field == "steps"
    with pytest.raises(InputError, match="numbers from 0 to below 2\\^53"):
        schedule.values([1.0, bad])
    assert schedule.at(2.0**53 - 1) == 0


def trainer(name, warmup=None, total=None, **more):
    return S.transformers.get_scheduler(
        name, lr=0.1, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=more
    )


def megatron(**change):
    argument = {"max_lr": 0.1, "lr_decay_steps": 1600, "lr_decay_style": "cosine"} | change
    return S.megatron.OptimizerParamScheduler(**argument)


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: S.linear(NAN, 5), "lr"),
        (lambda: S.linear(-0.1, 5), "lr"),
        (lambda: S.polynomial(0.1, 5, power=0), "power"),
        (lambda: S.multistep(0.1, [5, 3]), "milestones"),
        (lambda: S.multistep(0.1, [-5]), "milestones"),
        (lambda: S.exponential(0.1, 0.0), "gamma"),
        (lambda: S.wsd(0.1, 100, 101), "decay_steps"),
        (lambda: S.wsd(0.1, 100, 10, shape="cubic"), "shape"),
        (lambda: S.one_cycle(0.1, 100, 100), "rise_steps"),
        (lambda: S.trapezoid(0.1, 100, 100, 1), "warmup_steps"),
        (lambda: S.tanh(0.1, 100, lower=3, upper=3), "lower"),
        (lambda: S.cosine_restarts(0.1, 10, multiplier=0.5), "multiplier"),
        (lambda: S.table([]), "values"),
        (lambda: S.table([0.1, NAN]), "values"),
        (lambda: S.warmup(S.constant(0.1), -1), "steps"),
        (lambda: S.join([S.constant(0.1)], [3]), "boundaries"),
        (lambda: S.join([S.constant(0.1)] * 3, [5, 3]), "boundaries"),
        (lambda: S.product(), "schedules"),
        (lambda: S.constant(0.1).scaled(-1.0), "factor"),
        (lambda: S.constant(0.1).with_clock([]), "clock"),
        (lambda: S.constant(0.1).with_clock([(0, 0), (0, 1)]), "clock"),
        (lambda: S.constant(0.1).with_clock([(0, NAN)]), "clock"),
        (lambda: S.Schedule.from_json("{}"), "json"),
        (lambda: S.Schedule.from_json("no"), "json"),
        (lambda: S.Schedule.from_json(S.constant(0.1).to_json().replace('"schema":1', '"schema":9')),
        "schema"),
        (lambda: S.Schedule.from_json(S.constant(0.1).to_json().replace("constant", "cubic")), "json"),
        (lambda: S.torch.StepLR(0.1, step_size=0), "step_size"),
        (lambda: S.torch.MultiStepLR(0.1, milestones=[-1]), "milestones"),
        (lambda: S.torch.ConstantLR(0.1, factor=2.0), "factor"),
        (lambda: S.torch.LinearLR(0.1, start_factor=0.0), "start_factor"),
        (lambda: S.torch.LinearLR(0.1, total_iters=-1), "total_iters"),
        (lambda: S.torch.CosineAnnealingLR(0.1, T_max=NAN), "T_max"),
        (lambda: S.torch.OneCycleLR(0.1, max_lr=0.1), "total_steps"),
        (lambda: S.torch.OneCycleLR(0.1, max_lr=0.1, total_steps=10, anneal_strategy="cubic"),
        "anneal_strategy"),
        (lambda: S.torch.OneCycleLR(0.1, max_lr=0.1, total_steps=0), "total_steps"),
        (lambda: S.torch.CyclicLR(0.1, base_lr=0.1, max_lr=1, mode="square"), "mode"),
        (lambda: S.timm.CosineLRScheduler(0.1, t_initial=0), "t_initial"),
        (lambda: S.timm.CosineLRScheduler(0.1, t_initial=10, cycle_mul=0.5), "multiplier"),
        (lambda: S.timm.TanhLRScheduler(0.1, t_initial=10, lb=3, ub=3), "lower"),
        (lambda: S.timm.WSDLRScheduler(0.1, t_initial=10, decay_t=11), "decay_t"),
        (lambda: S.timm.WSDLRScheduler(0.1, t_initial=10, decay_t=5, decay_fn="?"), "decay_fn"),
        (lambda: S.timm.WSDLRScheduler(0.1, t_initial=10, decay_t=5, stable_fn="rsqrt"), "stable_timescale"),
        (lambda: trainer("greedy"), "name"),
        (lambda: trainer("linear", 3), "num_training_steps"),
        (lambda: trainer("linear", None, 3), "num_warmup_steps"),
        (lambda: trainer("linear", -1, 3), "num_warmup_steps"),
        (lambda: trainer("linear", 1, 3, power=1), "scheduler_specific_kwargs"),
        (lambda: trainer("polynomial", 3, 3), "num_training_steps"),
        (lambda: trainer("cosine_with_min_lr", 1, 3), "min_lr"),
        (lambda: megatron(lr_decay_style="cubic"), "lr_decay_style"),
        (lambda: megatron(lr_warmup_steps=1600), "lr_warmup_steps"),
        (lambda: megatron(min_lr=1.0), "max_lr"),
        (lambda: megatron(lr_decay_style="WSD"), "wsd_decay_steps"),
        (lambda: megatron(lr_decay_style="WSD", wsd_decay_steps=5, lr_wsd_decay_style="?"),
        "lr_wsd_decay_style"),
        (lambda: megatron(increment=0), "increment"),
        (lambda: S.optax.cosine_decay_schedule(0.1, 0), "decay_steps"),
    ],
)  # fmt: skip
def test_bad_arguments_name_their_field(build, field):
    with pytest.raises(InputError) as error:
        build()
    assert error.value.field == field


def test_a_schedule_cannot_be_changed():
    schedule = S.constant(0.1)
    with pytest.raises(AttributeError):
        schedule.form = None
    with pytest.raises(AttributeError):
        schedule.form.scale = 2.0


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (S.constant(0.5), "0.5"),
        (S.warmup(S.cosine(1, 10), 5), "linear 0 → 1 in 5, from 5 cosine 1 → 0 in 10"),
        (S.exponential(1, 0.9), "1 × 0.9 every 1"),
        (S.step(1, 5, 0.1), "1 × 0.1 in stairs of 5"),
        (S.inverse_sqrt(1, 100), "1 / (1 + x/100)^0.5"),
        (S.multistep(1, [3], 0.1), "1, from 3 0.1"),
        (S.cosine_restarts(1, 10, 2), "cosine 1 → 0 in 10, again every 10 × 2^i"),
    ],
)
def test_a_schedule_says_what_it_does(schedule, text):
    assert repr(schedule) == f"Schedule({text})"
