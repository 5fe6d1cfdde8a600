"""Steps, samples and warmup, in whole numbers and fractions."""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

_LENGTH = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:[eE]([+-]?\d+))?(ep|st|sp|tok|%)")


def length(text: str) -> tuple[Fraction, str]:
    """A number with its unit, exactly: "1.5e3st" is (1500, "st")."""
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no length")
    number, exponent, unit = match.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0), unit


@dataclass(frozen=True)
class Epoch:
    """One pass over the data: optimizer steps, samples served, of these twice, and samples not
    served.
    """

    steps: int
    served: int
    padded: int
    dropped: int
    tail: bool
    """Whether the last step holds fewer samples than the others."""


def drops(drop_last: bool | str) -> tuple[bool, bool]:
    """(the sampler's, the loader's)"""
    return drop_last in (True, "sampler"), drop_last in (True, "loader")


def epoch(
    dataset: int,
    replicas: int,
    micro: int,
    accumulation: int,
    drop_last: bool | str = False,
    convention: str = "torch",
    *,
    fills: bool = True,
) -> Epoch:
    """An epoch in closed form. `fills` is Accelerate's even_batches."""
    sampler, loader = drops(drop_last)
    share = dataset // replicas if sampler else -(-dataset // replicas)
    if convention == "transformers":
        # accelerate shards whole batches: the loader's drop is one of a round of batches, a pad fills the
        # last round, and there is no sampler that could drop.
        rounds = Fraction(dataset, micro * replicas)
        batches = floor(rounds) if loader else ceil(rounds)
        share = batches * micro
        if replicas == 1 and not loader:
            share = dataset  # one process is not sharded, so nothing is padded
        if not fills and not loader:
            batches_of_first = ceil(Fraction(ceil(Fraction(dataset, micro)), replicas))
            steps = -(-batches_of_first // accumulation)
            return Epoch(steps, dataset, 0, 0, dataset != steps * micro * accumulation * replicas)
    else:
        batches = share // micro if loader else -(-share // micro)
    served = replicas * (min(share, batches * micro))
    steps = -(-batches // accumulation)
    return Epoch(
        steps=steps,
        served=served,
        padded=max(served - dataset, 0),
        dropped=max(dataset - served, 0),
        tail=steps > 0 and served != steps * micro * accumulation * replicas,
    )


def exact_epoch(dataset: int, batch: int, drop_last: bool | str = False) -> Epoch:
    """An epoch dealt out step by step, whoever takes the samples: each is served once, unless the
    last step is short and dropped.
    """
    whole, rest = dataset // batch, dataset % batch
    if drop_last is not False or not rest:
        return Epoch(whole, whole * batch, 0, rest, False)
    return Epoch(whole + 1, dataset, 0, 0, True)


def samples(
    value: Fraction, unit: str, tuned_batch: int, seq_len: int | None, dataset: int | None
) -> Fraction:
    """A length in samples: a step is one at the tuned batch."""
    if unit == "st":
        return value * tuned_batch
    if unit == "sp":
        return value
    if unit == "tok":
        assert seq_len is not None
        return value / seq_len
    assert unit == "ep"
    assert dataset is not None
    return value * dataset


def total_steps(
    duration: str,
    batch: int,
    tuned_batch: int,
    *,
    convention: str = "torch",
    steps_per_epoch: int | None = None,
    dataset: int | None = None,
    seq_len: int | None = None,
) -> int:
    """Steps of the whole run."""
    value, unit = length(duration)
    if unit == "ep" and convention != "megatron":
        assert steps_per_epoch is not None
        return ceil(value * steps_per_epoch)
    steps = samples(value, unit, tuned_batch, seq_len, dataset) / batch
    return floor(steps) if convention == "megatron" else ceil(steps)


def warmup_steps(
    warmup: str,
    batch: int,
    tuned_batch: int,
    total: int | None,
    *,
    convention: str = "torch",
    steps_per_epoch: int | None = None,
    dataset: int | None = None,
    seq_len: int | None = None,
) -> int | None:
    """Steps of the warmup, holding its samples. None: a share of a run whose length is not known.

    A share is floored, by the Trainer rounded up, in floats as it does; tokens are floored by Megatron.
    """
    value, unit = length(warmup)
    if unit == "%":
        if total is not None and convention == "transformers":
            return ceil(total * float(value / 100))
        return None if total is None else floor(value * total / 100)
    if unit == "tok" and convention == "megatron":
        return floor(samples(value, unit, tuned_batch, seq_len, dataset) / batch)
    if unit == "ep" and steps_per_epoch is not None:
        return ceil(value * steps_per_epoch)
    return ceil(samples(value, unit, tuned_batch, seq_len, dataset) / batch)
