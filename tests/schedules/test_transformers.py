"""isobatch.schedules.transformers against the installed transformers."""

import warnings

import pytest

from isobatch.schedules import transformers as ours
from reference.parity import assert_same, optimizer, stepped

pytest.importorskip("torch", reason="compares with transformers, which steps torch optimizers")
peer = pytest.importorskip("transformers", reason="compares with transformers")
pytestmark = pytest.mark.peers

WSD = {"num_decay_steps": 30}
HIGH = WSD | {"min_lr_ratio": 0.1}
CASES = [
    ("constant", None, None, {}),
    ("constant_with_warmup", 13, None, {}),
    ("constant_with_warmup", 0, None, {}),
    ("linear", 13, 100, {}),
    ("linear", 0, 100, {}),
    ("linear", 50, 50, {}),
    ("linear", 60, 50, {}),
    ("cosine", 13, 100, {}),
    ("cosine", 0, 77, {"num_cycles": 1.5}),
    ("cosine", 60, 50, {}),
    ("cosine_with_restarts", 10, 100, {"num_cycles": 7}),
    ("cosine_with_restarts", 10, 59, {"num_cycles": 49}),
    ("cosine_with_restarts", 3, 100, {}),
    ("polynomial", 10, 100, {}),
    ("polynomial", 10, 100, {"power": 2.0, "lr_end": 1e-5}),
    ("polynomial", 10, 100, {"power": 0.5, "lr_end": 1e-5}),
    ("inverse_sqrt", 10, None, {}),
    ("inverse_sqrt", 0, None, {}),
    ("inverse_sqrt", 10, None, {"timescale": 35}),
    ("cosine_with_min_lr", 10, 100, {"min_lr": 1e-5}),
    ("cosine_with_min_lr", 10, 100, {"min_lr_rate": 0.1, "num_cycles": 0.7}),
    ("cosine_warmup_with_min_lr", 10, 100, {"min_lr": 1e-5}),
    ("cosine_warmup_with_min_lr", 10, 100, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}),
    ("cosine_warmup_with_min_lr", 0, 100, {"min_lr_rate": 0.1}),
    ("cosine_warmup_with_min_lr", 1, 100, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}),
    ("warmup_stable_decay", 10, 100, WSD),
    ("warmup_stable_decay", 10, 100, HIGH | {"warmup_type": "cosine", "decay_type": "linear"}),
    ("warmup_stable_decay", 10, 100, HIGH | {"warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
    ("warmup_stable_decay", 10, None, WSD | {"num_stable_steps": 20, "num_cycles": 1.5}),
    ("warmup_stable_decay", 90, 100, WSD),
]


@pytest.mark.parametrize(("name", "warmup", "total", "kwargs"), CASES)
@pytest.mark.parametrize("lr", [0.1, 3e-4])
def test_has_the_values_of_the_peer(name, warmup, total, kwargs, lr):
    schedule = ours.get_scheduler(
        name, lr=lr, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=kwargs
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = peer.get_scheduler(name, optimizer(lr), warmup, total, scheduler_specific_kwargs=kwargs)
    assert_same(schedule, stepped(scheduler, 140))


def test_every_schedule_of_the_peer_is_known():
    names = {member.value for member in peer.SchedulerType}
    assert len(names) > 8
    assert names - {"reduce_lr_on_plateau", "greedy"} == set(ours._NAMES)


def test_quirks_can_be_mended():
    build = {"lr": 1.0, "num_warmup_steps": 10, "num_training_steps": 110, "quirks": False}
    assert ours.get_scheduler("cosine", **build).at(200) == 0
    ahead = ours.get_scheduler(
        "cosine_warmup_with_min_lr", scheduler_specific_kwargs={"min_lr": 0.1}, **build
    )
    assert (ahead.at(0), ahead.at(10), ahead.at(110)) == (0.0, 1.0, 0.1)
    build |= {"num_training_steps": 59}
    restarts = ours.get_scheduler(
        "cosine_with_restarts", scheduler_specific_kwargs={"num_cycles": 49}, **build
    )
    assert [restarts.at(x) for x in range(10, 60)] == [1.0] * 49 + [0.0]
