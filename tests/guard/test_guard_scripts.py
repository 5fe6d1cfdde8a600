"""The guard raises no false alarm: each kind of training script, whole, with evaluation, checkpoints, workers and clipping."""

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

from guard.healthy import SCRIPTS
from guard.runs import NEEDS, NO_SHARDS, SHARDS_ON_A_CPU, plan_of, run

QUICK = ("plain", "iterable", "nanogpt")


def named(healthy):
    options = ", ".join(f"{name}={value}" for name, value in (healthy.options | healthy.fields).items())
    return f"{healthy.script}: {options}" if options else healthy.script


def marked(healthy):
    quick = healthy.script in QUICK and "compiled" not in healthy.options
    return pytest.param(healthy, id=named(healthy), marks=() if quick else pytest.mark.slow)


def begin(found, expected):
    """Whether each text begins as expected, and none is left."""
    assert len(found) == len(expected), found
    assert [text for text, start in zip(found, expected, strict=True) if not text.startswith(start)] == []


@pytest.mark.parametrize("healthy", map(marked, SCRIPTS))
def test_a_script_as_people_write_it_goes_through(two, healthy):
    if healthy.script == "titan" and not SHARDS_ON_A_CPU:
        pytest.skip(NO_SHARDS)
    for module in NEEDS.get(healthy.script, ()):
        pytest.importorskip(module, reason="the script uses it")
    plan = plan_of(healthy.script, **healthy.fields)
    for error, unchecked, notes in two(run, healthy.script, plan.to_json(), healthy.options):
        assert error is None, str(error)
        begin(unchecked, healthy.unchecked)
        begin(notes, healthy.notes)
