"""Megatron's scheduler against recordings of its own (tests/data/record_schedules.py)."""

import json
from pathlib import Path

import pytest

import isobatch as ib
from isobatch.errors import InputError
from isobatch.schedules import megatron
from reference.parity import assert_same

DATA = Path(__file__).parent.parent / "data"
MEGATRON = json.loads((DATA / "megatron_core_0.16.1.json").read_text())


@pytest.mark.parametrize("run", MEGATRON, ids=lambda run: run["arguments"]["lr_decay_style"])
def test_megatron(run):
    assert_same(megatron.OptimizerParamScheduler(**run["arguments"]), run["lr"])


def test_every_style_of_megatron_is_recorded():
    assert {run["arguments"]["lr_decay_style"] for run in MEGATRON} == {
        "constant",
        "linear",
        "cosine",
        "inverse-square-root",
        "WSD",
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"lr_decay_style": "cubic"}, "lr_decay_style"),
        ({"lr_warmup_steps": 1600}, "lr_warmup_steps"),
        ({"min_lr": 1.0}, "max_lr"),
        ({"lr_decay_style": "WSD"}, "wsd_decay_steps"),
        ({"lr_decay_style": "WSD", "wsd_decay_steps": 5, "lr_wsd_decay_style": "?"}, "lr_wsd_decay_style"),
        ({"increment": 0}, "increment"),
    ],
)
def test_bad_megatron_arguments(change, field):
    given = {"max_lr": 0.1, "lr_decay_steps": 1600, "lr_decay_style": "cosine"} | change
    with pytest.raises(InputError) as error:
        megatron.OptimizerParamScheduler(**given)
    assert error.value.field == field


def test_composers_schedules_are_refused_with_what_to_use():
    with pytest.raises(AttributeError, match="composer is gone: .* isobatch plan --from FILE"):
        ib.schedules.composer  # noqa: B018
