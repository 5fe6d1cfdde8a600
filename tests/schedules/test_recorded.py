"""Megatron's scheduler against recordings of its own (tests/data/record_schedules.py)."""

import json
from pathlib import Path

import pytest

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
