"""The long command: every check in rounds of fresh seeds, each in its own process, until the time is over.

A round that ends with an exception is a finding; one that does not end is killed, and a hang. What it may
take is counted in processor time, since a busy machine makes each round long; only one that waits for ever is
ended by the clock. Exit 0: none of either.
"""

import argparse
import faulthandler
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from invariants.laws import CHECKS

WAIT = 20
"""How much longer than its processor time a round may take."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/invariants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to look")
    parser.add_argument("--seed", type=int, default=1000, help="the first seed")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=[*CHECKS], help="these checks alone")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds of processor time that a round may take"
    )
    parser.add_argument("--keep", type=Path, help="a folder for what a finding was made of")
    parser.add_argument("--round", nargs=2, metavar=("CHECK", "SEED"), help=argparse.SUPPRESS)
    values = parser.parse_args()
    if values.round:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(values.limit), most))
        return play(values.round[0], int(values.round[1]), values.keep)
    return look(values)


def play(name: str, seed: int, folder: Path) -> int:
    """One round, in its own process."""
    check = CHECKS[name]
    try:
        print(check.run(seed, check.many, folder))
    except AssertionError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


def look(values: argparse.Namespace) -> int:
    """Rounds of the checks, each as often as its share of the time says."""
    folder = values.keep or Path(tempfile.mkdtemp(prefix="invariants-"))
    folder.mkdir(parents=True, exist_ok=True)
    played, rounds, spent, result = Counter(), Counter(), Counter(), []
    end, seed = time.monotonic() + 60 * values.minutes, values.seed
    while time.monotonic() < end:
        name = min(values.only, key=lambda name: spent[name] / CHECKS[name].share)
        seed += 1
        started = time.monotonic()
        command = [sys.executable, "-m", "invariants", "--round", name, str(seed), "--keep", str(folder)]
        command += ["--limit", str(values.limit)]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=WAIT * values.limit, check=False
            )
            failure = process.stderr.strip()[-3000:] if process.returncode else ""
            if process.returncode == -signal.SIGXCPU:
                failure = f"a hang: more than {values.limit:.0f} s of processor time"
        except subprocess.TimeoutExpired:
            failure = f"a hang: more than {WAIT * values.limit:.0f} s of waiting"
        spent[name] += time.monotonic() - started
        rounds[name] += 1
        if failure:
            result.append((name, seed, failure))
            print(f"{name}, seed {seed}: {failure}\n", flush=True)
        else:
            played[name] += int(process.stdout)
    print(f"{'check':10} {'cases':>14} {'rounds':>7} {'findings':>9} {'hangs':>6} {'seconds':>8}")
    for name in values.only:
        own = [failure for check, _, failure in result if check == name]
        hangs = sum(failure.startswith("a hang") for failure in own)
        print(
            f"{name:10} {played[name]:14,} {rounds[name]:7,} {len(own) - hangs:9,} {hangs:6,} "
            f"{spent[name]:8,.0f}  {CHECKS[name].counts}"
        )
    return 1 if result else 0


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
