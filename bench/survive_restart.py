"""Seconds from a rank's death to the next step that is done: survivors beside torchrun's restart of the same training, by turns.

    python bench/survive_restart.py --ranks 2 4 8 --times 3

The training is tests/ddp/surviving.py's. Under torchrun it is an ElasticRun with a checkpoint after each step, which costs it nothing here.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

STEPS, AT, PAUSE = 30, 10, 0.05


def restarted(folder: Path) -> None:
    """What torchrun starts, and starts again."""
    from ddp import surviving
    from isobatch.integrations.torch import ElasticRun

    dist.init_process_group("gloo")
    path = folder / "checkpoint.pt"
    checkpoint = torch.load(path) if path.exists() else {}
    data, net, optimizer, _ = surviving.made()
    model = DistributedDataParallel(net)
    run = ElasticRun(surviving.recipe_of({"steps": STEPS}), state=checkpoint.get("run"), **surviving.SETTINGS)
    scheduler = run.scheduler(optimizer)
    if checkpoint:
        net.load_state_dict(checkpoint["net"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    log = (folder / f"log-{os.getpid()}.jsonl").open("w", buffering=1)
    for step in run.steps(run.loader(data)):
        for micro in step:
            _, x, y = micro.batch
            with micro.sync(model):
                (mse_loss(model(x), y) * micro.weight).backward()
        if step.number == AT and not checkpoint and run.world.rank == 1:
            log.write(json.dumps({"t": time.time(), "kill": AT}) + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        time.sleep(PAUSE)
        log.write(json.dumps({"t": time.time(), "done": step.number, "again": bool(checkpoint)}) + "\n")
        if run.world.rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)


def of_restart(ranks: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        command += ["--max-restarts", "2", __file__, "--restarted", name]
        subprocess.run(command, env=environment, capture_output=True, timeout=400, check=True)
        log = [json.loads(line) for path in folder.glob("log-*") for line in path.read_text().splitlines()]
    (killed,) = (line["t"] for line in log if "kill" in line)
    return min(line["t"] for line in log if line.get("again")) - killed


def of_survivors(ranks: int) -> tuple[float, float]:
    """Gives the seconds to the new crew, formed and healed, and to its first step."""
    from ddp.crews import Ranks, lines

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {"ranks": ranks, "min_ranks": 1, "steps": STEPS, "pause": PAUSE, "lease": 30.0}
        with Ranks(folder, options) as started:
            for rank in range(ranks):
                started.start(f"r{rank}", kills=[[AT, "reduced"]] if rank == 1 else [])
            codes = started.wait(300)
            assert sorted(codes.values()) == [-9] + [0] * (ranks - 1), codes
        log = lines(folder)
    (killed,) = (line["t"] for line in log if "kill" in line)
    formed = min(line["t"] for line in log if line.get("crew") == 1)
    return formed - killed, min(
        line["t"] for line in log if line.get("crew") == 1 and "done" in line
    ) - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--restarted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restarted:
        restarted(args.restarted)
        return
    print("| ranks | survivors: formed and healed | next step | torchrun's restart: next step | ratio |")
    print("|---|---|---|---|---|")
    for ranks in args.ranks:
        mine, theirs = [], []
        for _ in range(args.times):
            mine.append(of_survivors(ranks))
            theirs.append(of_restart(ranks))
        formed, step = (statistics.median(column) for column in zip(*mine, strict=True))
        restart = statistics.median(theirs)
        print(
            f"| {ranks} | {formed:.2f} s | {step:.2f} s | {restart:.1f} s | {restart / step:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
