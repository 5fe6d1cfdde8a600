"""table: values that were printed."""

from __future__ import annotations

from collections.abc import Sequence

from isobatch.schedules.arguments import rate
from isobatch.schedules.form import Segment, Table
from isobatch.schedules.kind import kind
from isobatch.schedules.schedule import Schedule, lone


@kind()
def table(values: Sequence[float]) -> Schedule:
    """values[x], straight lines between whole steps, the last value held: what any scheduler printed.

    >>> import isobatch as ib
    >>> ib.schedules.table([0.1, 0.2, 0.4]).values([1, 1.5, 9]).tolist()
    [0.2, 0.30000000000000004, 0.4]
    """
    read = tuple(rate("values", value) for value in values)
    return lone(Segment(shape=Table(values=read), beyond=True))
