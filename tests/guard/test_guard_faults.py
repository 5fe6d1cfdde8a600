"""The guard names the cause of each fault of the table, each injected into a whole script of two processes."""

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

from guard.faults import FAULTS
from guard.injected import FAULTS as INJECTED
from guard.runs import NEEDS, NO_SHARDS, SHARDS_ON_A_CPU, plan_of, run
from isobatch.guard import Cause

QUICK = [
    ("plain", Cause.WRAPPER_BYPASSED),
    ("plain", Cause.GRADIENTS_CLEARED),
    ("plain", Cause.NO_GRADIENT),
    ("plain", Cause.GRADIENT_FACTOR),
    ("plain", Cause.CLIPPED_OTHERWISE),
    ("plain", Cause.STEPPED_TWICE),
    ("plain", Cause.EVAL_MODE),
    ("plain", Cause.OPTIMIZER_PARAMETERS),
    ("plain", Cause.ANOTHER_SETTING),
    ("plain", Cause.SCHEDULER_TOO_SLOW),
    ("plain", Cause.ANOTHER_DATASET),
    ("iterable", Cause.WORKERS_REPEAT),
    ("titan", Cause.GRADIENTS_CLEARED),
]


def marked(fault):
    quick = (fault.script, fault.cause) in QUICK
    return pytest.param(fault, id=f"{fault.script}: {fault.name}", marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("fault", map(marked, FAULTS))
def test_a_fault_is_named(two, fault):
    if fault.script == "titan" and not SHARDS_ON_A_CPU:
        pytest.skip(NO_SHARDS)
    for module in NEEDS.get(fault.script, ()):
        pytest.importorskip(module, reason="the script uses it")
    plan = plan_of(fault.script, **fault.fields)
    errors = [seen.error for seen in two(run, fault.script, plan.to_json(), fault.options, fault.name)]
    assert fault.named_by(errors), [str(error) for error in errors]


def test_the_table_is_whole():
    assert len(FAULTS) >= 72
    assert len({(fault.script, fault.name) for fault in FAULTS}) == len(FAULTS)
    assert {fault.name for fault in FAULTS} == set(INJECTED)
    assert {cause for _, cause in QUICK} <= {fault.cause for fault in FAULTS}
