"""Random fleets, row by row against the oracle: counts exact, reals within 4 ulp."""

import random
from collections import Counter

import numpy as np

import isobatch as ib
from isobatch import _core
from reference import plan as oracle
from reference.settings import CASES

ROWS = 4000
OPTIMIZERS = ["sgd", "adam", "adamw", "rmsprop", "lars", "lamb", "lion", "muon", "adafactor"]
LATER = {"sde": "sde_smooth"}
"""Rules that came later, each drawn in the place of another one."""
RULES = [
    "auto",
    *(name for name, *_ in _core.rules() if name not in LATER.values()),
]  # the usual one more often
CAUTIONS = {
    "batch_moved", "ragged", "micro_batch_shrunk", "coupled_moved", "above_critical_batch", "large_growth",
    "lora_growth", "short_epochs", "beta1_low", "no_warmup", "warmup_long", "warmup_past_end", "padded", "dropped", "uneven_tail",
    "ramp_rule", "sqrt_scale_range", "micro_batch_open", "beta2_low", "duration_moved", "muon_decay",
    "rule_assumed", "sgd_scale_up",
}  # fmt: skip
"""Cautions that the documents define to the letter, so that they are checked both ways."""
ONE_WAY = {"rule_mismatch", "decay_unknown", "warmup_short"}
"""Cautions that the oracle raises in the clear cases only."""


def job(draw):
    """A recipe of legal values as a dict, without the fields it leaves at their defaults."""
    optimizer, model_parallel = draw.choice(OPTIMIZERS), draw.choice([1, 1, 1, 2, 4])
    row = {"optimizer": optimizer, "lr": draw.choice([0.1, 1e-3, 3e-4]), "model_parallel": model_parallel}
    own = random.Random(repr(row))
    if own.random() < 0.2:
        row["coupled"] = own.choice(["negatives", "experts"])
    if draw.random() < 0.6:
        replicas, micro, accumulation = (
            draw.choice([1, 2, 4, 7, 8, 16]),
            draw.choice([1, 2, 8, 32]),
            draw.choice([1, 1, 3, 4]),
        )
        row |= {"effective_batch": replicas * micro * accumulation, "gpus": replicas * model_parallel}
        if draw.random() < 0.8:
            row |= {"micro_batch": micro, "accumulation": accumulation}
    else:
        row["effective_batch"] = draw.choice([1, 7, 60, 250, 256, 1024, 4096, 8192])
    units = ["st", "sp"]
    if draw.random() < 0.7:
        row["dataset_size"] = draw.choice([10, 100, 1000, 50_000, 1_281_167, draw.randint(1, 10**6)])
        units += ["ep"] * 3
    if draw.random() < 0.4:
        row["seq_len"] = draw.choice([128, 2048])
        units.append("tok")
    if draw.random() < 0.9:
        row["duration"] = length(draw, units)
    if draw.random() < 0.8:
        row["warmup"] = length(draw, [*units, *["%"] * ("duration" in row)])
    row["convention"] = draw.choice(["torch", "torch", "lightning", "transformers", "megatron", "exact"])
    row["drop_last"] = draw.choice(
        [False, True, "loader"] + ["sampler"] * (row["convention"] != "transformers")
    )
    if row["convention"] == "transformers" and draw.random() < 0.3:
        row["even_batches"] = False
    chances = {
        "weight_decay": (0.5, [0.1, 0.01]), "decay": (0.5, ["lr_multiplied", "independent", *["sqrt"] * (optimizer == "muon")]), "ema_decay": (0.3, [0.999]),
        "betas": (0.3, [(0.9, 0.95), (0.9, 0.98)]), "eps": (0.3, [1e-6]), "noise_scale": (0.3, [100.0, 5000.0]),
        "power": (0.3, [0.3, 0.8]), "batch_norm": (0.2, [True]), "adapter": (0.2, ["lora"]), "momentum": (0.2, [0.9]),
    }  # fmt: skip
    row |= {name: draw.choice(values) for name, (chance, values) in chances.items() if draw.random() < chance}
    if draw.random() < 0.3:
        row |= {"sigma_sq": draw.uniform(1, 9), "mu_sq": draw.uniform(0.1, 1)}
    if draw.random() < 0.2:
        row |= {
            f"{name}_every": length(draw, units) for name in ("eval", "save", "log") if draw.random() < 0.7
        }
    if draw.random() < 0.1:
        increment = row["effective_batch"] // 4 or 1
        start = row["effective_batch"] - increment * 2
        if start > 0:
            row |= {
                "ramp": f"{start} {increment} {40 * row['effective_batch']}",
                "duration": "1e5sp",
                "warmup": "2000sp",
            }
    if draw.random() < 0.3:
        row["min_lr"] = draw.choice([1e-5, 3e-4])
    if own.random() < 0.3:
        row["expert_parallel"] = own.choice([n for n in (2, 3, 4, 8) if row.get("gpus", n) % n == 0] or [1])
    return row


