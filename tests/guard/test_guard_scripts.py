"""Each kind of training script, whole, in two processes: the guard raises no false alarm, and names the cause
of each fault.
"""

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

from guard.faults import FAULTS
from guard.healthy import SCRIPTS
from guard.injected import FAULTS as INJECTED
from guard.runs import NEEDS, NO_SHARDS, SHARDS_ON_A_CPU, plan_of, run
from isobatch.guard import Cause

QUICK_SCRIPTS = ("plain", "iterable", "nanogpt", "within")
QUICK_KINDS = {
    *("sam_by_hand", "noise", "all_reduce", "l2", "teacher", "generator", "curriculum", "tokens", "swa"),
    *("gan", "reinforce", "compiled step", "flow", "labels", "untrained", "warms up", "augmented"),
    *("by weights", "unfrozen", "fetched_ahead", "rollouts"),
    *("looked_at_by_rank_0", "measured_before", "counted_iterator", "stepped_late", "stepped_first", "cut"),
    *("fisher", "adversarial", "accuracy_before", "saved", "linear_probe", "dcgan", "own_buffers"),
}
SLOW_CAUSES = (
    *(Cause.ANOTHER_LOSS, Cause.ANOTHER_LENGTH, Cause.DIVIDED_BY_RANKS, Cause.DIVIDED_TWICE),
    *(Cause.SAMPLES_PADDED, Cause.SAMPLES_REPEATED, Cause.SCHEDULER_NEVER, Cause.SCHEDULER_TOO_EARLY),
)
QUICK_FAULTS = {
    *(("plain", fault.cause) for fault in FAULTS if fault.cause not in SLOW_CAUSES),
    ("iterable", Cause.WORKERS_REPEAT),
    ("nanogpt", Cause.SAME_DATA),
    ("nanogpt", Cause.GROUP_STRAYS),
    *(("hf_trainer", cause) for cause in (Cause.SUMMED_LOSS, Cause.RANKS_OWN_UNITS, Cause.SAMPLES_DROPPED)),
    *(("lit", cause) for cause in (Cause.SUMMED_LOSS, Cause.NOT_DISTRIBUTED, Cause.OTHER_WEIGHTS)),
    ("hf_trainer", "summed loss beside the trainers factor"),
    ("accelerated", Cause.SCHEDULER_PER_PROCESS),
    ("loop", Cause.NOT_DIVIDED),
    ("loop", Cause.ANOTHER_LR),
}
"""The others are slow; fully sharded gradients have quick tests of their own in test_guard_wrappers.py."""


def row(entry, name, quick):
    return pytest.param(entry, id=name, marks=() if quick else pytest.mark.slow)


def healthy_row(entry):
    options = entry.options | entry.fields
    name = ", ".join(f"{key}={value}" for key, value in options.items())
    kind = options.get("kind", options.get("loop"))
    quick = kind in QUICK_KINDS or (entry.script in QUICK_SCRIPTS and "compiled" not in options)
    return row(entry, f"{entry.script}: {name}" if name else entry.script, quick)


def fault_row(entry):
    quick = {(entry.script, entry.cause), (entry.script, entry.name)} & QUICK_FAULTS
    return row(entry, f"{entry.options.get('kind', entry.script)}: {entry.name}", quick)


def need(script):
    if script == "titan" and not SHARDS_ON_A_CPU:
        pytest.skip(NO_SHARDS)
    for module in NEEDS.get(script, ()):
        pytest.importorskip(module, reason="the script uses it")


@pytest.mark.parametrize("healthy", map(healthy_row, SCRIPTS))
def test_a_script_as_people_write_it_goes_through(two, healthy):
    need(healthy.script)
    plan = plan_of(healthy.script, **healthy.fields)
    for error, unchecked, notes in two(run, healthy.script, plan.to_json(), healthy.options):
        assert error is None, str(error)
        for texts, starts in ((unchecked, healthy.unchecked), (notes, healthy.notes)):
            beginnings = [text[: len(start)] for text, start in zip(texts, starts, strict=False)]
            assert len(texts) == len(starts) and beginnings == [*starts], texts


@pytest.mark.parametrize("fault", map(fault_row, FAULTS))
def test_a_fault_is_named(two, fault):
    need(fault.script)
    plan = plan_of(fault.script, **fault.fields)
    errors = [outcome.error for outcome in two(run, fault.script, plan.to_json(), fault.options, fault.name)]
    assert fault.named_by(errors), [str(error) for error in errors]


@pytest.mark.parametrize(
    ("loop", "options", "fields", "cause", "step"),
    [
        ("averages_itself", {"averaging": False}, {}, Cause.NEVER_AVERAGED, 0),
        ("rescaled", {"times": 0.5}, {"clip_norm": 9.0}, Cause.DIVIDED_BY_RANKS, 0),
        ("rescaled", {"times": 9.0}, {"clip_norm": 3.0}, Cause.GRADIENT_FACTOR, 0),
        ("cut_into_passes", {"divided": False}, {"accumulation": 3}, Cause.NOT_DIVIDED, 0),
        (
            "cut_into_passes",
            {"divided": False, "clip": True},
            {"accumulation": 3, "clip_norm": 0.01},
            Cause.CLIPPED_OTHERWISE,
            0,
        ),
        ("weighted", {}, {"clip_norm": 0.01}, Cause.GRADIENT_FACTOR, 0),
        ("forward_by_name", {"alike": True}, {}, Cause.NOT_DISTRIBUTED, 0),
        ("differences", {"cleared": False}, {}, Cause.GRADIENTS_KEPT, 1),
        ("small_rows", {}, {}, Cause.NOT_DISTRIBUTED, 0),
    ],
)
def test_other_gradients_and_steps_hide_no_fault(two, loop, options, fields, cause, step):
    plan = plan_of("within", **fields)
    for error, *_ in two(run, "within", plan.to_json(), {"loop": loop, **options}):
        assert error is not None and (error.cause, error.step) == (cause, step), str(error)


def test_the_table_is_whole():
    assert len(FAULTS) >= 72
    assert len({(fault.script, fault.name, fault.options.get("kind")) for fault in FAULTS}) == len(FAULTS)
    assert {fault.name for fault in FAULTS} == set(INJECTED)
    known = {part for fault in FAULTS for part in (fault.cause, fault.name)}
    assert {quick for _, quick in QUICK_FAULTS} <= known
