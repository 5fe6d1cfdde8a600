"""Divides a Slurm's GPUs over its elastic jobs, every time that it looks.

`python examples/slurm/divide.py jobs.csv --every 60`.

The table is `isobatch allocate`'s; a job's id is its name in Slurm. The jobs are files of `isobatch plan --to
slurm --elastic`, submitted with `sbatch --hold`: whoever waits is held, and who gets other GPUs is requeued,
and goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import time
from datetime import datetime
from pathlib import Path

import isobatch as ib

WAITS, RUNS, STARTS = "PENDING", "RUNNING", "CONFIGURING COMPLETING REQUEUED SUSPENDED"


def slurm(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def shown(kind: str) -> list[dict[str, str]]:
    """Nodes or jobs as Slurm has them; `line` is all that it says of one."""
    lines = slurm("scontrol", "--oneliner", "--details", "show", kind).splitlines()
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) | {"line": line} for line in lines if "=" in line]


def nodes() -> list[dict[str, object]]:
    gpus = [(node, re.search(r"gpu:(?:(\w+):)?(\d+)", node["Gres"])) for node in shown("nodes")]
    up = [(node, gpu) for node, gpu in gpus if gpu and not re.search("DOWN|DRAIN|FAIL", node["State"])]
    return [{"node": node["NodeName"], "gpu": gpu[1], "gpus": int(gpu[2])} for node, gpu in up]


def held(name: str, line: str) -> list[dict[str, object]]:
    """The GPUs of a job on each node."""
    parts = re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=gpu:(?:\w+:)?(\d+)", line)
    names = [
        (node, gpus) for ns, gpus in parts for node in slurm("scontrol", "show", "hostnames", ns).split()
    ]
    return [{"job": name, "node": node, "gpus": int(gpus)} for node, gpus in names]


def divide(table: list[dict[str, object]], settings: dict[str, object]) -> bool:
    """Asks who gets what and does it; returns whether a job is left."""
    known = {job["JobName"]: job for job in shown("jobs") if job["JobState"] in f"{WAITS} {RUNS} {STARTS}"}
    rows = [row for row in table if row["job"] in known]
    if any(known[row["job"]]["JobState"] in STARTS for row in rows):
        return True  # a job on its way holds GPUs that nobody says
    for row in rows:
        slurms = known[row["job"]]
        age = datetime.now() - datetime.fromisoformat(slurms["SubmitTime"])
        row |= {"age_seconds": age.total_seconds(), "restarts": int(slurms["Restarts"])}
    if not rows:
        return False
    has = [
        part
        for row in rows
        if known[row["job"]]["JobState"] == RUNS
        for part in held(row["job"], known[row["job"]]["line"])
    ]
    allocation = ib.allocate(rows, nodes(), held=has, **settings)
    for name in dict.fromkeys(
        change.job for change in allocation.changes if known[change.job]["JobState"] == RUNS
    ):
        slurm("scontrol", "requeuehold", known[name]["JobId"])
        while {job["JobId"]: job["JobState"] for job in shown("jobs")}[known[name]["JobId"]] != WAITS:
            time.sleep(0.5)
    for change in allocation.changes:
        if change.nodes:
            number, count = known[change.job]["JobId"], str(len(change.nodes))
            gpus = f"TresPerNode=gres:gpu:{max(change.nodes.values())}"
            where = f"ReqNodeList={','.join(change.nodes)}"
            slurm(
                "scontrol", "update", f"JobId={number}", f"NumNodes={count}", f"NumTasks={count}", gpus, where
            )
            slurm("scontrol", "release", number)
            slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
            print(f"{change.job}: {change.action} {change.nodes}", flush=True)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=Path, help="a table of jobs, with a profile each")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two looks")
    parser.add_argument("--max-micro-batch", type=int, help="as in isobatch allocate")
    args = parser.parse_args()
    with args.jobs.open(newline="") as file:
        table = list(csv.DictReader(file))
    settings = {"split": "uneven", "max_micro_batch": args.max_micro_batch}
    while divide(table, settings):
        time.sleep(args.every)


if __name__ == "__main__":
    main()
