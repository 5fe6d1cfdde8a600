"""The effective batch for the most GPU counts.

A batch that should train unchanged on 12, 16 or 24 GPUs must be a multiple of replicas × micro-batch at each. The core proves that no
other batch under the cap does better.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from isobatch import _core
from isobatch.errors import InputError, must_be
from isobatch.words import few

_LISTS = "a list of numbers, or one such list for each row"

Counts: TypeAlias = Sequence[int] | NDArray[Any]
# Values of all groups, where each group begins and ends in them, and each row's group.
Groups: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
Ranges: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64]]


class Elastic(msgspec.Struct, frozen=True, kw_only=True):
    """A batch and its GPU counts.

    `effective_batch` is None, and the tuples are empty, where nothing under the cap works at any count. `gpus` ascend;
    `micro_batch[i] * accumulation[i] * (gpus[i] // model_parallel) == effective_batch`, with the largest micro-batch allowed.
    `weight` is the summed weight of the counts (their number, without weights).
    """

    effective_batch: int | None
    gpus: tuple[int, ...]
    micro_batch: tuple[int, ...]
    accumulation: tuple[int, ...]
    weight: float

    def __repr__(self) -> str:
        """The batch and its counts; of many counts the first."""
        return f"Elastic(effective_batch={self.effective_batch}, gpus=({few(map(str, self.gpus), 20)}), weight={self.weight:g})"


class ElasticMany(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The answers to many configurations, as columns.

    `effective_batch` (int64, −1 where nothing works) and `weight` (float64) have one value a configuration. Those of
    configuration i in `gpus`, `micro_batch` and `accumulation` (int64) lie at `offsets[i]:offsets[i + 1]`; the last two are worked
    out on first use. `len()` counts configurations; `many[i]` is the i-th as an Elastic.
    """

    effective_batch: NDArray[np.int64]
    weight: NDArray[np.float64]
    offsets: NDArray[np.int64]
    gpus: NDArray[np.int64]
    _model_parallel: NDArray[np.uint64]
    _micro_batches: Groups

    @cached_property
    def _splits(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        micro_batch, accumulation = _core.elastic_splits(
            self.effective_batch.view(np.uint64),
            self.offsets,
            self.gpus.view(np.uint64),
            self._model_parallel,
            self._micro_batches,
        )
        return micro_batch.view(np.int64), accumulation.view(np.int64)

    @property
    def micro_batch(self) -> NDArray[np.int64]:
        """Samples per replica per pass at every count: the largest allowed."""
        return self._splits[0]

    @property
    def accumulation(self) -> NDArray[np.int64]:
        """Passes per optimizer step at every count."""
        return self._splits[1]

    def __len__(self) -> int:
        return len(self.effective_batch)

    def __getitem__(self, i: int) -> Elastic:
        i = range(len(self))[i]
        part = slice(self.offsets[i], self.offsets[i + 1])
        batch = int(self.effective_batch[i])
        return Elastic(
            effective_batch=batch if batch > 0 else None,
            gpus=tuple(self.gpus[part].tolist()),
            micro_batch=tuple(self.micro_batch[part].tolist()),
            accumulation=tuple(self.accumulation[part].tolist()),
            weight=float(self.weight[i]),
        )


@overload
def elastic(
    gpus: Counts = ...,
    *,
    max_batch: int,
    micro_batches: Counts,
    model_parallel: int = 1,
    gpus_per_node: int | None = None,
    prefer_larger: bool = True,
    weights: Sequence[float] | NDArray[Any] | None = None,
) -> Elastic: ...


@overload
def elastic(
    gpus: Counts | Sequence[Counts] = ...,
    *,
    max_batch: Sequence[int] | NDArray[Any],
    micro_batches: Counts | Sequence[Counts],
    model_parallel: ArrayLike = 1,
    gpus_per_node: ArrayLike | None = None,
    prefer_larger: bool = True,
    weights: Sequence[float] | Sequence[Sequence[float]] | NDArray[Any] | None = None,
) -> ElasticMany: ...


def elastic(
    gpus: Any = range(1, 65),
    *,
    max_batch: Any,
    micro_batches: Any,
    model_parallel: ArrayLike = 1,
    gpus_per_node: ArrayLike | None = None,
    prefer_larger: bool = True,
    weights: Any = None,
) -> Elastic | ElasticMany:
    """Finds the effective batch under a cap for the most GPU counts; of many configurations in one call.

    A count works where `model_parallel` divides it, it fills whole nodes of `gpus_per_node` (if given), and the batch is a
    multiple of its replicas times one of `micro_batches`. Counts reach 1,048,576, so do micro-batches; batches reach 2^26.

    Args:
        gpus: the counts to consider.
        max_batch: the largest effective batch to consider; a list asks for many configurations, one for each value.
        micro_batches: those to consider, samples per replica per pass.
        model_parallel: GPUs that hold one replica.
        gpus_per_node: count only whole nodes of this size.
        prefer_larger: whether of equally good batches the larger is taken.
        weights: how much each count matters, not negative: the greatest sum wins, in the place of the most counts.

    Returns:
        An Elastic; of many configurations an ElasticMany. There `micro_batches`, `gpus` and `weights` are one sequence for all
        or a sequence of one sequence each, `model_parallel` and `gpus_per_node` one value for all or one each.

    Raises:
        InputError: a value is outside these limits, a count is listed twice, or weights do not match the counts; of many
            configurations the row is named.

    >>> best = elastic(range(1, 17), max_batch=1000, micro_batches=[4, 6])
    >>> best.effective_batch, best.gpus
    (960, (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16))
    >>> best.micro_batch[-1], best.accumulation[-1]
    (6, 10)
    >>> many = elastic(range(1, 17), max_batch=[1000, 2000], micro_batches=[[4, 6], [2, 3]])
    >>> many.effective_batch.tolist(), len(many[1].gpus)
    ([960, 1680], 13)
    """
    if type(prefer_larger) is not bool:
        raise must_be("true or false", prefer_larger, field="prefer_larger")
    is_one = not isinstance(max_batch, (list, tuple, range)) and not getattr(max_batch, "ndim", 0)
    cap = _column([max_batch] if is_one else max_batch, "max_batch", None, _core.ELASTIC_MAX_BATCH)
    rows = len(cap)
    micros = _groups(micro_batches, "micro_batches", rows)
    ranges, counts = _counts(gpus, rows, weighted=weights is not None)
    parallel = _column(model_parallel, "model_parallel", rows, _core.ELASTIC_MAX)
    weight, *columns = _core.elastic_rows(
        cap,
        parallel,
        _column(1 if gpus_per_node is None else gpus_per_node, "gpus_per_node", rows, _core.ELASTIC_MAX),
        micros,
        counts,
        None if weights is None else _weights(weights, counts),
        ranges,
        prefer_larger,
    )
    batch, offsets, working = (column.view(np.int64) for column in columns)
    batch[batch == 0] = -1
    many = ElasticMany(
        effective_batch=batch,
        weight=weight,
        offsets=offsets,
        gpus=working,
        _model_parallel=parallel,
        _micro_batches=micros,
    )
    return many[0] if is_one else many


def _column(values: ArrayLike, field: str, rows: int | None, most: int) -> NDArray[np.uint64]:
    """Checks one whole number a row; where rows is None they have the length of the values."""
    column = _integers(values) if isinstance(values, (list, tuple)) else np.asarray(values)
    if column.ndim > 1 or (column.ndim == 1 and rows not in (None, len(column))):
        raise InputError(
            f"{field} must be one value, or one for each of {rows} rows, got shape {column.shape}",
            field=field,
        )
    checked = _whole(np.atleast_1d(column), field, most, lambda i: i + 1 if column.size > 1 else None)
    return checked if rows is None else _each(checked, rows)


def _each(values: NDArray[np.uint64], rows: int) -> NDArray[np.uint64]:
    """Repeats one value for all rows."""
    return values if len(values) == rows else np.full(rows, values[0])


def _integers(values: Sequence[Any]) -> NDArray[Any]:
    """Makes an array of whole numbers, several times as fast as NumPy; other values as NumPy has them."""
    try:
        return _core.integers(values)
    except (TypeError, OverflowError):
        return np.asarray(values)


def _whole(
    values: NDArray[Any], field: str, most: int, row: Callable[[int], int | None]
) -> NDArray[np.uint64]:
    """Checks counts from 1 to `most`; `row` finds the row of a position."""
    if values.dtype.kind not in "iu":
        raise InputError(
            f"{field} must be whole numbers from 1 to {most:,}, got {values.dtype} values", field=field
        )
    bad = (values < 1) | (values > most)
    if bad.any():
        at = int(bad.argmax())
        raise must_be(f"from 1 to {most:,}", int(values[at]), row=row(at), field=field)
    return values.astype(np.uint64)


def _nested(values: Sequence[Any] | NDArray[Any], field: str, rows: int) -> bool:
    """Tells one sequence a row from one for all."""
    if (
        not isinstance(values, (Sequence, np.ndarray))
        or isinstance(values, (str, bytes))
        or not getattr(values, "ndim", 1)
    ):
        raise must_be(_LISTS, values, field=field)
    if len(values) == 0:
        raise InputError(f"{field} must have at least one value, got none", field=field)
    if isinstance(values, range) or np.isscalar(values[0]):
        return False
    if len(values) != rows:
        raise InputError(f"{field} must have {rows} rows, as max_batch has, got {len(values)}", field=field)
    return True


def _cut(
    values: Sequence[Any] | NDArray[Any], field: str, rows: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Joins all values end to end, and finds where each group begins and ends."""
    groups = values if _nested(values, field, rows) else [values]
    try:
        flat, cuts = _core.integer_groups(groups)
    except (TypeError, OverflowError):
        try:
            flat = np.asarray(list(chain.from_iterable(groups)))
            cuts = np.cumsum([0, *map(len, groups)])
        except (TypeError, ValueError):
            raise must_be(_LISTS, values, field=field) from None
    empty = cuts[1:] == cuts[:-1]
    if empty.any():
        raise InputError(
            f"{field} must have at least one value, got none", row=int(empty.argmax()) + 1, field=field
        )
    return flat, cuts


def _group_of(cuts: NDArray[np.int64]) -> Callable[[int], int | None]:
    """Finds the row (from 1) of a position in the values; None where there is one for all."""
    if len(cuts) == 2:
        return lambda _: None
    return lambda at: int(np.searchsorted(cuts, at, side="right"))


def _groups(values: Sequence[Any] | NDArray[Any], field: str, rows: int) -> Groups:
    flat, cuts = _cut(values, field, rows)
    group = np.zeros(rows, np.int64) if len(cuts) == 2 else np.arange(rows)
    return _whole(flat, field, _core.ELASTIC_MAX, _group_of(cuts)), cuts, group


def _counts(gpus: Sequence[Any] | NDArray[Any], rows: int, *, weighted: bool) -> tuple[Ranges, Groups]:
    """Keeps unbroken ranges as two numbers a row; lists anything else, and all with weights."""
    rows_of = gpus if _nested(gpus, "gpus", rows) else [gpus]
    spans = [span for span in rows_of if isinstance(span, range) and span.step == 1 and len(span)]
    if not weighted and len(spans) == len(rows_of):
        group_of = _group_of(np.arange(len(spans) + 1))
        ends = [span.start for span in spans], [span.stop - 1 for span in spans]
        first, last = (_whole(np.array(end), "gpus", _core.ELASTIC_MAX, group_of) for end in ends)
        nothing = np.zeros(0, np.uint64), np.zeros(1, np.int64), np.full(rows, -1)
        return (_each(first, rows), _each(last, rows)), nothing
    counts = _groups(gpus, "gpus", rows)
    values, cuts, _ = counts
    # Sorted by group, then count, a count given twice lies beside itself.
    group = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
    order = np.lexsort((values, group))
    twice = np.flatnonzero((np.diff(values[order]) == 0) & (np.diff(group[order]) == 0))
    if twice.size:
        at = int(order[twice[0]])
        raise InputError(f"{values[at]} is listed twice", row=_group_of(cuts)(at), field="gpus")
    return (np.zeros(0, np.uint64), np.zeros(0, np.uint64)), counts


def _weights(weights: Sequence[Any] | NDArray[Any], counts: Groups) -> NDArray[np.float64]:
    _, count_cuts, group = counts
    rows = len(group)
    values, cuts = _cut(weights, "weights", rows)
    if not np.array_equal(cuts, count_cuts):
        raise InputError("weights must have one value for each of gpus", field="weights")
    if values.dtype.kind not in "iuf":
        raise InputError(f"weights must be numbers, got {values.dtype} values", field="weights")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise must_be("finite and at least 0", values[at].item(), row=_group_of(cuts)(at), field="weights")
    return values.astype(np.float64)