def length(draw, units):
    unit = draw.choice(units)
    numbers = {
        "st": ["1000", "1.5e3", "7038"], "sp": ["1e6", "300000", "123457"], "ep": ["90", "1", "2.5", "0.3"],
        "tok": ["3e9", "1e8"], "%": ["10", "28.43", "0.5"],
    }  # fmt: skip
    return draw.choice(numbers[unit]) + unit


DRAWN = {
    "policy", "rule", "max_micro_batch", "min_micro_batch", "max_batch", "batch_tolerance", "split", "micro_batch_multiple",
    "accumulation_multiple", "batch_multiple", "short_epochs", "ramp_rule", "beta2_rule", "duration_scale",
}  # fmt: skip


def options(draw):
    """Settings that differ from the defaults."""
    row = {
        "policy": draw.choice(["keep", "keep", "grow", "grow", 256, 1000, 8192]),
        "rule": draw.choice(RULES),
    }
    chances = {
        "max_micro_batch": (0.5, [1, 4, 16, 50, 128]), "batch_tolerance": (0.2, [0.05, 0.1, 0.3]),
        "micro_batch_multiple": (0.15, [2, 8]), "max_batch": (0.1, [512, 4096]),
        "batch_multiple": (0.1, [2, 12, 32]), "ramp_rule": (0.3, ["sqrt", "linear", "power", "auto"]),
        "short_epochs": (0.2, [True]),
    }  # fmt: skip
    row |= {name: draw.choice(values) for name, (chance, values) in chances.items() if draw.random() < chance}
    if draw.random() < 0.2:
        row["split"] = draw.choice(["uneven", "even" if "micro_batch_multiple" in row else "ragged"])
    elif "batch_tolerance" not in row and draw.random() < 0.15:
        row["split"] = "smaller"
    differs = row.get("split") in ("ragged", "uneven")
    if row.get("split") != "ragged":
        row |= of_micro_batch(draw, row)
    if not differs and draw.random() < 0.2:
        row["accumulation_multiple"] = draw.choice([2, 3, 5])
    # A setting that nobody draws above: so that the oracle is asked for it.
    others = [name for name, case in CASES.items() if not ({name} & DRAWN or case.profile or differs)]
    # By a generator of their own: one more leaves the other rows as they are.
    own = random.Random(repr(row))
    if own.random() < 0.5:
        row["rule"] = LATER.get(row["rule"], row["rule"])
    return row | {name: CASES[name].value for name in others if own.random() < 0.1} | beside_the_rule(own)


def beside_the_rule(draw):
    """What moves the optimizer's averages, its decay and the learning rate beside the rule."""
    found = {}
    if draw.random() < 0.4:
        floors = ["", ":0.5", ":0.9", ":0.95", ":0.985", ":0.9999"]
        found["beta2_rule"] = draw.choice(["auto", "half_life"]) + draw.choice(floors)
    if draw.random() < 0.3:
        powers = ["", "", "^0", "^0.3", "^0.5", "^1", "^-0.307"]
        found["duration_scale"] = draw.choice(["0.25", "0.5", "1", "3", "100"]) + draw.choice(powers)
    return found


def of_micro_batch(draw, row):
    """What else is asked of the micro-batch, so that nothing contradicts the rest."""
    most, multiple = row.get("max_micro_batch", 2**31), row.get("micro_batch_multiple", 1)
    found = {}
    if draw.random() < 0.1:
        sizes = [size for size in (1, 2, 4, 8, 32) if size % multiple == 0]
        fixed = draw.choice(sizes)
        return {"min_micro_batch": fixed, "max_micro_batch": fixed}
    if draw.random() < 0.15:
        sizes = [size for size in (2, 3, 8, 20) if size < most]
        found |= {"min_micro_batch": draw.choice(sizes)} if sizes else {}
    return found


