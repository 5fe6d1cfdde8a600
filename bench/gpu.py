"""Runs the rows of a day with one GPU, in calls of some minutes; `scripts/gpu` prepares and collects it.

A call goes on where the last one ended, by `day.json` in the folder, which is written whole after each row.
A row has a process and a limit of its own, begins where its expected seconds fit, and leaves no process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
MARK, BEGUN = "ISOBATCH_GPU_DAY", "ISOBATCH_GPU_BEGUN"
TAIL = 20_000  # Characters of a row's output.
ENDED = ("done", "failed")
QUERY = "name,driver_version,clocks.sm,clocks.max.sm,power.draw,power.limit,mig.mode.current"


class Row(NamedTuple):
    """A row of the day.

    Attributes:
        name: unique among the rows.
        expected: seconds on an H100 with 16 cores, reckoned; the row is ended after three times as many.
        words: of its command; {python} and {bench} are filled in.
    """

    name: str
    expected: float
    words: str


PART, BITS = "{python} {bench}/gpu_parts.py", "{python} {bench}/bits.py"
SAME = (
    "{python} -m isobatch same --device cuda --split 1x4x2 --split 1x1x8 --split 2x2x2 --steps 2 --"
    " {python} -m torch.distributed.run --standalone --nproc-per-node {{gpus}} {bench}/same/trainer.py llama"
    " --per_device_train_batch_size {{micro_batch}} --gradient_accumulation_steps {{accumulation}}"
)
TESTS = (
    ("real_gpu and eager", 18),
    ("started", 52),
    ("real_gpu and compile or real_gpu and optimizers", 74),
    ("one_rank_has_no_wire or several_ranks or two_gpus", 55),
    ("memory or micro_batch or largest", 60),
    ("notebook_that_has_used_cuda", 12),
    ("mixed_precision", 90),
    ("options_of_the_model", 120),
)
ROWS = (
    Row("machine", 2, "nvidia-smi -q"),
    Row("validation, GPT-2 bf16", 55, PART + " step gpt2 bf16"),
    Row("validation, convnet fp32", 45, PART + " step convnet fp32"),
    Row("prediction, GPT-2 fp32", 35, PART + " step gpt2 fp32 --quick"),
    Row("prediction, convnet bf16", 25, PART + " step convnet bf16 --quick"),
    Row("same, Trainer", 60, SAME),
    Row("tests, fault_of_one_rank", 100, PART + " tests fault_of_one_rank"),
    Row("bits, SHA", 20, BITS + " same --device cuda --counts 1,2 --workloads gpt,vit --steps 100"),
    Row("bits, price", 30, BITS + " price --device cuda --counts 1,2 --sizes 10M,50M --chunks 4 --pairs 7"),
    Row("tests, survivor", 14, PART + " tests survivor"),
    *(Row(f"tests, {names}", seconds, f"{PART} tests {names}") for names, seconds in TESTS),
)
"""Measurements, the most important first: a call that ends early has it whole."""


def machine() -> dict[str, Any]:
    """Returns the GPU's state by nvidia-smi, which takes no CUDA context; empty where there is none."""
    try:
        state, processes = (
            subprocess.run(
                ["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True, check=True
            ).stdout.splitlines()
            for query in (f"--query-gpu={QUERY}", "--query-compute-apps=pid")
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    values = dict(zip(QUERY.split(","), map(str.strip, state[0].split(",")), strict=True))
    return values | {"other_processes": len(processes)}


def end_marked(mark: str) -> None:
    """Kills every process with the run's mark in its environment, in any session."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)


def play(row: Row, limit: float, mark: str) -> dict[str, Any]:
    """Plays a row in a process and a folder of its own; returns its outcome and its output."""
    begun = time.monotonic()
    state, started = machine(), datetime.now(UTC).isoformat()
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "tests"), os.environ.get("PYTHONPATH", "")])
    # cuBLAS has the same bits each time only with a workspace of a fixed size.
    environment = {**os.environ, MARK: mark, "PYTHONPATH": paths, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    words = [word.format(python=sys.executable, bench=HERE) for word in row.words.split()]
    with tempfile.TemporaryDirectory(prefix="isobatch-gpu-") as name:
        output = Path(name) / "output.txt"
        with output.open("ab") as file:
            process = subprocess.Popen(
                words, env=environment, cwd=name, start_new_session=True, stdout=file, stderr=file
            )
        try:
            outcome = "failed" if process.wait(timeout=limit) else "done"
        except subprocess.TimeoutExpired:
            outcome = "cut" if limit < 3 * row.expected else "failed"
        finally:
            end_marked(mark)
            process.wait()
        text = output.read_text(errors="replace")[-TAIL:]
    seconds = round(time.monotonic() - begun, 1)
    return {"outcome": outcome, "seconds": seconds, "started": started, "machine": state, "output": text}


def load(folder: Path) -> dict[str, Any]:
    """Reads a folder's results by row; empty where there are none."""
    file = folder / "day.json"
    return json.loads(file.read_text()) if file.exists() else {}


def save(day: dict[str, Any], *folders: Path) -> None:
    """Writes the day, whole or not at all."""
    for folder in folders:
        (folder / ".day.json").write_text(json.dumps(day, indent=1) + "\n")
        (folder / ".day.json").replace(folder / "day.json")


def run(names: list[str], out: list[Path], *, seconds: float, again: bool) -> int:
    """Plays the remaining rows, as many as the time allows.

    Returns 0 where all are done, 1 where a row is not, 3 where some are left.
    """
    end = float(os.environ.get(BEGUN) or time.time()) + seconds - 5  # The wheels' installation counts.
    for folder in out:
        folder.mkdir(parents=True, exist_ok=True)
    day, mark, ended = load(out[0]), f"isobatch-gpu-{uuid.uuid4().hex}", ("done",) if again else ENDED
    rows = [row for row in ROWS if any(row.name.startswith(name) for name in names or [""])]
    for row in rows:
        left = end - time.time()
        if day.get(row.name, {}).get("outcome") in ended or row.expected > left:
            continue
        day[row.name] = result = play(row, min(3 * row.expected, left), mark)
        save(day, *out)
        print(
            f"{row.name}: {result['outcome']} in {result['seconds']} s ({row.expected:g} expected)",
            flush=True,
        )
    if waiting := [row.name for row in rows if day.get(row.name, {}).get("outcome") not in ENDED]:
        print(f"{len(waiting)} rows are left, first {waiting[0]}: give the same command again")
        return 3
    return int(any(day[row.name]["outcome"] != "done" for row in rows))


def refusals(day: dict[str, Any]) -> list[str]:
    """Lists why a day's figures are not published."""
    kinds = {result["machine"].get("name") for result in day.values()}
    reasons = ["rows of different GPUs"] if len(kinds) > 1 else []
    for name, result in day.items():
        if not (state := result["machine"]):
            reasons.append(f"{name}: no GPU")
        elif state["other_processes"] or state["mig.mode.current"] == "Enabled":
            reasons.append(f"{name}: the GPU was shared or divided")
    return reasons


def collect(folder: Path, to: Path) -> int:
    """Copies a day into the repository, with its table; nothing where a figure of it is refused."""
    day = load(folder)
    if refused := refusals(day) if day else [f"no day.json in {folder}"]:
        print("nothing is published:", *refused, sep="\n  ", file=sys.stderr)
        return 1
    to.mkdir(parents=True, exist_ok=True)
    save(day, to)
    state = next(iter(day.values()))["machine"]
    lines = ["# The day", "", ", ".join(f"{fact} {value}" for fact, value in state.items()), ""]
    lines += ["| row | outcome | expected, s | measured, s | last line |", "|---|---|---|---|---|"]
    for row in ROWS:
        result = day.get(row.name, {"outcome": "not run", "seconds": "", "output": ""})
        last = (result["output"].strip().splitlines() or [""])[-1].replace("|", "/")[:300]
        lines.append(
            f"| {row.name} | {result['outcome']} | {row.expected:g} | {result['seconds']} | {last} |"
        )
    (to / "day.md").write_text("\n".join([*lines, ""]))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running, collecting = commands.add_parser("run"), commands.add_parser("collect")
    running.add_argument("names", nargs="*", metavar="ROW", help="how names of rows begin; all by default")
    running.add_argument("--out", type=Path, action="append", required=True, help="twice: day.json too")
    running.add_argument("--seconds", type=float, default=540.0, help="of this call, its end included")
    running.add_argument("--again", action="store_true", help="failed rows too")
    collecting.add_argument("folder", type=Path)
    collecting.add_argument("--to", type=Path, default=HERE / "results" / "gpu")
    arguments = vars(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The row's processes end with it.
    return {"run": run, "collect": collect}[arguments.pop("command")](**arguments)


if __name__ == "__main__":
    sys.exit(main())
