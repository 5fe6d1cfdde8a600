"""The time of `isobatch exec` before the command runs, beside a Python that imports NumPy and does nothing.

The starts go by turns, so that a busy machine delays all alike; the processor's own time (user and system)
hardly depends on who else works.

    python bench/exec_start.py --rounds 60
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = 'effective_batch = 256\nlr = 0.1\ndataset_size = 1_281_167\nduration = "90ep"\nwarmup = "5ep"\n'
ENTRY = "from isobatch.cli import command; command()"
"""The entry point of the installed command `isobatch`."""


def start(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Runs a command; returns its time by the clock and its processor time, in ms."""
    began = time.perf_counter()
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return (time.perf_counter() - began) * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        job = Path(name, "job.toml")
        job.write_text(RECIPE)
        environment = {**os.environ, "WORLD_SIZE": "64", "RANK": "1", "TMPDIR": name}
        words = ["exec", str(job), "--", "true", "{micro_batch}", "{accumulation}", "{lr}", "{total_steps}"]
        python = sys.executable
        cases = {
            "`true`": ["true"],
            "`python -c pass`": [python, "-c", "pass"],
            "`python -c 'import numpy'`": [python, "-c", "import numpy"],
            "`isobatch exec job.toml -- true {micro_batch} …`": [python, "-c", ENTRY, *words],
            "the same, `python -m isobatch`": [python, "-m", "isobatch", *words],
        }
        if installed := shutil.which("isobatch"):
            cases["the same, the installed command"] = [installed, *words]
        times: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case, command in cases.items():
                times[case].append(start(command, environment))
    base = times["`python -c 'import numpy'`"]
    print(
        "| start | by the clock, ms: least, median | processor, ms: least, median | over NumPy, processor |"
    )
    print("|---|---|---|---|")
    for case, measured in times.items():
        clock, processor = zip(*measured, strict=True)
        over = statistics.median(processor) - statistics.median(own for _, own in base)
        print(
            f"| {case} | {min(clock):.0f}, {statistics.median(clock):.0f} | {min(processor):.0f}, "
            f"{statistics.median(processor):.0f} | {over:+.0f} |"
        )


if __name__ == "__main__":
    main()
