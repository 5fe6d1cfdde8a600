"""Plays plan, counts, its page, fleet, exec, doctor and allocate against one another.

    python bench/contradictions.py [RECIPES] [SEED] [MINUTES]

Each recipe is planned on eight GPU counts by each command, as many recipes as fit in the minutes. Exit code
1: two commands answer one question differently, and both answers are printed.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from invariants.answers import COMMANDS, contradictions, made


def main(recipes: int = 250, seed: int = 0, minutes: int = 60) -> int:
    """Prints the contradictions and their number."""
    rng, began, played, differences = random.Random(seed), time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while played < recipes and time.monotonic() - began < 60 * minutes:
            played += 1
            for text in contradictions(made(rng, Path(folder))):
                differences += 1
                print(text, flush=True)
    number = f"{played:,} recipes on 8 GPU counts each by plan and {len(COMMANDS)} other answers"
    print(f"{number}: {differences:,} contradictions, {time.monotonic() - began:.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
