"""Megatron's and Composer's schedulers against recordings of their own (tests/data/record_schedules.py)."""

import json
from pathlib import Path

import pytest

from isobatch.errors import InputError
from isobatch.schedules import composer, megatron
from reference.parity import assert_same

DATA = Path(__file__).parent.parent / "data"
MEGATRON = json.loads((DATA / "megatron_core_0.16.1.json").read_text())
COMPOSER = json.loads((DATA / "mosaicml_0.32.1.json").read_text())


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


@pytest.mark.parametrize("run", COMPOSER, ids=lambda run: run["name"])
def test_composer(run):
    build = getattr(composer, run["name"])
    trainer = {"max_duration": run["max_duration"], "batches_per_epoch": 11}
    schedule = build(**run["arguments"], **trainer, samples_per_batch=32, tokens_per_batch=320)
    assert_same(schedule, run["lr"])
    assert build(**run["arguments"], **trainer, samples_per_batch=32, tokens_per_batch=320, lr=0.5).at(
        30
    ) == pytest.approx(run["lr"][30] / 2, rel=1e-15)


def test_every_scheduler_of_composer_is_recorded():
    assert {run["name"] for run in COMPOSER} == {name for name in dir(composer) if name.endswith("Scheduler")}


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


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("LinearScheduler", {"max_duration": "10 fortnights"}, "max_duration"),
        ("LinearScheduler", {"max_duration": "10ep"}, "batches_per_epoch"),
        ("LinearScheduler", {"max_duration": "10.5ba"}, "max_duration"),
        ("StepScheduler", {"step_size": "10sp", "max_duration": "10ba"}, "samples_per_batch"),
        (
            "CosineAnnealingWithWarmupScheduler",
            {"t_warmup": "1ba", "t_max": "9sp", "max_duration": "10ba"},
            "t_warmup",
        ),
        (
            "CosineAnnealingWithWarmupScheduler",
            {"t_warmup": "1ba", "t_max": "9ba", "max_duration": "10ba"},
            "t_max",
        ),
        (
            "CosineAnnealingWarmRestartsScheduler",
            {"t_0": "4ba", "t_mult": 0.5, "max_duration": "100ba"},
            "t_mult",
        ),
    ],
)
def test_bad_composer_arguments(name, given, field):
    with pytest.raises(InputError) as error:
        getattr(composer, name)(**given)
    assert error.value.field == field
