"""Plans in one call: fields of a recipe and settings together, over those that most tests share."""

import isobatch as ib

SETTINGS = {*ib.Settings._fields, "profile", "strict"}
EPOCHS = {"optimizer": "sgd", "dataset_size": 5120, "duration": "10ep", "warmup": "1ep"}
LOOP = {"effective_batch": 48, "optimizer": "sgd", "dataset_size": 200, "micro_batch": 8}


def recipe_of(**fields):
    """Makes a recipe of 256 samples a step, but for the given fields."""
    return ib.Recipe(**{"effective_batch": 256, "lr": 0.1} | fields)


def plan_of(cluster, **values):
    """Plans such a recipe, by fields and settings."""
    settings = {name: values.pop(name) for name in [*values] if name in SETTINGS}
    return ib.plan(recipe_of(**values), cluster, **settings)


def loop_of(ranks=2, **values):
    """Plans a small loop of real ranks."""
    return plan_of(ranks, **{**LOOP, "duration": "40st", **values})
