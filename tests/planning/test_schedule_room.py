"""Whether a schedule fits into a run: the plan says so exactly where the schedule itself can be had."""

import random
import re

import msgspec
import numpy as np
import pytest

import isobatch as ib
from isobatch.planning.course import Course
from plan_of import plan_of, recipe_of

PLAIN = ["constant", "cosine", "wsd", "one_cycle", "vaswani", "goyal", "exponential", "exponential(0.9)"]
KINDS = {
    "until": [
        "linear",
        "linear_to_zero",
        "polynomial",
        "cosine",
        "one_minus_sqrt",
        "rex",
        "tanh",
        "exponential",
    ],
    "decay": ["wsd", "trapezoid"],
    "rise": ["one_cycle"],
    "every": ["step", "exponential"],
    "period": ["cosine_restarts"],
    "timescale": ["inverse_sqrt"],
}


def length(draw):
    numbers = [1, 2, 3, 10, 30, 50, 90, 100, 110, 1000, 20000]
    if draw.random() < 0.6:
        share = f"{draw.choice([0.5, 99, *numbers]):g}{draw.choice(['ep', '%'])}"
        return share.replace("0.5%", "28.43%")
    return f"{draw.choice(numbers)}{draw.choice(['st', 'sp', 'tok'])}"


def schedule(draw):
    argument = draw.choice([*KINDS, ""])
    if not argument:
        return draw.choice([*PLAIN, f"multistep({length(draw)}, {length(draw)})"])
    kind = draw.choice(KINDS[argument])
    if argument == "every" and kind == "exponential":
        return draw.choice(
            [
                f"exponential(0.9, {length(draw)}, {length(draw)})",
                f"exponential(every={length(draw)}, until={length(draw)})",
            ]
        )
    named = argument in ("until", "timescale") or draw.random() < 0.5
    return f"{kind}({f'{argument}=' if named else ''}{length(draw)})"


def recipe(draw):
    fields = {"dataset_size": draw.choice([1000, 50_000])} if draw.random() < 0.6 else {}
    chances = {
        "seq_len": (0.5, [128, 2048]), "warmup": (0.6, ["5%", "20st", "90st", "1000sp", "50%", "120st"]),
            "min_lr": (0.4, [1e-4]),
        "convention": (0.3, ["megatron", "transformers", "exact", "lightning"]), "ramp": (0.2,
            ["64 64 4000"]),
        "optimizer": (0.4, ["lamb", "sgd"]),
    }  # fmt: skip
    fields |= {
        name: draw.choice(values) for name, (chance, values) in chances.items() if draw.random() < chance
    }
    lengths = ["100st", "1st", "2st", "7st", "20000sp"] + ["3ep"] * ("dataset_size" in fields)
    noise = {"sigma_sq": 9.0, "mu_sq": 0.1} if draw.random() < 0.3 else {}
    fields |= {"lr": 1e-3, "gpus": 8, "micro_batch": 8, "duration": draw.choice(lengths), **noise}
    return recipe_of(schedule=schedule(draw), **fields)


def can_be_had(tuned, gpus, **settings):
    """Tells whether `resolve` makes the schedule of this run, with the steps of a constant learning rate."""
    steady = ib.plan(msgspec.structs.replace(tuned, schedule="constant"), gpus, **settings)
    if steady.status == "infeasible":
        return None
    try:
        Course([(0, msgspec.structs.replace(steady, recipe=tuned))]).schedule.at(3)
    except ib.errors.InputError:
        return False
    return True


def test_a_plan_stands_exactly_where_its_schedule_can_be_had():
    draw, counts = random.Random(7), {True: 0, False: 0}
    for _ in range(4000):
        tuned, gpus = recipe(draw), draw.choice([4, 8, 16])
        settings = {
            "policy": draw.choice(["keep", "grow", 128]),
            "rule": "adascale" if tuned.sigma_sq else "auto",
        }
        expected = can_be_had(tuned, gpus, **settings)
        if expected is None:
            continue
        counts[expected] += 1
        planned = ib.plan(tuned, gpus, **settings)
        fits = ib.Reason.SCHEDULE_UNMET not in planned.reasons
        assert fits == expected, (tuned, gpus, settings, planned.explain())
    assert min(counts.values()) > 500


def test_a_fleet_says_what_the_plan_says():
    draw = random.Random(8)
    recipes = [recipe(draw) for _ in range(1500)]
    names = [field for field in recipes[0].__struct_fields__ if field not in ("betas", "device_batches")]
    jobs = {name: np.array([getattr(tuned, name) for tuned in recipes], dtype=object) for name in names}
    jobs = {name: values for name, values in jobs.items() if any(value is not None for value in values)}
    fleet = ib.plan_fleet(jobs, {"gpus_per_node": [8, 16]})
    status = [ib.plan(tuned, gpus).status for tuned in recipes for gpus in (8, 16)]
    assert [str(row_status) for row_status in fleet["status"]] == status


def test_the_refusal_says_which_part_has_no_room():
    stuck = plan_of(8, lr=1e-3, duration="100st", warmup="90st", schedule="wsd(decay=20%)")
    assert stuck.status == "infeasible"
    assert re.search("decay must be at most the 10 steps after the warmup, got 20", stuck.explain())


@pytest.mark.parametrize("text", ["multistep(60%, 20st)", "multistep(20st, 60%)"])
def test_milestones_count_in_whatever_order_they_come(text):
    planned = ib.plan(ib.Recipe(effective_batch=256, lr=1.0, duration="100st", schedule=text), 8)
    assert [planned.lr_at(step) for step in (19, 20, 59, 60)] == pytest.approx([1, 0.1, 0.1, 0.01])
