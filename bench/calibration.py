"""How well a profile that was fitted to real steps predicts others, beside AdaptDL's fit of the same steps.

    python bench/calibration.py        fits and predicts from all stored times, and prints the table

Steps of some ranks, micro-batches and accumulations are fitted; the others are predicted, apart by whether
they lie inside the fitted ranges. "with wires" also saw the bare all-reduces of the ranks whose steps are
predicted. Hosts are network namespaces, one rank each, with links limited to a rate.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from isobatch.forecast.calibrate import calibrate
from isobatch.forecast.measurements import AllReduceRecord, Measurements, StepRecord
from peers import adaptdl_goodput

RESULTS = Path(__file__).parent / "results" / "calibration"
PLANS: dict[str, dict[str, Any]] = {
    "paced": {
        "fit": {"gpus": (1, 2, 4), "micro_batch": (2, 8, 32), "accumulation": (1, 4)},
        "inside": [(4, 1), (4, 4), (16, 1), (16, 2), (8, 2), (32, 2)],
        "outside": [(64, 1), (64, 4), (128, 1)],
    },
    "real": {
        "fit": {"gpus": (1, 2), "micro_batch": (16, 64, 256), "accumulation": (1, 4)},
        "inside": [(32, 1), (32, 4), (128, 1), (128, 2), (64, 2), (256, 2)],
        "outside": [(512, 1), (512, 2)],
    },
}


def quiet(samples: list[tuple[float, float]]) -> list[float]:
    """Returns the fastest quarter of the times, three at least: other work only ever slows a step down."""
    return sorted(seconds for seconds, _ in samples)[: max(3, len(samples) // 4)]


def points(stored: dict[str, Any]) -> dict[tuple[int, int, int], list[float]]:
    """Samples by (ranks, micro-batch, accumulation)."""
    samples_at = {}
    for run in stored["runs"]:
        for name, samples in run["steps"].items():
            gpus, micro, accumulation = map(int, name.split("x"))
            samples_at[gpus, micro, accumulation] = quiet(samples)
    return samples_at


def fitted(stored: dict[str, Any], *, wires: bool) -> tuple[Measurements, set[tuple[int, int, int]]]:
    """Returns the fit's measurements and points; with `wires` also the other ranks' bare all-reduces."""
    fit = PLANS[stored["kind"]]["fit"]
    fit_points = {
        point: samples
        for point, samples in points(stored).items()
        if all(value in fit[name] for value, name in zip(point, fit, strict=True))
    }
    steps = tuple(
        StepRecord(gpus=g, gpus_per_node=1, micro_batch=b, accumulation=a, step_seconds=tuple(samples))
        for (g, b, a), samples in fit_points.items()
    )
    reduces = tuple(
        AllReduceRecord(gpus=run["ranks"], gpus_per_node=1, bytes=float(size), seconds=tuple(quiet(samples)))
        for run in stored["runs"]
        if wires or run["ranks"] in fit["gpus"]
        for size, samples in run["all_reduce"].items()
    )
    first = stored["runs"][0]
    measured = Measurements(
        gradient_bytes=first["gradient_bytes"],
        bucket_bytes=tuple(first["bucket_bytes"]),
        steps=steps,
        all_reduce=reduces,
        workload=stored["kind"],
        link=stored["rate"],
    )
    return measured, set(fit_points)


def adaptdl_fit(measured: Measurements) -> Any:
    """Fits AdaptDL's parameters, to the times of a pass and of a step at each (ranks, micro-batch)."""
    adaptdl = adaptdl_goodput()
    seconds = {
        (s.gpus, s.micro_batch, s.accumulation): float(np.median(s.step_seconds)) for s in measured.steps
    }
    known = [(g, b) for g, b, a in seconds if a == 1]
    passes = [seconds[1, b, 1] for _, b in known]
    whole = [seconds[g, b, 1] for g, b in known]
    gpus, micro = np.array(known).T
    parameters = adaptdl.fit_perf_params(gpus, gpus, micro, np.array(passes), np.array(whole))
    return adaptdl.GoodputFunction(parameters, adaptdl.GradParams(1, 1), 1)


def errors(stored: dict[str, Any], verbose: bool) -> dict[tuple[str, str], Any]:
    """Relative errors by (whose, where): fitted, inside or outside."""
    measured, fit_points = fitted(stored, wires=False)
    adaptdl = adaptdl_fit(measured)
    profiles = {"isobatch": calibrate(measured), "with wires": calibrate(fitted(stored, wires=True)[0])}
    fit = PLANS[stored["kind"]]["fit"]
    truth = {point: float(np.median(samples)) for point, samples in points(stored).items()}
    gpus, micro, accumulation = np.array(list(truth)).T
    rows = {
        who: profile.forecast(gpus=gpus, gpus_per_node=1, micro_batch=micro, accumulation=accumulation)
        for who, profile in profiles.items()
    }
    found_by = {who: row["step_seconds"] for who, row in rows.items()}
    found_by["AdaptDL"] = (
        gpus * micro * accumulation / adaptdl.throughput(gpus, gpus, micro, accumulation - 1)
    )
    within = np.abs(found_by["isobatch"] - np.array(list(truth.values()))) <= rows["isobatch"]["step_error"]
    inside = (gpus <= max(fit["gpus"])) & (micro <= max(fit["micro_batch"]))
    errors_of: dict[tuple[str, str], list[float]] = {}
    for i, (point, true) in enumerate(truth.items()):
        where = "fitted" if point in fit_points else "inside" if inside[i] else "outside"
        off = {who: seconds[i] / true - 1 for who, seconds in found_by.items()}
        for who, error in off.items():
            errors_of.setdefault((who, where), []).append(error)
        if verbose:
            each = "  ".join(f"{who} {error:+6.1%}" for who, error in off.items())
            print(f"{where:8} {point!s:14} {true * 1e3:7.1f} ms {' ' if within[i] else '!'} {each}")
    if verbose:
        print(f"within the interval: {within.mean():.0%}")
        for name, constant in profiles["isobatch"].constants().items():
            print(f"  {name} = {constant.value:.4g} ± {constant.error or float('nan'):.2g}")
    return {key: np.abs(value) for key, value in errors_of.items()}


def others(stored: dict[str, Any]) -> float:
    """Cores that others kept busy while it was measured, in the median."""
    samples = (samples_of for run in stored["runs"] for samples_of in run["steps"].values())
    return float(np.median([busy for samples_of in samples for _, busy in samples_of]))


def report(files: list[Path], verbose: bool) -> None:
    print(
        "| work, link | others, cores | whose | held-out | points | median | p95 | worst |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    pooled: dict[tuple[str, str], list[float]] = {}
    for file in files:
        stored = json.loads(file.read_text())
        load = f"{others(stored):.2f}"
        for (who, where), off in sorted(errors(stored, verbose).items(), key=lambda row: row[0][::-1]):
            pooled.setdefault((who, where), []).extend(off)
            line(f"{stored['kind']}, {stored['rate']} | {load} | {who} | {where}", off)
    for (who, where), off in sorted(pooled.items(), key=lambda row: row[0][::-1]):
        line(f"all | | {who} | {where}", np.array(off))


def line(head: str, off: Any) -> None:
    print(f"| {head} | {len(off)} | {np.median(off):.1%} | {np.quantile(off, 0.95):.1%} | {off.max():.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbose", action="store_true", help="every point")
    arguments = parser.parse_args()
    report(sorted(RESULTS.glob("*.json")), arguments.verbose)


if __name__ == "__main__":
    main()
