"""Plays plan, counts, its page, fleet, exec, doctor and allocate against one another.

    python bench/contradictions.py [RECIPES] [SEED]

Each recipe is planned on eight GPU counts by each command. Exit code 1: two commands answer one question
differently, and both answers are printed.
"""

import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from invariants.answers import COMMANDS, contradictions, made


def main() -> int:
    """Prints the contradictions and their number."""
    recipes = int(sys.argv[1]) if len(sys.argv) > 1 else 250
    rng, began, differences = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(recipes):
            for text in contradictions(made(rng, Path(folder))):
                differences += 1
                print(text, flush=True)
    number = f"{recipes:,} recipes on 8 GPU counts each by plan and {len(COMMANDS)} other answers"
    print(f"{number}: {differences:,} contradictions, {time.monotonic() - began:.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
