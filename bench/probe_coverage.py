"""How often the probe's interval contains the best learning rate, on simulated losses whose best one is known.

Losses are a parabola over the logarithm of the learning rate (0.05 above its lowest at a factor of 2), plus what seeds and evaluation samples
have in common over learning rates, plus noise of each trial. Prints a table for bench/results/probe.md.
"""

from __future__ import annotations

import argparse

import numpy as np

from isobatch.probing.estimate import Rates, interval

LOGS = np.log(2.0) * np.arange(-2, 3)
PARTS = 32


def covered(draw: np.random.Generator, noise: float, seeds: int, runs: int) -> tuple[float, float]:
    """(the share of the intervals that contain the best learning rate, their mean width in factors of 2)."""
    hits, widths = 0, []
    for _ in range(runs):
        best = draw.uniform(-0.5, 0.5) * np.log(2)
        losses = 0.05 * ((LOGS - best) / np.log(2)) ** 2
        own = draw.normal(0, noise, (len(LOGS), seeds, 1)) + draw.normal(0, 0.02, (1, seeds, 1))
        parts = draw.normal(0, 0.1, (1, 1, PARTS)) + draw.normal(0, 0.02, (len(LOGS), 1, PARTS))
        low, high = interval(
            Rates(np.exp(LOGS), losses[:, None, None] + own + parts).resampled(1, resamples=300)[0]
        )
        hits += low <= best <= high
        widths.append((high - low) / np.log(2))
    return hits / runs, float(np.mean(widths))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300, help="simulated probes for each row")
    runs = parser.parse_args().runs
    draw = np.random.default_rng(0)
    print("| noise of a trial | seeds | contains the best | width |\n|---|---|---|---|")
    for noise in (0.003, 0.01, 0.03):
        for seeds in (1, 3, 5):
            share, width = covered(draw, noise, seeds, runs)
            print(f"| {noise} | {seeds} | {share:.0%} | × {2**width:.2f} |", flush=True)


if __name__ == "__main__":
    main()
