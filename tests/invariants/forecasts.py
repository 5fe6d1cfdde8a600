"""Figures of time: a sweep's rows are plans, and laws lie in their range."""

import random

import isobatch as ib


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
