"""Figures of time: a sweep's rows are plans, and laws lie in their range."""

import random

import numpy as np

import isobatch as ib
from invariants.plans import PROFILE


def check_counts(seed: int, sweeps: int) -> int:
    """A sweep's rows are the plans of its counts."""
    draw = random.Random(seed)
    for _ in range(sweeps):
        recipe = ib.Recipe(
            effective_batch=draw.choice([64, 256, 1000]),
            lr=0.1,
            duration="1000st",
            noise_scale=draw.choice([None, 3e3]),
        )
        node = ib.Cluster(
            gpus_per_node=draw.choice([4, 8]), memory_gib=draw.choice([None, 40.0]), price_per_gpu_hour=2.0
        )
        gpus = sorted(draw.sample(range(1, 65), 12))
        if not any(count <= node.gpus_per_node or count % node.gpus_per_node == 0 for count in gpus):
            continue
        policy = draw.choice(["keep", 512])
        result = ib.counts(recipe, gpus, profile=PROFILE, cluster=node, policy=policy)
        for row, count in enumerate(result.columns["gpus"].tolist()):
            shape = ib.Cluster(
                nodes=max(1, count // node.gpus_per_node), gpus_per_node=min(count, node.gpus_per_node),
                memory_gib=node.memory_gib, price_per_gpu_hour=2.0,
            )  # fmt: skip
            plan = ib.plan(recipe, shape, profile=PROFILE, policy=policy)
            for name in ("micro_batch", "effective_batch", "total_steps", "hours", "cost", "memory_gib"):
                actual, want = result.columns[name][row].item(), getattr(plan, name)
                assert actual == want or (want is None and (actual == -1 or actual != actual)), (
                    f"{name} on {count}: {actual}, {want}"
                )
        hours = result.columns["hours"]
        if result.fastest is not None:
            assert result.columns["gpus"][np.nanargmin(hours)] == result.fastest
    return sweeps


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
