"""Growing batches, against a walk step by step."""

import random

import pytest

import isobatch as ib
from plan_of import plan_of, recipe_of
from reference import ramp as oracle


def drawn(count, kind):
    draw = random.Random(kind)
    for _ in range(count):
        unit = draw.choice([1, 4, 8])
        if kind == "linear":
            start, increment = unit * draw.randint(1, 9), unit * draw.randint(1, 5)
            full = start + increment * draw.randint(1, 20)
            text = f"{start} {increment} {draw.randint(1, 30 * full)}"
        else:
            sizes = sorted({unit * draw.randint(1, 40) for _ in range(4)})
            full = sizes[-1]
            points = [0, *sorted(draw.sample(range(1, 40), len(sizes) - 1))]
            text = " ".join(
                f"{point}{'K' if point else ''}:{size}" for point, size in zip(points, sizes, strict=True)
            )
        yield unit, full, text, draw.randint(1, 60 * full), draw.randint(1, 20 * full)


@pytest.mark.parametrize("kind", ["linear", "stepwise"])
@pytest.mark.parametrize("convention", ["torch", "megatron"])
def test_steps_of_the_run_and_of_its_warmup(kind, convention):
    for unit, full, text, samples, warmup in drawn(300, kind):
        recipe = recipe_of(effective_batch=full, ramp=text, duration=f"{samples}sp", warmup=f"{warmup}sp",
            seq_len=16, convention=convention)  # fmt: skip
        plan = ib.plan(recipe, unit)
        floored = convention == "megatron"
        steps, _ = oracle.run(text, full, samples, floored=floored, seq_len=16)
        if steps == 0:
            assert ib.Reason.RUN_BELOW_STEP in plan.reasons
            continue
        assert plan.total_steps == steps, recipe
        assert (
            plan.warmup_steps == oracle.run(text, full, warmup, floored=False, seq_len=16)[0]
            or warmup == samples
        ), recipe
        for size in oracle.sizes(text, full):
            assert size % (plan.micro_batch * plan.data_parallel) == 0


def test_tokens_are_floored_to_samples():
    # 250 B tokens at 2048 are 122070312.5 samples: the step before which 122070312 were consumed is the first
    # of 1536.
    assert oracle.batch_at("0:768 250B:1536", 1536, 122_070_312, 2048) == 1536
    assert oracle.batch_at("0:768 250B:1536", 1536, 122_070_311, 2048) == 768
    recipe = recipe_of(
        effective_batch=1536, ramp="0:768 250B:1536", seq_len=2048, duration="1e12tok", convention="megatron"
    )
    assert (
        ib.plan(recipe, 64).total_steps
        == oracle.run("0:768 250B:1536", 1536, 10**12 // 2048, seq_len=2048)[0]
    )


def test_a_ramp_takes_numbers_as_python_writes_them():
    plans = [plan_of(8, ramp=f"64 64 {samples}", duration="90000st") for samples in ("9_765_625", "9765625")]
    assert plans[0].total_steps == plans[1].total_steps
    for samples in ("_9", "9_", "9__7"):
        with pytest.raises(ib.errors.InputError, match="ramp"):
            ib.Recipe(effective_batch=256, lr=0.1, ramp=f"64 64 {samples}")