def cluster(draw):
    row = {"nodes": draw.choice([1, 1, 2, 3, 16]), "gpus_per_node": draw.choice([1, 2, 4, 7, 8, 8])}
    row |= {"model_parallel": draw.choice([1, 2, 8])} if draw.random() < 0.2 else {}
    return row | ({"expert_parallel": draw.choice([1, 4, 6])} if draw.random() < 0.1 else {})


def column(values):
    """Values with None among them, as NumPy holds them: objects, so that each keeps its type."""
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def table(kind, rows, order):
    names = sorted({name for row in rows for name in row})
    return {name: column([row.get(name) for row in rows]) for name in names} | {kind: order}


def same(name, got, want):
    """Whether the planner's value is the oracle's, which is exact or correctly rounded at each of a few operations."""
    if want is None:
        return got == -1 if isinstance(got, (int, np.integer)) else bool(np.isnan(got))
    if isinstance(got, (int, np.integer)):
        return got == want
    # A change near 0 is a difference of numbers near 1.
    scale = max(1.0, abs(want)) if name == "batch_change" else abs(want)
    return abs(got - want) <= 4 * np.spacing(scale)


def compare(rows, case=""):
    """Plans rows in one fleet and holds every result column to the oracle's.

    Returns:
        How many values of each column are known, of the nearest also by (column, reason); and the fleet's result.
    """
    order = np.arange(len(rows))
    jobs = table("job", [recipe | settings for recipe, _, settings in rows], order)
    clusters = table("cluster", [shape for _, shape, _ in rows], order)
    columns = ["reasons", *oracle.COLUMNS]
    found = ib.plan_fleet(jobs, clusters, pairs={"job": order, "cluster": order}, columns=columns)
    values = {name: found[name].tolist() for name in oracle.COLUMNS}
    known = Counter()
    for number, row in enumerate(rows):
        want = oracle.plan_row(*row)
        named = {reason.value for reason in ib.Reason.of(int(found["reasons"][number]))}
        where = f"{case}row {number}: {row}, oracle {want}, found {named}"
        infeasible = want["status"] == "infeasible"
        assert (values["status"][number] == "infeasible") == infeasible, f"status: {where}"
        if not infeasible:
            assert named & CAUTIONS == want["reasons"] & CAUTIONS, f"cautions: {where}"
            assert want["reasons"] & ONE_WAY <= named, f"cautions: {where}"
        both = want["reasons"] & named
        for name in oracle.COLUMNS:
            if name == "status" or (name.startswith("nearest") and not both):
                continue  # Where several stand in the way, the two may name another one first.
            got = values[name][number]
            assert same(name, got, want[name]), f"{name} is {got}: {where}"
            if want[name] is not None:
                known.update([name, *((name, reason) for reason in both if name.startswith("nearest"))])
    return known, found


def test_random_rows_are_the_oracles():
    draw = random.Random(20)
    rows = [(job(draw), cluster(draw), options(draw)) for _ in range(ROWS)]
    known, result = compare(rows)
    # The draw is broad: all that is compared is known in many rows.
    assert np.count_nonzero(result["status"] == "infeasible") > ROWS / 10
    assert np.count_nonzero(result["status"] != "infeasible") > ROWS / 4
    assert {settings["rule"] for _, _, settings in rows} == {*RULES, *LATER.values()}
    found = {reason for bits in np.unique(result["reasons"]) for reason in ib.Reason.of(int(bits))}
    assert not any(reason.value.startswith("invalid") for reason in found)
    assert len(found) > 25
    least = {name: 100 for name in oracle.COLUMNS if not name.startswith(("status", "nearest"))} | {
        ("nearest_world_size", "not_divisible"): 50, ("nearest_batch", "not_divisible"): 50,
        ("nearest_world_size", "accumulation_unmet"): 5, ("nearest_batch", "accumulation_unmet"): 50,
        ("nearest_world_size", "micro_batch_unmet"): 5, ("nearest_batch", "micro_batch_unmet"): 5,
        ("nearest_world_size", "model_parallel"): 50,
    }  # fmt: skip
    assert {name: known[name] for name, most in least.items() if known[name] <= most} == {}
