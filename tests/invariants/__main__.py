"""The long command: every check in rounds of fresh seeds, each in a process of its own, until the time is over; then the totals.

A round that ends with an exception is a finding; one that does not end is killed, and a hang. What it may take is counted in processor
time, since a busy machine makes each round long; only one that waits for ever is ended by the clock. Exit 0: none of either.
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
    given = parser.parse_args()
    if given.round:
        _, most = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(given.limit), most))
        return play(given.round[0], int(given.round[1]), given.keep)
    return look(given)


def play(name: str, seed: int, folder: Path) -> int:
    """One round, in its own process."""
    check = CHECKS[name]
    try:
        print(check.run(seed, check.many, folder))
    except AssertionError as error:
        print(f"{error}", file=sys.stderr)
        return 1
    return 0


def look(given: argparse.Namespace) -> int:
    """Rounds of the checks, each as often as its share of the time says."""
    folder = given.keep or Path(tempfile.mkdtemp(prefix="invariants-"))
    folder.mkdir(parents=True, exist_ok=True)
    played, rounds, spent, found = Counter(), Counter(), Counter(), []
    end, seed = time.monotonic() + 60 * given.minutes, given.seed
    while time.monotonic() < end:
        name = min(given.only, key=lambda name: spent[name] / CHECKS[name].share)
        seed += 1
        started = time.monotonic()
        command = [sys.executable, "-m", "invariants", "--round", name, str(seed), "--keep", str(folder)]
        command += ["--limit", str(given.limit)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=WAIT * given.limit, check=False
            )
            failure = done.stderr.strip()[-3000:] if done.returncode else ""
            if done.returncode == -signal.SIGXCPU:
                failure = f"a hang: more than {given.limit:.0f} s of processor time"
        except subprocess.TimeoutExpired:
            failure = f"a hang: more than {WAIT * given.limit:.0f} s of waiting"
        spent[name] += time.monotonic() - started
        rounds[name] += 1
        if failure:
            found.append((name, seed, failure))
            print(f"{name}, seed {seed}: {failure}\n", flush=True)
        else:
            played[name] += int(done.stdout)
    print(f"{'check':10} {'cases':>14} {'rounds':>7} {'findings':>9} {'hangs':>6} {'seconds':>8}")
    for name in given.only:
        mine = [failure for check, _, failure in found if check == name]
        hangs = sum(failure.startswith("a hang") for failure in mine)
        print(
            f"{name:10} {played[name]:14,} {rounds[name]:7,} {len(mine) - hangs:9,} {hangs:6,} {spent[name]:8,.0f}  {CHECKS[name].counts}"
        )
    return 1 if found else 0


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
