"""A ramp's batches by sample ids, in one process that stands for all ranks."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from composed.figures import Alone
from isobatch.equivalence.laws import Cause
from isobatch.validate import Options, Verdict
from isobatch.validate.proofs import epoch as epochs
from plan_of import loop_of


def prove(plan):
    trial = SimpleNamespace(plan=plan, options=Options(extent="quick"), group=Alone())
    batch, epoch = epochs.prove(trial)
    assert (batch.name, epoch.name) == ("effective_batch", "epoch")
    return batch, epoch


def made(ranks=2, **fields):
    return loop_of(ranks, **{"effective_batch": 64, "dataset_size": None, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"ramp": "16 16 640"},
        {"ramp": "16 16 640", "convention": "transformers"},
        {"ramp": "0:16 10K:32 50K:64", "seq_len": 64},
    ],
)
def test_each_stage_of_a_ramp_serves_its_batch(fields):
    batch, epoch = prove(made(dataset_size=2001, duration="3ep", **fields))
    assert batch.verdict is epoch.verdict is Verdict.PASS
    assert batch.values["unique_samples"] == batch.values["samples"]
    assert batch.values["samples"][-1] == 64
    assert epoch.values["steps_per_epoch"] == 32


def test_a_ramp_needs_no_epochs():
    batch, epoch = prove(made(duration="200st", ramp="16 16 640"))
    assert (batch.verdict, epoch.verdict) == (Verdict.PASS, Verdict.UNCHECKED)


def test_a_long_ramp_is_looked_at_here_and_there():
    plan = made(
        effective_batch=6400, micro_batch=100, ranks=4, duration="200st", ramp="400 400 300000", gpus=4
    )
    assert len(epochs.stages(plan)) == 16
    plan = made(effective_batch=6400, micro_batch=8, ranks=2, duration="200st", ramp="16 16 300000")
    batch, _ = prove(plan)
    assert batch.verdict is Verdict.PASS
    assert len(batch.values["samples"]) == epochs.MAX_STAGES < len(epochs.stages(plan))


def test_a_sampler_that_does_not_follow_the_ramp_fails(monkeypatch):
    plan = made(dataset_size=2001, duration="3ep", ramp="16 16 640")

    class Flat(epochs.PlanSampler):
        def __init__(self, dataset, _, **settings):
            super().__init__(dataset, made(dataset_size=2001, duration="3ep"), **settings)

    monkeypatch.setattr(epochs, "PlanSampler", Flat)
    batch, _ = prove(plan)
    assert (batch.verdict, batch.cause) == (Verdict.FAIL, Cause.ANOTHER_RAMP)


def test_batches_of_megatron_are_unchecked():
    batch, epoch = prove(made(convention="megatron", duration="10001sp"))
    assert batch.verdict is epoch.verdict is Verdict.UNCHECKED
    assert "megatron" in batch.text
