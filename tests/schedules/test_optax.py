"""isobatch.schedules.optax against the installed optax, in float64."""

import numpy as np
import pytest

from isobatch.errors import InputError
from isobatch.schedules import optax as ours
from reference.parity import assert_same

jax = pytest.importorskip("jax", reason="compares with optax")
peer = pytest.importorskip("optax", reason="compares with optax")
pytestmark = pytest.mark.peers

WARM = {"init_value": 0.01, "peak_value": 0.3, "warmup_steps": 10}
LOWER = WARM | {"peak_value": 0.2}
FALL = {"init_value": 0.3, "end_value": 0.01, "transition_steps": 70}
DECAY = {"init_value": 0.3, "transition_steps": 10, "decay_rate": 0.7}
HALVED = {"transition_steps": 20, "decay_rate": 0.5}
LATE = {"transition_begin": 5, "staircase": True, "end_value": 0.05}
SCALES = {"init_value": 0.3, "boundaries_and_scales": {10: 2.0, 40: 0.1}}
FROM_0 = {"boundaries_and_scales": {0: 0.5, 10: 2.0, 40: 0.1}}
CASES = [
    ("constant_schedule", {"value": 0.3}),
    ("polynomial_schedule", FALL | {"power": 2}),
    ("polynomial_schedule", FALL | {"power": 0.5, "transition_begin": 9}),
    ("linear_schedule", {"init_value": 0.0, "end_value": 0.3, "transition_steps": 70, "transition_begin": 9}),
    ("linear_schedule", {"init_value": 0.1, "end_value": 0.3, "transition_steps": 0}),
    ("piecewise_constant_schedule", {"init_value": 0.3, "boundaries_and_scales": {10: 0.5, 40: 0.1}}),
    ("piecewise_constant_schedule", {"init_value": 0.3}),
    ("exponential_decay", DECAY),
    ("exponential_decay", DECAY | LATE),
    ("exponential_decay", DECAY | {"decay_rate": 1.1, "end_value": 0.5}),
    ("cosine_decay_schedule", {"init_value": 0.3, "decay_steps": 80}),
    ("cosine_decay_schedule", {"init_value": 0.3, "decay_steps": 80, "alpha": 0.1, "exponent": 1.5}),
    ("piecewise_interpolate_schedule", SCALES | {"interpolate_type": "linear"}),
    ("piecewise_interpolate_schedule", SCALES | FROM_0 | {"interpolate_type": "cosine"}),
    ("linear_onecycle_schedule", {"transition_steps": 97, "peak_value": 0.3}),
    ("cosine_onecycle_schedule", {"transition_steps": 97, "peak_value": 0.3}),
    ("warmup_constant_schedule", WARM),
    ("warmup_constant_schedule", WARM | {"warmup_steps": 0}),
    ("warmup_cosine_decay_schedule", WARM | {"decay_steps": 90, "end_value": 0.02}),
    ("warmup_cosine_decay_schedule", WARM | {"decay_steps": 90, "warmup_steps": 0, "exponent": 2.0}),
    ("warmup_exponential_decay_schedule", WARM | HALVED | {"end_value": 0.03}),
    ("sgdr_schedule", {"cosine_kwargs": [WARM | {"decay_steps": 30}, LOWER | {"decay_steps": 50}]}),
]


def peer_values(schedule, steps):
    with jax.enable_x64(True):
        return np.array([float(schedule(jax.numpy.asarray(x, jax.numpy.float64))) for x in range(steps)])


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_has_the_values_of_the_peer(name, arguments):
    assert_same(getattr(ours, name)(**arguments), peer_values(getattr(peer, name)(**arguments), 120))


def test_join():
    parts = [
        ("linear_schedule", (0.0, 0.3, 10)),
        ("exponential_decay", (0.3, 10, 0.5)),
        ("constant_schedule", (0.1,)),
    ]
    joined = peer.join_schedules([getattr(peer, name)(*arguments) for name, arguments in parts], [10, 50])
    schedule = ours.join_schedules([getattr(ours, name)(*arguments) for name, arguments in parts], [10, 50])
    assert_same(schedule, peer_values(joined, 80))


def test_every_schedule_of_the_peer_is_known():
    known = {
        name for name in dir(peer.schedules) if name[0] != "_" and name.endswith(("_schedule", "_decay"))
    }
    assert len(known) > 10
    assert known <= set(dir(ours))


def test_bad_arguments():
    with pytest.raises(InputError, match="linear or cosine"):
        ours.piecewise_interpolate_schedule("cubic", 0.1)
