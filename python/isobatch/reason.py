"""Reasons of a plan's status."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, overload

from isobatch import _core
from isobatch.errors import must_be

_CARDS = _core.reasons()
_BY_NAME = {name: (bit, severity, text, source) for bit, (name, severity, text, source) in enumerate(_CARDS)}


class Reason(StrEnum):
    """A caution or an infeasibility. `.text` explains it, `.source` cites its limit's origin (may be empty),
    `.severity` is "caution" or "infeasible", `.bit` is its bit in a fleet's `reasons` column.

    >>> Reason.NOT_DIVISIBLE.severity
    'infeasible'
    """

    INVALID_BATCH = "invalid_batch"
    INVALID_LR = "invalid_lr"
    INVALID_OPTIMIZER = "invalid_optimizer"
    INVALID_LENGTH = "invalid_length"
    INVALID_CLUSTER = "invalid_cluster"
    INVALID_SETTING = "invalid_setting"
    TOO_LARGE = "too_large"
    NOT_DIVISIBLE = "not_divisible"
    MULTIPLE_UNMET = "multiple_unmet"
    MODEL_PARALLEL = "model_parallel"
    EXPERT_PARALLEL = "expert_parallel"
    ABOVE_MAX_BATCH = "above_max_batch"
    ABOVE_MEMORY = "above_memory"
    BATCH_ABOVE_DATASET = "batch_above_dataset"
    RUN_BELOW_STEP = "run_below_step"
    BETA_NOT_POSITIVE = "beta_not_positive"
    NEEDS_TUNED_GPUS = "needs_tuned_gpus"
    NEEDS_NOISE = "needs_noise"
    NEEDS_POWER = "needs_power"
    RAMP_NOT_DIVISIBLE = "ramp_not_divisible"
    NEEDS_PROFILE = "needs_profile"
    MISSES_DEADLINE = "misses_deadline"
    ABOVE_BUDGET = "above_budget"
    BATCH_MOVED = "batch_moved"
    RAGGED = "ragged"
    UNEQUAL_DEVICES = "unequal_devices"
    MICRO_BATCH_SHRUNK = "micro_batch_shrunk"
    COUPLED_MOVED = "coupled_moved"
    ABOVE_CRITICAL_BATCH = "above_critical_batch"
    LARGE_GROWTH = "large_growth"
    RULE_MISMATCH = "rule_mismatch"
    RULE_RANGE = "rule_range"
    RULE_ASSUMED = "rule_assumed"
    SQRT_SCALE_RANGE = "sqrt_scale_range"
    BETA1_LOW = "beta1_low"
    DECAY_UNKNOWN = "decay_unknown"
    NO_WARMUP = "no_warmup"
    WARMUP_LONG = "warmup_long"
    WARMUP_SHORT = "warmup_short"
    WARMUP_PAST_END = "warmup_past_end"
    PADDED = "padded"
    DROPPED = "dropped"
    UNEVEN_TAIL = "uneven_tail"
    MEMORY_ESTIMATED = "memory_estimated"
    OUTSIDE_MEASURED = "outside_measured"
    FORECAST_ESTIMATED = "forecast_estimated"
    OTHER_HARDWARE = "other_hardware"
    UNEVEN = "uneven"
    LIMIT_LIKELY = "limit_likely"
    ACCUMULATION_UNMET = "accumulation_unmet"
    RAMP_RULE = "ramp_rule"
    MICRO_BATCH_UNMET = "micro_batch_unmet"
    LORA_GROWTH = "lora_growth"
    SHORT_EPOCHS = "short_epochs"
    SCHEDULE_UNMET = "schedule_unmet"
    BETA2_LOW = "beta2_low"
    DURATION_MOVED = "duration_moved"
    MUON_DECAY = "muon_decay"
    SGD_SCALE_UP = "sgd_scale_up"
    INVALID_ID = "invalid_id"
    NOT_COMPARED = "not_compared"
    NEEDS_PRICE = "needs_price"
    NEEDS_DURATION = "needs_duration"
    MICRO_BATCH_OPEN = "micro_batch_open"

    @property
    def bit(self) -> int:
        return _BY_NAME[self.value][0]

    @property
    def severity(self) -> str:
        return _BY_NAME[self.value][1]

    @property
    def text(self) -> str:
        return _BY_NAME[self.value][2]

    @property
    def source(self) -> str:
        return _BY_NAME[self.value][3]

    @overload
    @classmethod
    def of(cls, bits: int) -> tuple[Reason, ...]: ...
    @overload
    @classmethod
    def of(cls, bits: Iterable[int | Iterable[str]]) -> list[tuple[Reason, ...]]: ...

    @classmethod
    def of(cls, bits: int | Iterable[int | Iterable[str]]) -> tuple[Reason, ...] | list[tuple[Reason, ...]]:
        """Returns the reasons in a bit set, or in each of a fleet's column `reasons`; infeasibilities first.

        Args:
            bits: a bit set, or a column of them; the column of an Arrow table, whose rows are lists of names,
                too.

        Raises:
            InputError: it is no bit set, or has a bit or a name that is no reason's.

        >>> Reason.of(1 << Reason.RAGGED.bit)
        (<Reason.RAGGED: 'ragged'>,)
        >>> import numpy as np
        >>> Reason.of(np.array([0, 1], np.uint64))
        [(), (<Reason.INVALID_BATCH: 'invalid_batch'>,)]
        >>> Reason.of([[], ["invalid_batch"]])
        [(), (<Reason.INVALID_BATCH: 'invalid_batch'>,)]
        """
        if type(bits) is int:
            return reasons_in(bits)
        has_rows = not isinstance(bits, (str, bytes)) and getattr(bits, "ndim", None) != 0
        if has_rows and isinstance(bits, Iterable):
            return [reasons_in(_bit_set(each)) for each in bits]
        return reasons_in(_bit_set(bits))


_ALL = tuple(Reason)


@lru_cache(maxsize=4096)
def reasons_in(bits: int) -> tuple[Reason, ...]:
    """Returns the reasons in a bit set; each plan asks so."""
    if bits < 0 or bits >> len(_ALL):
        raise must_be("a bit set of reasons, as the column has it", bits, field="bits")
    return tuple(reason for reason in _ALL if bits >> reason.bit & 1)


def reason_names(text: str) -> list[str]:
    """Splits a text into names: `;`-joined as in a fleet's CSV, or a list as pandas and DuckDB write it.

    >>> [reason_names(text) for text in ("ragged;not_divisible", "['ragged' 'uneven']", "[ragged, uneven]")]
    [['ragged', 'not_divisible'], ['ragged', 'uneven'], ['ragged', 'uneven']]
    >>> reason_names(""), reason_names("[]")
    ([], [])
    """
    listed = text.strip()
    if listed.startswith("[") and listed.endswith("]"):
        return [name.strip("'\"") for name in re.split(r"[,\s]+", listed[1:-1]) if name]
    return [name for name in text.split(";") if name]


def _bit_set(bits: Any) -> int:
    """Reads a bit set, or a list of names, as one."""
    plain = bits.as_py() if hasattr(bits, "as_py") else bits
    if isinstance(plain, Iterable) and not isinstance(plain, (str, bytes)) and getattr(plain, "ndim", 1) == 1:
        return bits_of(plain)
    try:
        return operator.index(plain)
    except TypeError:
        raise must_be("a bit set of reasons, as the column has it", bits, field="bits") from None


def bits_of(names: Iterable[Any]) -> int:
    """Returns the bit set of reasons, or of their names."""
    bits = 0
    for name in names:
        try:
            bits |= 1 << Reason(name).bit
        except (TypeError, ValueError):
            raise must_be("names of reasons, as a fleet's table has them", name, field="reasons") from None
    return bits
