"""The rows of a day with one GPU in the order of their worth, and the choice of the next row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

Parts = dict[str, dict[str, dict[str, Any]]]
"""Results by part and row."""
CALLS = (540.0, 175.0)
"""Seconds of the day's two calls: beside them the machine starts and ends, in a quarter of an hour."""
LEAVE_SECONDS = 5.0  # Of a call, for its end.
OVER = "over its limit"
"""The outcome of a row that was ended; it becomes "cut" where the call had less left than the row's limit."""


class Row(NamedTuple):
    """A row of the day.

    Attributes:
        part: the function of gpu_parts.py that plays the row.
        name: the function's argument.
        expected: seconds on an H100 with 16 cores; bench/results/gpu/README.md says how they were reckoned.
        limit: seconds after which the row is ended.
    """

    part: str
    name: str
    expected: float
    limit: float


ROWS = (
    Row("facts", "machine", 4, 40),
    Row("facts", "nccl", 9, 60),
    Row("validation", "gpt2 bf16", 55, 180),
    Row("validation", "convnet fp32", 45, 150),
    Row("prediction", "gpt2 fp32", 35, 110),
    Row("prediction", "convnet bf16", 25, 90),
    Row("same", "trainer", 60, 150),
    Row("tests", "real_gpu and eager", 18, 70),
    Row("search", "gpt2", 45, 150),
    Row("faults", "out_of_memory", 24, 100),
    Row("faults", "killed", 24, 100),
    Row("faults", "hangs", 45, 110),
    Row("bits", "sha", 20, 90),
    Row("bits", "price", 30, 120),
    Row("survive", "killed", 14, 80),
    Row("cores", "fleet", 14, 60),
    Row("cores", "schedules", 10, 60),
    Row("cores", "files", 25, 90),
    Row("tests", "started_by_torchrun", 26, 90),
    Row("tests", "started_in_a_notebook", 26, 90),
    Row("tests", "real_gpu and compile", 60, 120),
    Row("tests", "real_gpu and optimizers", 14, 60),
    Row("prediction", "gpt2 tf32", 28, 100),
    Row("prediction", "convnet tf32", 25, 90),
    Row("prediction", "gpt2 fp16", 28, 100),
    Row("prediction", "convnet fp16", 25, 90),
    Row("faults", "asserts", 24, 100),
    Row("tests", "one_rank_has_no_wire", 20, 100),
    Row("tests", "several_ranks or two_gpus", 35, 150),
    Row("tests", "memory or micro_batch or largest", 60, 200),
    Row("tests", "notebook_that_has_used_cuda", 12, 100),
    Row("tests", "mixed_precision", 90, 230),
    Row("tests", "options_of_the_model", 120, 230),
)
"""What matters most comes first: a call that ends early has it whole."""
PARTS = tuple(dict.fromkeys(row.part for row in ROWS))


def expected_seconds(row: Row, parts: Parts) -> float:
    """Returns a row's expected seconds at its part's pace, the median of measured over expected seconds."""
    numbers = {name: expected for part, name, expected, _ in ROWS if part == row.part}
    paces = [
        result["seconds"] / numbers[name]
        for name, result in parts.get(row.part, {}).items()
        if name in numbers and result["outcome"] in ("done", "wrong")
    ]
    return row.expected * (median(paces) if paces else 1.0)


def next_row(waiting: Iterable[Row], parts: Parts, seconds: float) -> Row | None:
    """Returns the first row expected to fit into the remaining seconds; None if no row does."""
    return next((row for row in waiting if expected_seconds(row, parts) <= seconds), None)


def rows_left(parts: Parts, *, again: bool = False) -> list[Row]:
    """Lists the rows without a result, and the rows cut short by the end of a call.

    Args:
        again: also the rows that failed or were wrong.
    """
    ended = ("done",) if again else ("done", "wrong", "failed")
    return [row for row in ROWS if parts.get(row.part, {}).get(row.name, {}).get("outcome") not in ended]


def play_rows(
    rows: Iterable[Row],
    parts: Parts,
    seconds_left: Callable[[], float],
    play: Callable[[Row, float], dict[str, Any]],
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Plays the rows in their order while they fit; yields each with its result.

    A row has its limit, cut to the seconds left.

    Args:
        parts: takes the results.
        seconds_left: of the call.
        play: plays a row for at most a number of seconds; its result has `outcome` and `seconds`.
    """
    waiting = [*rows]
    while row := next_row(waiting, parts, seconds_left()):
        waiting.remove(row)
        limit = min(row.limit, seconds_left())
        result = play(row, limit)
        if result["outcome"] == OVER:
            result["outcome"] = "cut" if limit < row.limit else "failed"
        parts.setdefault(row.part, {})[row.name] = result
        yield row, result


def simulate(scale: float, parts: Parts | None = None) -> list[tuple[list[Row], float]]:
    """Plays a day by its numbers alone; returns each call's whole rows and idle seconds.

    `scale` is real over expected seconds of each row; `parts` takes the results.
    """
    parts = {} if parts is None else parts
    return [_simulate_call(scale, parts, seconds - LEAVE_SECONDS) for seconds in CALLS]


def _simulate_call(scale: float, parts: Parts, clock: float) -> tuple[list[Row], float]:
    def play(row: Row, limit: float) -> dict[str, Any]:
        nonlocal clock
        seconds = min(scale * row.expected, limit)
        clock -= seconds
        return {"outcome": OVER if scale * row.expected > limit else "done", "seconds": seconds}

    played = play_rows(rows_left(parts), parts, lambda: clock, play)
    return [row for row, result in played if result["outcome"] == "done"], clock
