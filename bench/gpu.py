"""What one GPU can tell in about half an hour, part by part; `scripts/gpu` prepares, runs and collects it.

python bench/gpu.py list
python bench/gpu.py run [PART...] --out FOLDER [--small]    # each part in a process of its own; its JSON is written at once
python bench/gpu.py collect FOLDER [--to bench/results/gpu]

One GPU gives real step times, memory and calibration; no bandwidth, overlap or stragglers. `--small` is the rehearsal, also on a CPU: its
figures are refused by `collect`, as are those without driver, clocks, power, MIG and other processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = {
    "facts": 60,
    "starts": 300,
    "tests": 590,
    "guards": 300,
    "prediction": 590,
    "calibration": 300,
    "search": 400,
    "noise": 300,
    "faults": 590,
}
"""The functions of gpu_parts.py, and how many seconds each may take."""
NEEDED = ("driver", "clocks", "power", "mig", "other_processes")


def one(part: str, out: Path, *, small: bool) -> None:
    """A part in this process; what it finds, or how it failed, is written."""
    sys.path.insert(0, str(HERE))
    if small:
        os.environ["ISOBATCH_GPU_SMALL"] = "1"
    begun = time.monotonic()
    record: dict[str, Any] = {
        "part": part,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "rehearsal": small,
    }
    try:
        import gpu_parts
        from gpu_tools import machine

        record["machine"] = machine()
        record["figures"] = getattr(gpu_parts, part)(small)
        record["machine_after"] = machine()
        record["outcome"] = "wrong" if record["figures"].get("wrong") else "done"
    except Exception as error:
        record |= {"outcome": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
    write(out, part, record, begun)


def write(out: Path, part: str, record: dict[str, Any], begun: float) -> None:
    """The record as JSON, whole or not at all."""
    record["seconds"] = round(time.monotonic() - begun, 1)
    draft = out / f".{part}.json"
    draft.write_text(json.dumps(record, indent=1, default=str) + "\n")
    draft.replace(out / f"{part}.json")


def run(parts: list[str], out: Path, *, small: bool, seconds: float | None = None) -> int:
    """Each part in its own process, ended with all that it started where it is over its limit. 0 where all were done."""
    out.mkdir(parents=True, exist_ok=True)
    good = True
    for part in parts:
        limit, begun = seconds or PARTS[part], time.monotonic()
        (out / f"{part}.json").unlink(missing_ok=True)
        words = [sys.executable, __file__, "one", part, "--out", str(out), *(["--small"] if small else [])]
        process = subprocess.Popen(words, start_new_session=True)
        over = False
        try:
            process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            over = True
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not (out / f"{part}.json").exists():
            how = f"over its limit of {limit:g} s" if over else f"died with exit code {process.returncode}"
            write(out, part, {"part": part, "rehearsal": small, "outcome": "failed", "error": how}, begun)
        record = json.loads((out / f"{part}.json").read_text())
        good &= record["outcome"] == "done"
        print(
            f"{part}: {record['outcome']} in {record['seconds']} s", *reasons(record), sep="\n  ", flush=True
        )
    return 0 if good else 1


def reasons(record: dict[str, Any]) -> list[str]:
    """Why a part is not done."""
    return [*filter(None, [record.get("error")]), *map(str, record.get("figures", {}).get("wrong", []))]


def refusals(record: dict[str, Any]) -> list[str]:
    """Why the figures of a part are not published."""
    part, machine = record.get("part", "?"), record.get("machine", {})
    if record.get("rehearsal"):
        return [f"{part}: a rehearsal at a small size"]
    if machine.get("device", "cpu") == "cpu":
        return [f"{part}: no GPU was used"]
    lacking = [name for name in NEEDED if machine.get(name) is None or None in _values(machine[name])]
    found = [f"{part}: {name} is not known" for name in lacking]
    if machine.get("other_processes"):
        found.append(f"{part}: {machine['other_processes']} other processes were on the GPU")
    if machine.get("mig"):
        found.append(f"{part}: the GPU was divided (MIG)")
    return found


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else [value]


def collect(folder: Path, to: Path) -> int:
    """Copies the records of a run into the repository, with a page; nothing where one of them is refused."""
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    if not records:
        print(f"no records in {folder}: scripts/gpu run first", file=sys.stderr)
        return 2
    refused = [why for record in records for why in refusals(record)]
    if refused:
        print("nothing is published:", *refused, sep="\n  ", file=sys.stderr)
        return 1
    to.mkdir(parents=True, exist_ok=True)
    for record in records:
        (to / f"{record['part']}.json").write_text(json.dumps(record, indent=1) + "\n")
    (to / "README.md").write_text(page(records))
    return 0


def page(records: list[dict[str, Any]]) -> str:
    """The records for people, in the order of the parts; each part's JSON has the figures in full."""
    machine = records[0]["machine"]
    lines = [
        "# On one GPU",
        "",
        f"{machine['device']}, driver {machine['driver']}, torch {machine['torch']}, CUDA {machine['cuda']}; SM clock "
        f"{machine['clocks']['sm_mhz']} of {machine['clocks']['sm_max_mhz']} MHz and {machine['power']['now_w']} of "
        f"{machine['power']['limit_w']} W at the start; not divided, no other process. Made by `scripts/gpu`.",
        "",
        "One GPU gives step times, memory and calibration. It has no bandwidth between GPUs, no overlap and no stragglers; two gloo ranks on",
        "it prove function, and no time of theirs is given.",
        "",
        "| part | outcome | seconds | figures |",
        "|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda one: [*PARTS].index(one["part"])):
        part, words = record["part"], reasons(record) or short(record.get("figures", {}))
        text = "; ".join(words).replace("|", "/").replace("\n", " ")
        lines.append(f"| [{part}]({part}.json) | {record['outcome']} | {record['seconds']} | {text} |")
    return "\n".join(lines) + "\n"


def short(figures: dict[str, Any], path: str = "") -> list[str]:
    """The numbers among figures, by where they are, the first ones."""
    found: list[str] = []
    for name, value in figures.items():
        at = f"{path} {name}".strip()
        if isinstance(value, dict):
            found += short(value, at)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append(f"{at} {value:.4g}")
    return found[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    running, single = commands.add_parser("run"), commands.add_parser("one")
    running.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    single.add_argument("part", choices=PARTS)
    for each in running, single:
        each.add_argument("--out", type=Path, required=True)
        each.add_argument("--small", action="store_true")
    collecting = commands.add_parser("collect")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--to", type=Path, default=HERE / "results" / "gpu")
    args = parser.parse_args()
    if args.command == "list":
        print(*(f"{part}: at most {seconds} s" for part, seconds in PARTS.items()), sep="\n")
    elif args.command == "one":
        one(args.part, args.out, small=args.small)
    elif args.command == "collect":
        return collect(args.folder, args.to)
    else:
        unknown = [part for part in args.parts if part not in PARTS]
        if unknown:
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
        return run(args.parts or list(PARTS), args.out, small=args.small)
    return 0


if __name__ == "__main__":
    sys.exit(main())
