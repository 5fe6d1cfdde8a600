"""Plays a day with one GPU, row by row, in calls of some minutes; `scripts/gpu` prepares and collects it.

A run goes on where the last one ended, by `day.json` in the folder, which is written whole after each row.
A row has a process and a limit of its own, begins where its expected seconds fit (gpu_rows.py), and leaves
no process behind, however the run ends. `--small` is a rehearsal; `collect` refuses it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from gpu_page import figures_of, print_simulation, reasons, refusals, write_page
from gpu_rows import CALLS, LEAVE_SECONDS, OVER, PARTS, Row, play_rows, rows_left
from gpu_tools import machine

HERE = Path(__file__).parent
MARK, BEGUN = "ISOBATCH_GPU_DAY", "ISOBATCH_GPU_BEGUN"
REHEARSAL = "A rehearsal on a made-up GPU at a small size: no evidence of anything on a GPU"
TAIL = 6000  # Characters of a row's output, where it is not done.


# ---- a row, in a process of its own, of which nothing is left ----


def end_marked(mark: str) -> None:
    """Kills every process with the run's mark in its environment, in any session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def guard_exit(mark: str, seconds: float) -> int:
    """Forks a watcher to end the run's processes when this one ends or is over its time.

    Returns the descriptor to close at the end.
    """
    reading, writing = os.pipe()
    runner = os.getpid()
    if os.fork():
        os.close(reading)
        return writing
    os.setsid()
    os.close(writing)
    ended, _, _ = select.select([reading], [], [], seconds)
    if not ended:
        os.kill(runner, signal.SIGKILL)
    end_marked(mark)
    os._exit(0)


def play(row: Row, limit: float, mark: str, *, small: bool) -> dict[str, Any]:
    """Plays a row in a process and a folder of its own; returns its figures, or why there are none."""
    begun, before = time.monotonic(), os.times()
    result: dict[str, Any] = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    while (state := machine()).get("other_processes") and time.monotonic() < begun + 5:
        time.sleep(0.25)  # The last row's processes are leaving the GPU.
    result["machine"] = state
    environment = {**os.environ, MARK: mark, "ISOBATCH_GPU_SMALL": str(int(small))}
    words = [sys.executable, str(HERE / "gpu_parts.py"), row.part, row.name]
    with tempfile.TemporaryDirectory(prefix="isobatch-gpu-") as name:
        folder = Path(name)
        with (folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                words, env=environment, cwd=folder, start_new_session=True, stdout=output, stderr=output
            )
        code = None
        try:
            code = process.wait(timeout=max(0.0, limit - (time.monotonic() - begun)))
        except subprocess.TimeoutExpired:
            result["error"] = f"over its limit of {limit:.0f} s"
        finally:
            end_marked(mark)
        process.wait()
        with suppress(OSError, ValueError):  # It may have none, or have been killed as it wrote them.
            result["figures"] = json.loads((folder / "figures.json").read_text())
        if code:
            result["error"] = f"exit code {code}"
        wrong = result.get("figures", {}).get("wrong")
        result["outcome"] = OVER if code is None else "failed" if code else "wrong" if wrong else "done"
        if result["outcome"] != "done":
            result["output"] = (folder / "output.txt").read_text(errors="replace")[-TAIL:]
    after = os.times()
    result["processor_seconds"] = round(sum(after[2:4]) - sum(before[2:4]), 1)  # Of the row's processes.
    return result | {"seconds": round(time.monotonic() - begun, 1)}


# ---- a run, which goes on where the last one ended ----


def load(folder: Path) -> dict[str, Any]:
    """Reads a folder's day: its calls, and its rows by part; empty where there is no file."""
    file = folder / "day.json"
    return json.loads(file.read_text()) if file.exists() else {"rehearsal": None, "calls": [], "parts": {}}


def save(day: dict[str, Any], *folders: Path) -> None:
    """Writes the day, whole or not at all."""
    for folder in folders:
        (folder / ".day.json").write_text(json.dumps(day, indent=1, default=str) + "\n")
        (folder / ".day.json").replace(folder / "day.json")


def run(parts: list[str], out: list[Path], *, seconds: float, again: bool, small: bool) -> int:
    """Plays the remaining rows, as many as the time allows.

    Returns 0 where all are done, 1 where a row is not, 3 where some are left.
    """
    seconds -= time.time() - float(os.environ.get(BEGUN) or time.time())  # The wheels' installation counts.
    end, mark = time.monotonic() + seconds - LEAVE_SECONDS, f"isobatch-gpu-{uuid.uuid4().hex}"
    for folder in out:
        folder.mkdir(parents=True, exist_ok=True)
    day = load(out[0])
    rehearsal = REHEARSAL if small else None
    if day["parts"] and day["rehearsal"] != rehearsal:
        raise SystemExit(f"{out[0]} has a {'day' if small else 'rehearsal'}: give another --out")
    day["rehearsal"] = rehearsal
    rows = [row for row in rows_left(day["parts"], again=again) if row.part in parts]
    if small:  # A machine that rehearses may be busy: a row has all the seconds that are left.
        rows = [row._replace(limit=math.inf) for row in rows]
    call = {"started": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": seconds, "used": 0.0}
    day["calls"].append(call)
    guard = guard_exit(mark, seconds)
    try:
        playing = partial(play, mark=mark, small=small)
        for row, result in play_rows(rows, day["parts"], lambda: end - time.monotonic(), playing):
            call["used"] = round(seconds - LEAVE_SECONDS - (end - time.monotonic()), 1)
            save(day, *out)
            line = f"{row.part}, {row.name}: {result['outcome']} in {result['seconds']} s"
            texts = [*reasons(result), *figures_of(result)]
            print(f"{line} ({row.expected:g} expected)", *texts, sep="\n  ", flush=True)
    finally:
        os.close(guard)
    if rows := [row for row in rows_left(day["parts"]) if row.part in parts]:
        print(f"{len(rows)} rows are left, first {rows[0].part}, {rows[0].name}: give the same command again")
        return 3
    return int(any(row["outcome"] != "done" for part in parts for row in day["parts"].get(part, {}).values()))


def collect(folder: Path, to: Path) -> int:
    """Copies a day into the repository, with its page; nothing where a figure of it is refused."""
    day = load(folder)
    if not day["parts"]:
        print(f"no day.json in {folder}: scripts/gpu run first", file=sys.stderr)
        return 2
    if refused := refusals(day):
        print("nothing is published:", *refused, sep="\n  ", file=sys.stderr)
        return 1
    to.mkdir(parents=True, exist_ok=True)
    save(day, to)
    write_page(to / "README.md", day)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running, collecting = commands.add_parser("run"), commands.add_parser("collect")
    commands.add_parser("simulate")
    running.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    running.add_argument("--out", type=Path, action="append", required=True, help="twice: day.json too")
    running.add_argument("--seconds", type=float, default=CALLS[0], help="of this call, its end included")
    running.add_argument("--again", action="store_true", help="also rows that failed or were wrong")
    running.add_argument("--small", action="store_true", help="a rehearsal")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--to", type=Path, default=HERE / "results" / "gpu")
    arguments = vars(parser.parse_args())
    command = arguments.pop("command")
    if command == "run":
        arguments["parts"] = arguments["parts"] or [*PARTS]
        if unknown := [part for part in arguments["parts"] if part not in PARTS]:
            running.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return {"run": run, "simulate": print_simulation, "collect": collect}[command](**arguments) or 0


if __name__ == "__main__":
    sys.exit(main())
