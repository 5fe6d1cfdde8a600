"""The soak: on two gloo ranks, and what is made of its figures."""

from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("torch", reason="the validator needs torch")

from ddp.validating import validate
from isobatch.diagnosis.causes import Cause
from isobatch.validate import Report, Verdict
from isobatch.validate.figures import Soak
from isobatch.validate.proofs import soak
from plan_of import loop_of

GROUP = SimpleNamespace(
    world_size=2, roster=[SimpleNamespace(host="a", local_rank=rank) for rank in range(2)]
)


def report(two, workload, **options):
    plan = loop_of(effective_batch=16).to_json()
    told = two(validate, plan, workload=f"ddp.workloads:{workload}", noise_steps=0, **options)
    return msgspec.json.decode(told[0], type=Report)


def test_the_same_step_gives_the_same_bits(two):
    found = report(two, "good", soak_minutes=1.0)  # 60 looks at a clock that is made up
    assert (found.proof("same_bits").verdict, found.soak.differing) == (Verdict.PASS, [0, 0])
    assert found.soak.deterministic
    assert 10 < found.soak.repeats < 40


def test_a_rank_that_computes_other_bits_is_named(two):
    found = report(two, "flips_a_bit_on_rank_1", soak_minutes=2.0)
    bits = found.proof("same_bits")
    assert (bits.verdict, bits.diagnosis.causes) == (Verdict.FAIL, (Cause.SILENT_CORRUPTION,))
    assert "GPU 1 (rank 1)" in bits.diagnosis.text
    assert "rank 0" not in bits.text
    assert found.soak.differing[0] == 0 < found.soak.differing[1]


def test_a_step_that_never_has_the_same_bits_is_unchecked(two):
    bits = report(two, "other_bits_each_time", soak_minutes=0.5).proof("same_bits")
    assert bits.verdict is Verdict.UNCHECKED
    assert "other bits each time" in bits.text


def soaked(**given):
    fields = {"minutes": 1.0, "repeats": 60, "deterministic": True, "differing": [0, 0]}
    return Soak(**fields | given)


def test_an_average_with_other_bits_is_the_all_reduces():
    found = soak.judge_bits(GROUP, soaked(averaged_differing=2))
    assert (found.verdict, found.diagnosis.cause) == (Verdict.CAUTION, Cause.WRONG_SUMS)
    assert "another order" in soak.judge_bits(GROUP, soaked(averaged_differing=None)).text
