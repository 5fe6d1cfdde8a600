"""What one GPU can tell in about half an hour, row by row; `scripts/gpu` prepares, runs and collects it.

python bench/gpu.py run [PART...] --out FOLDER [--copy FOLDER] [--seconds 560] [--again] [--small]
python bench/gpu.py collect FOLDER [--to bench/results/gpu]

A machine is lent for minutes at a time: each run of at most `--seconds` goes on where the last one ended, by
`day.json` in the folder, which is written after each row; `--again` repeats. A row has a process and a limit
of its own, begins only where the limit still fits, and leaves no process behind, however the run ends.
`--copy` also puts the file elsewhere.

One GPU gives real step times, memory and calibration; no bandwidth, overlap or stragglers. `--small` is the
rehearsal, also on a CPU: its figures are refused by `collect`, as are those without driver, clocks, power,
MIG and other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpu_tools import machine

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests" / "validate" / "test_gpu.py"


class Part(NamedTuple):
    """Its rows, and how many seconds each may take.

    The function of its name in gpu_parts.py is called with a row.
    """

    seconds: float
    rows: tuple[str, ...]


_PREDICTIONS = tuple(
    f"{model} {kind}" for kind in ("bf16", "fp16", "tf32", "fp32") for model in ("gpt2", "convnet")
)
_TESTS = tuple(line[4:].split("(")[0] for line in TESTS.read_text().splitlines() if line.startswith("def test_"))  # fmt: skip
PARTS = {
    "facts": Part(60, ("machine",)),
    "starts": Part(90, ("command", "torchrun", "python")),
    "guards": Part(60, ("plain", "autocast bf16", "GradScaler", "compile", "fused", "capturable", "wrong loss")),
    "prediction": Part(120, _PREDICTIONS),
    "survive": Part(100, ("a rank is killed",)),
    "calibration": Part(150, ("gpt2", "convnet")),
    "search": Part(250, ("gpt2",)),
    "faults": Part(110, ("killed", "out_of_memory", "hangs", "asserts")),
    "tests": Part(240, _TESTS),
}  # fmt: skip
"""In the order in which they are worth most."""
LEAVE_SECONDS = 5.0
MARK = "ISOBATCH_GPU_DAY"
NEEDED = ("driver", "clocks", "power", "mig", "other_processes")


# ---- rows, each in a process of its own, of which nothing is left ----


def sweep(mark: str) -> None:
    """Kills every process that a run has started, whatever session it is in.

    All have the run's mark in their environment.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def guard_exit(mark: str, seconds: float) -> int:
    """Starts a process that sweeps behind this one when it ends in whatever way, closes the descriptor.

    Or is over its time.
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
    sweep(mark)
    os._exit(0)


def play(part: str, row: str, mark: str, seconds: float, *, small: bool) -> dict[str, Any]:
    """Runs one row in its own process: its figures or its error, with the machine before it."""
    begun, place = time.monotonic(), Path(f"/tmp/{mark}.json")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    until = begun + 5
    while (at := machine()).get("other_processes") and time.monotonic() < until:
        time.sleep(0.25)  # the last row's are leaving the GPU
    found: dict[str, Any] = {"started": started, "machine": at}
    env = {**os.environ, MARK: mark, **({"ISOBATCH_GPU_SMALL": "1"} if small else {})}
    words = [sys.executable, __file__, "row", part, row, str(place)]
    process = subprocess.Popen(words, env=env, start_new_session=True)
    try:
        how = f"died with exit code {process.wait(timeout=seconds)}"
    except subprocess.TimeoutExpired:
        how = f"over its limit of {seconds:g} s"
    finally:
        sweep(mark)
    process.wait()
    try:
        found |= json.loads(place.read_text())
    except (OSError, ValueError):
        found["error"] = how
    place.unlink(missing_ok=True)
    wrong = found.get("figures", {}).get("wrong")
    found["outcome"] = "failed" if "error" in found else "wrong" if wrong else "done"
    return found | {"seconds": round(time.monotonic() - begun, 1)}


def answer(part: str, row: str, place: Path) -> None:
    """Plays a row in this process, and writes what it finds, or what it raised."""
    try:
        import gpu_parts

        found: dict[str, Any] = {"figures": getattr(gpu_parts, part)(row)}
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:2000]}
    place.write_text(json.dumps(found, default=str))


# ---- a run, which goes on where the last one ended ----


def load(folder: Path) -> dict[str, Any]:
    """Reads what a folder has of the day: rows by part; nothing where there is no file."""
    file = folder / "day.json"
    return json.loads(file.read_text()) if file.exists() else {"rehearsal": None, "parts": {}}


def save(day: dict[str, Any], out: Path, copy: Path | None) -> None:
    """Writes the day, whole or not at all."""
    draft = out / ".day.json"
    draft.write_text(json.dumps(day, indent=1) + "\n")
    draft.replace(out / "day.json")
    if copy is not None:
        shutil.copy(out / "day.json", copy)


def run(
    parts: list[str], out: Path, *, copy: Path | None = None, seconds: float = 560.0, again: bool = False, small: bool = False
) -> int:  # fmt: skip
    """Plays the rows that are left, as many as the time allows. 0 where all are done, 1 where one is not.

    3 where some are left.
    """
    end, mark = time.monotonic() + seconds - LEAVE_SECONDS, f"isobatch-gpu-{uuid.uuid4().hex}"
    for folder in filter(None, (out, copy)):
        folder.mkdir(parents=True, exist_ok=True)
    day = load(out)
    if day["parts"] and day["rehearsal"] != small:
        raise SystemExit(f"{out} has a {'day' if small else 'rehearsal'}: give another --out")
    day["rehearsal"] = small
    day["parts"] |= {part: {} for part in parts if again or part not in day["parts"]}
    guard = guard_exit(mark, seconds + LEAVE_SECONDS)
    try:
        left = _play_all(parts, day, out, copy, end, mark)
    finally:
        os.close(guard)
    if left:
        print(f"{left} rows are left: give the same command again")
        return 3
    return int(any(row["outcome"] != "done" for part in parts for row in day["parts"][part].values()))


def _play_all(
    parts: list[str], day: dict[str, Any], out: Path, copy: Path | None, end: float, mark: str
) -> int:
    """Plays rows until the end; how many are left."""
    left, small = 0, day["rehearsal"]
    for part in parts:
        rows = day["parts"][part]
        for row in (name for name in PARTS[part].rows if name not in rows):
            if time.monotonic() + PARTS[part].seconds > end:
                left += 1
                continue
            limit = end - time.monotonic() if small else PARTS[part].seconds  # who rehearses may be busy
            rows[row] = one = play(part, row, mark, limit, small=small)
            save(day, out, copy)
            how = f"{part}, {row}: {one['outcome']} in {one['seconds']} s"
            print(how, *reasons(one), sep="\n  ", flush=True)
    return left


def reasons(row: dict[str, Any]) -> list[str]:
    """Why a row is not done."""
    return [*filter(None, [row.get("error")]), *map(str, row.get("figures", {}).get("wrong", []))]


# ---- what may be published ----


def refusals(day: dict[str, Any]) -> list[str]:
    """Why the figures of a day are not published."""
    if day["rehearsal"]:
        return ["a rehearsal at a small size"]
    found = []
    rows = ((part, row, one["machine"]) for part, rows in day["parts"].items() for row, one in rows.items())
    for part, row, at in rows:
        where = f"{part}, {row}: "
        if at["device"] == "cpu":
            return [where + "no GPU was used"]
        for name in NEEDED:
            it = at.get(name)
            if it is None or (isinstance(it, dict) and None in it.values()):
                found.append(f"{where}{name} is not known")
        if at.get("other_processes"):
            found.append(f"{where}{at['other_processes']} other processes were on the GPU")
        if at.get("mig"):
            found.append(where + "the GPU was divided (MIG)")
    return found


def collect(folder: Path, to: Path) -> int:
    """Copies a day into the repository, with a page; nothing where a figure of it is refused."""
    day = load(folder)
    if not day["parts"]:
        print(f"no day.json in {folder}: scripts/gpu run first", file=sys.stderr)
        return 2
    if refused := refusals(day):
        print("nothing is published:", *refused, sep="\n  ", file=sys.stderr)
        return 1
    to.mkdir(parents=True, exist_ok=True)
    save(day, to, None)
    (to / "README.md").write_text(page(day["parts"]))
    return 0


def missing(parts: dict[str, Any]) -> list[str]:
    """Which rows of which parts have not been run."""
    left = {it: [row for row in PARTS[it].rows if row not in parts.get(it, {})] for it in PARTS}
    return [f"{part} ({', '.join(rows)})" for part, rows in left.items() if rows]


def page(parts: dict[str, Any]) -> str:
    """The day for people, in the order of the parts; its JSON has the figures in full."""
    at = next(row["machine"] for rows in parts.values() for row in rows.values())
    left = "; ".join(missing(parts))
    lines = [
        "# On one GPU",
        "",
        f"{at['device']}, driver {at['driver']}, torch {at['torch']}; SM clock {at['clocks']['sm_mhz']} of "
        f"{at['clocks']['sm_max_mhz']} MHz and {at['power']['now_w']} of {at['power']['limit_w']} W at the "
        "start; not divided, no other process. Two ranks on it prove function, not speed. Made by "
        "`scripts/gpu`; [all figures](day.json).",
        "",
        *([f"**Unfinished**; not run: {left}.", ""] if left else []),
        "| part | row | outcome | seconds | figures |",
        "|---|---|---|---|---|",
    ]
    for part in filter(parts.get, PARTS):
        for name, row in parts[part].items():
            figures = row.get("figures", {}).items()
            numbers = [f"{key} {x:.4g}" for key, x in figures if type(x) in (int, float)]
            text = "; ".join(reasons(row) or numbers).replace("|", "/").replace("\n", " ")
            lines.append(f"| {part} | {name} | {row['outcome']} | {row['seconds']} | {text} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running, single, collecting = (commands.add_parser(name) for name in ("run", "row", "collect"))
    running.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--copy", type=Path)
    running.add_argument("--seconds", type=float, default=560.0)
    for flag in ("--again", "--small"):
        running.add_argument(flag, action="store_true")
    for name, kind in (("part", str), ("row", str), ("place", Path)):
        single.add_argument(name, type=kind)
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--to", type=Path, default=HERE / "results" / "gpu")
    given = vars(parser.parse_args())
    command = given.pop("command")
    if command == "run":
        given["parts"] = given["parts"] or [*PARTS]
        if unknown := [part for part in given["parts"] if part not in PARTS]:
            running.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return {"run": run, "row": answer, "collect": collect}[command](**given) or 0


if __name__ == "__main__":
    sys.exit(main())
