"""What a validation costs with 8 ranks, 64 and 512: nothing that one rank does, gathers or reports may grow with their number."""

import time

import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

from ddp import fake
from isobatch.validate import Options

MB = 10**6


@pytest.fixture(scope="module")
def found():
    """By number of ranks: the report, what was counted, and the seconds of processor time that it took."""

    def one(ranks):
        recipe = ib.Recipe(
            effective_batch=24 * ranks,
            lr=0.1,
            optimizer="sgd",
            dataset_size=50_000,
            duration="40st",
            micro_batch=8,
        )
        begun = time.process_time()
        limits = {"memory_limit_gib": 64, "phase_seconds": 1200.0}
        options = Options(extent="quick", find_micro_batch=True, noise_steps=2, **limits)
        return *fake.validate(ib.plan(recipe, ranks), options, ranks), time.process_time() - begun

    return {ranks: one(ranks) for ranks in (8, 64, 512)}


def test_no_phase_works_more_for_more_ranks(found):
    """By passes through the model, which do not depend on how busy this machine is."""
    passes = {ranks: counts.passes for ranks, (_, counts, _) in found.items()}
    assert passes[512] == passes[64]
    # One process against 8 ranks, whether there are more or not.
    assert passes[8] == passes[512]


def test_nobody_gathers_much(found):
    for ranks, (_, counts, _) in found.items():
        assert max(counts.gathered.values()) < MB, (ranks, counts.gathered)


def test_a_report_of_512_ranks_is_small(found):
    assert len(found[512][0].to_json()) < MB


def test_512_ranks_are_looked_at_in_a_minute(found):
    assert sum(seconds for _, _, seconds in found.values()) < 60


def test_every_claim_was_looked_at(found):
    report = found[512][0]
    # What hosts say of themselves comes before NCCL makes its connections, all else behind.
    assert [*report.phase_seconds][:2] == ["host", "connect"]
    assert {"gradient", "noise_scale", "all_reduce", "local_step", "epoch", "links", "micro_batch"} <= {
        proof.name for proof in report.proofs
    }
    assert "to one process" in report.proof("gradient").text


def test_what_hosts_say_is_in_the_report_where_nccl_then_hangs(monkeypatch):
    published = []
    worker = fake.worker

    def hang(self):
        self.pulse.on_loss("in phase 'connect': rank 3 is over the phase's limit of 60 s")
        raise SystemExit

    monkeypatch.setattr(fake.FakeGroup, "connect", hang)
    real = worker.run
    monkeypatch.setattr(worker, "run", lambda *a, **k: real(*a, publish=published.append, **k))
    plan = ib.plan(ib.Recipe(effective_batch=64, lr=0.1, optimizer="sgd", duration="40st", micro_batch=8), 8)
    with pytest.raises(SystemExit):
        fake.validate(plan, Options(extent="quick"), 8)
    (report,) = published
    names = [proof.name for proof in report.proofs]
    assert names == ["gpu", "gpu_errors", "ranks_alive"]
