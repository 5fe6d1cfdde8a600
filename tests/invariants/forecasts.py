"""Figures of time: no split of a grid beats the best, a sweep's rows are plans, and laws lie
in their range."""

import random

import numpy as np

import isobatch as ib
from isobatch.forecast.goodput import optimize_goodput
from pairs import ours, random_pairs
from reference import goodput as reference


def check_goodput(seed: int, pairs: int) -> int:
    """The best split of random pairs against a grid of splits, in NumPy."""
    values = ours(random_pairs(pairs, seed))
    draw = np.random.default_rng(seed)
    values["lead"] = draw.choice([0.0, 0.3, 1.0], pairs)
    values["update_seconds"] = draw.choice([0.0, 0.05], pairs)
    result = optimize_goodput(**values)
    batch, goodput = result["effective_batch"], result["goodput"]
    works = batch > 0
    product = result["micro_batch"] * result["accumulation"] * values["replicas"]
    assert (product[works] == batch[works]).all(), f"the product: seed {seed}"
    assert (batch[works] <= values["max_batch"][works]).all() and (
        batch[works] >= values["tuned_batch"][works]
    ).all(), seed
    assert (result["micro_batch"][works] <= values["max_micro_batch"][works]).all(), f"the cap: seed {seed}"
    columns = {name: column.tolist() for name, column in values.items()}
    for row in range(pairs):
        single = {name: column[row] for name, column in columns.items()}
        most = single["max_batch"] // single["replicas"]
        micros = draw.integers(1, min(most, single["max_micro_batch"]) + 1, 24).tolist() if most else []
        splits = [
            (micro, passes)
            for micro in {*micros}
            for passes in range(1, 40)
            if single["tuned_batch"] <= single["replicas"] * micro * passes <= single["max_batch"]
        ]
        if splits:
            assert works[row], f"there is a split: seed {seed}, row {row}"
            rival = max(reference.goodput(single, *split) for split in splits)
            assert goodput[row] >= rival * (1 - 1e-9), (f"a grid does better: {rival} > {goodput[row]}: "
                                                        f"seed {seed}, row {row}: {single}")  # fmt: skip
    return pairs


def check_laws(seed: int, questions: int) -> int:
    """A range of the published laws holds the value of each."""
    draw = random.Random(seed)
    for _ in range(questions):
        answer = ib.laws(
            parameters=10 ** draw.uniform(6, 13),
            tokens=10 ** draw.uniform(8, 14),
            effective_batch=draw.choice([None, 1024]),
        )
        assert answer.lr is not None
        for (low, high), laws in ((answer.lr, answer.lr_laws), (answer.batch_tokens, answer.batch_laws)):
            assert 0 < low <= high < float("inf") and all(low <= law.value <= high for law in laws), answer
    return questions
