"""The map of a tool: one engine reads and writes its rows."""

import pytest

import isobatch as ib
from isobatch.tools.map import Setting, read_settings, unlisted, wordless, write_settings
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.testing import plan_with

FIELDS = {
    "effective_batch": 512,
    "eval_every": "50st",
    "save_every": "70st",
    "log_every": "9st",
    "min_lr": 1e-5,
    "betas": (0.8, 0.99),
    "eps": 1e-6,
    "weight_decay": 0.3,
    "clip_norm": 0.5,
    "precision": "bf16",
    "seq_len": 4096,
    "optimizer": "adam",
    "schedule": "linear",
}
ROWS = (
    Setting("batch.total", "effective_batch"),
    Setting("batch.each", "micro_batch"),
    Setting("batch.parts", "accumulation"),
    Setting("gpus", "gpus"),
    Setting("lr", "lr"),
    Setting("lr_end", "min_lr"),
    Setting("steps", "duration", "st"),
    Setting("warm", "warmup", "st"),
    Setting("every.eval", "eval_every", "st"),
    Setting("every.save", "save_every", "st"),
    Setting("every.log", "log_every", "st"),
    Setting("b1 b2", "betas"),
    Setting("eps", "eps"),
    Setting("wd", "weight_decay"),
    Setting("clip", "clip_norm"),
    Setting("half brain", "precision", words={"fp16": "half", "bf16": "brain"}),
    Setting("tokens", "seq_len"),
    Setting("opt", "optimizer", words={"adam": "ADAM"}),
    Setting("curve", "schedule", words={"linear": "straight"}),
)


def read(settings, *rows, **how):
    reading = Reading("toy", "Toy", "toy.yaml", settings)
    read_settings(SettingsPage(settings, reading), rows, **how)
    return reading


def test_a_plan_is_read_back_from_what_was_written():
    plan = plan_with(FIELDS)
    settings = write_settings(plan, ROWS)
    assert settings["batch"] == {"total": 512, "each": 8, "parts": 4}
    assert (settings["b1"], settings["b2"], settings["brain"], settings["opt"]) == (0.8, 0.99, True, "ADAM")
    assert "half" not in settings
    written = {name: getattr(plan.recipe, name) for name in FIELDS}
    written |= {"micro_batch": 8, "accumulation": 4, "gpus": 16, "lr": plan.lr}
    assert read(settings, *ROWS).fields == written | {"duration": "1000st", "warmup": "30st"}


def test_a_value_that_a_plan_does_not_have_is_left_out_or_written_as_off():
    plan = plan_with()
    assert write_settings(plan, (Setting("clip", "clip_norm"),)) == {}
    off = Setting("clip", "clip_norm", off=1e9)
    assert write_settings(plan, (off,)) == {"clip": 1e9}
    assert read({"clip": 1e9}, off).fields == {} and read({"clip": 2.0}, off).fields == {"clip_norm": 2.0}
    rows = (Setting("b", "betas"), Setting("m", "momentum"), Setting("e", "eps", of="adam"))
    assert write_settings(plan_with({"optimizer": "sgd", "momentum": 0.9}), rows) == {"m": 0.9}
    assert write_settings(plan_with({"betas": (0.9, 0.99)}), rows) == {"b": [0.9, 0.99]}


def test_a_missing_setting_has_an_older_name_or_the_tools_default():
    rows = Setting("each", "batch_per_gpu", older="size bs", default=8), Setting("lr", "lr")
    assert read({"bs": 4, "lr": 0.1}, *rows).fields == {"batch_per_gpu": 4, "lr": 0.1}
    assert read({}, *rows).fields == {"batch_per_gpu": 8}
    based = read({}, *rows, defaults=False)
    assert (based.fields, based.absent) == ({}, {"batch_per_gpu": "each", "lr": "lr"})


def test_auto_leaves_a_setting_to_another_program_where_the_tool_says_so():
    rows = Setting("lr", "lr"), Setting("bf16 fp16", "precision", words={"bf16": "bf16", "fp16": "fp16"})
    settings = {"lr": "auto", "bf16": "auto", "fp16": True}
    assert read(settings, *rows, auto=True).fields == {"precision": "fp16"}
    (field, fault), *_ = read(settings, *rows).faults
    assert field == "lr" and '"auto" is not known before the run' in str(fault)


def test_a_word_that_the_map_lacks_is_asked_for_and_noted():
    optimizer, schedule = ROWS[-2:]
    reading = read({"opt": "Lion", "curve": "wavy"}, optimizer, schedule)
    assert reading.fields == {"optimizer": "lion"}  # by its plain name
    assert "the schedule 'wavy' cannot be planned" in str(reading.faults[0][1])
    plan = plan_with({"optimizer": "lamb"})
    assert write_settings(plan, (optimizer, schedule)) == {}
    notes = ["opt is not set: it has no word for lamb", "curve is not set: it has no word for cosine"]
    assert list(wordless(plan, (optimizer, schedule))) == notes
    own = plan_with({"schedule": ib.schedules.cosine(1e-3, 1000), "warmup": None})
    (note,) = wordless(own, (schedule,))
    assert write_settings(own, (schedule,)) == {} and note.startswith("curve is not set")


def test_a_row_that_cannot_be_written_is_refused():
    with pytest.raises(ib.InputError, match="the unit of epochs in a map must be st, got 'ep'"):
        Setting("epochs", "duration", "ep")
    with pytest.raises(ib.InputError, match="unknown field 'ramp'"):
        Setting("ramp", "ramp")
    assert read({"epochs": 3}, Setting("epochs", "duration", "ep", writes=False)).fields["duration"] == "3ep"


def test_settings_without_a_row_are_listed():
    rows = (
        Setting("b1 b2", "betas"),
        Setting("scheduler", "schedule", older="sched", reads=False, writes=False),
    )
    settings = {"b1": 0.9, "scheduler": {"name": "x"}, "sched": 1, "b": 1, "scheduler2": 1}
    assert unlisted(settings, rows) == ["b", "scheduler2"]
