"""Every check, and the checks of each public name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from invariants.allocations import check_allocations
from invariants.answers import check_answers
from invariants.calls import check_calls
from invariants.commands import check_commands
from invariants.curves import check_curves
from invariants.files import check_files
from invariants.forecasts import check_laws
from invariants.moves import check_moves
from invariants.plans import check_alone, check_oracle
from invariants.rows import check_rows


@dataclass(frozen=True)
class Check:
    """`run(seed, size, folder)` plays `size` cases of a seed and counts them; `few`, `many`: sizes."""

    run: Callable[[int, int, Path], int]
    counts: str
    few: int
    many: int
    share: float
    """Of the long command's time."""


CHECKS = {
    "rows": Check(lambda seed, size, _: check_rows(seed, size), "bulk rows against identities", 1 << 15,
        1 << 20, 3),
    "oracle": Check(lambda seed, size, _: check_oracle(seed, size), "plans against the oracle in fractions",
        400, 10_000, 6),
    "alone": Check(lambda seed, size, _: check_alone(seed, size), "plans alone against the fleet's row, "
                                                                  "and their files", 100, 2000, 2),
    "files": Check(lambda seed, size, folder: check_files(seed, size, folder), "mutated files", 700, 20_000,
        6),
    "commands": Check(lambda seed, size, folder: check_commands(seed, size, folder), "commands on mutated "
                                                                                     "files", 60, 5000, 6),
    "calls": Check(lambda seed, size, _: check_calls(seed, size), "calls with any arguments", 700, 10_000, 2),
    "moves": Check(lambda seed, size, _: check_moves(seed, size), "moves of a run", 20, 500, 2),
    "curves": Check(lambda seed, size, _: check_curves(seed, size), "schedules, bulk against one by one", 30,
        300, 1),
    "allocations": Check(lambda seed, size, _: check_allocations(seed, size), "divisions against their own "
                                                                              "words", 5, 300, 1),
    "answers": Check(check_answers, "answers of all commands to one question", 1, 20, 1),
    "laws": Check(lambda seed, size, _: check_laws(seed, size), "published laws within their ranges", 50,
        2000, 0.3),
}  # fmt: skip

LAWS: dict[str, tuple[str, ...]] = {
    "Allocation": ("allocations", "tests/allocation"),
    "Cluster": ("alone", "calls"),
    "Constant": ("files",),
    "FeasiblePlan": ("alone", "files"),
    "InputError": ("calls", "files"),
    "Plan": ("alone", "files", "moves", "oracle"),
    "Profile": ("files", "calls"),
    "Reason": ("rows", "oracle"),
    "Recipe": ("calls", "files", "alone"),
    "Settings": ("alone", "calls"),
    "Counts": ("tests/fleet",),
    "__version__": ("tests/test_guards.py",),
    "allocate": ("allocations", "tests/allocation"),
    "calibrate": ("calls", "tests/forecast"),
    "estimate": ("calls", "tests/forecast"),
    "explain": ("calls", "tests/fleet"),
    "integrations": ("tests/integrations",),
    "laws": ("laws", "calls"),
    "Same": ("tests/equivalence",),
    "same": ("tests/equivalence",),
    "same_model": ("tests/equivalence",),
    "memory_of": ("tests/validate",),
    "plan": ("oracle", "alone", "calls"),
    "plan_files": ("tests/fleet/test_plan_folder.py",),
    "plan_fleet": ("rows", "oracle", "alone", "calls"),
    "plot": ("tests/report",),
    "rules": ("tests/report",),
    "plan_table": ("calls", "tests/fleet"),
    "probe": ("tests/probing",),
    "replan": ("moves", "calls"),
    "schedule_matrix": ("curves", "calls"),
    "schedules": ("curves", "calls", "files"),
    "counts": ("tests/fleet", "calls"),
    "validate": ("tests/validate",),
}
"""Each public name and the checks, or the tests of its own, that hold its laws."""
