"""Seconds from a rank's death to the next step: survivors beside torchrun's restart of the same training.

    python bench/survive_restart.py --ranks 2 4 8 --times 3

The training is tests/ddp/surviving.py's. Under torchrun it is an ElasticRun with a checkpoint after each
step, which costs it nothing here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def restarted(folder: Path, steps: int, pause: float) -> None:
    """The training that torchrun starts and restarts."""
    from ddp import surviving
    from isobatch.integrations.torch import ElasticRun

    dist.init_process_group("gloo")
    path = folder / "checkpoint.pt"
    checkpoint = torch.load(path) if path.exists() else {}
    data, net, optimizer, _ = surviving.made()
    model = DistributedDataParallel(net)
    run = ElasticRun(surviving.recipe_of({"steps": steps}), state=checkpoint.get("run"), **surviving.SETTINGS)
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
        if step.number == steps // 3 and not checkpoint and run.world.rank == 1:
            log.write(json.dumps({"t": time.time(), "kill": step.number}) + "\n")
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        time.sleep(pause)
        log.write(json.dumps({"t": time.time(), "done": step.number, "again": bool(checkpoint)}) + "\n")
        if run.world.rank == 0:
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)


def of_restart(ranks: int, steps: int, pause: float) -> tuple[float, list[dict]]:
    """Gives the seconds to the next step, and the log."""
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
        command += [
            "--max-restarts",
            "2",
            __file__,
            "--restarted",
            name,
            "--steps",
            str(steps),
            "--pause",
            str(pause),
        ]
        subprocess.run(command, env=environment, capture_output=True, timeout=400, check=True)
        log = [json.loads(line) for path in folder.glob("log-*") for line in path.read_text().splitlines()]
    (killed,) = (line["t"] for line in log if "kill" in line)
    return min(line["t"] for line in log if line.get("again")) - killed, log


def of_survivors(ranks: int, steps: int, pause: float) -> tuple[list[float], list[dict]]:
    """Gives the last survivor's seconds to see the loss, agree, form, heal and step, and all; and the log."""
    from ddp.crews import Ranks, lines

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {
            "ranks": ranks,
            "min_ranks": 1,
            "steps": steps,
            "pause": pause,
            "lease": 30.0,
            "phases": True,
        }
        with Ranks(folder, options) as started:
            for rank in range(ranks):
                started.start(f"r{rank}", kills=[[steps // 3, "reduced"]] if rank == 1 else [])
            codes = started.wait(300)
            assert sorted(codes.values()) == [-9] + [0] * (ranks - 1), codes
        log = lines(folder)
    (killed,) = (line["t"] for line in log if "kill" in line)
    after = [line for line in log if line["t"] > killed]
    moments = [killed]
    for mark in ({"begins": "agree"}, {"ends": "agree"}, {"ends": "form"}, {"ends": "heal"}):
        ((key, value),) = mark.items()
        moments.append(max(_first(after, lambda line, key=key, value=value: line.get(key) == value)))
    moments.append(max(_first(after, lambda line: line.get("crew") == 1 and "done" in line)))
    return [*(late - early for early, late in itertools.pairwise(moments)), moments[-1] - killed], log


def _first(log: list[dict], of_kind: Callable[[dict], bool]) -> list[float]:
    """The moment of each rank's first line of a kind."""
    first_moment: dict[str, float] = {}
    for line in filter(of_kind, log):
        first_moment.setdefault(line["rank_of"], line["t"])
    return [*first_moment.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of each step")
    parser.add_argument("--picture", type=Path, help="draw the last two runs' steps over time")
    parser.add_argument("--restarted", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.restarted:
        restarted(args.restarted, args.steps, args.pause)
        return
    print(
        "| ranks | detect | agree | form | heal | first step | survivors: next step "
        "| torchrun's restart: next step | ratio | load |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for ranks in args.ranks:
        survivor_seconds, restart_seconds = [], []
        for _ in range(args.times):
            seconds, survived = of_survivors(ranks, args.steps, args.pause)
            restart, again = of_restart(ranks, args.steps, args.pause)
            survivor_seconds.append(seconds)
            restart_seconds.append(restart)
            if args.picture:
                args.picture.write_text(drawn(survived, again, ranks))
        *parts, step = (statistics.median(column) for column in zip(*survivor_seconds, strict=True))
        restart = statistics.median(restart_seconds)
        cells = " | ".join(f"{part:.2f} s" for part in (*parts, step))
        print(
            f"| {ranks} | {cells} | {restart:.1f} s | {restart / step:.0f} | {os.getloadavg()[0]:.0f} |",
            flush=True,
        )


WIDE, HIGH, LEFT, TOP = 900, 300, 56, 56
STYLE = """<style>
text{fill:#334155} .axis{stroke:#64748b}
.survive{stroke:#2563eb} .restart{stroke:#d97706} .kill{stroke:#dc2626}
.s{fill:#2563eb} .r{fill:#b45309} .k{fill:#dc2626}
@media (prefers-color-scheme:dark){
text{fill:#cbd5e1} .survive{stroke:#60a5fa} .restart{stroke:#fbbf24} .kill{stroke:#f87171}
.s{fill:#60a5fa} .r{fill:#fbbf24} .k{fill:#f87171}}
</style>"""


def steps_done(log: list[dict]) -> tuple[list[tuple[float, int]], float]:
    """Seconds since the first step and number of each step, at its last rank; and of the rank's death."""
    begun = min(line["t"] for line in log if "done" in line)
    ends: dict[int, float] = {}
    for line in log:
        if "done" in line:
            ends[line["done"]] = max(line["t"], ends.get(line["done"], 0.0))
    (killed,) = (line["t"] for line in log if "kill" in line)
    return [(end - begun, step + 1) for step, end in sorted(ends.items())], killed - begun


def drawn(survived: list[dict], again: list[dict], ranks: int) -> str:
    """The steps that both runs have done, over time."""
    (survivor_steps, died), (restart_steps, ended) = steps_done(survived), steps_done(again)
    end, top = max(restart_steps[-1][0], survivor_steps[-1][0]), survivor_steps[-1][1]

    def across(seconds: float) -> float:
        return LEFT + (WIDE - LEFT - 16) * seconds / end

    def down(step: float) -> float:
        return HIGH - 44 - (HIGH - 44 - TOP) * step / top

    lines = [
        f'<polyline class="{name}" points="{" ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)}" '
        f'fill="none" stroke-width="2.5" stroke-linejoin="round"/>'
        for name, points in (("restart", restart_steps), ("survive", survivor_steps))
    ]
    kill = down(top // 3)
    kills = [
        f'<path class="kill" d="M{across(x):.1f},{kill - 9:.1f}v18" stroke-width="2"/>' for x in (died, ended)
    ]
    every = next(size for size in (1, 2, 5, 10, 20, 50, 100) if end / size <= 9)
    ticks = [
        f'<text x="{across(x):.1f}" y="{HIGH - 26}" text-anchor="middle">{x}</text>'
        for x in range(0, int(end) + 1, every)
    ]
    ticks += [f'<text x="{LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end">{y}</text>' for y in (0, top)]
    middle = (restart_steps[-1][0] + ended) / 2
    words = [
        f'<text class="k" x="{across(ended) + 12:.1f}" y="{kill + 18:.1f}">'
        f"one of {ranks} ranks is killed</text>",
        f'<text class="s" x="{across(survivor_steps[-1][0]) + 8:.1f}" y="{TOP + 4}">survivors go on</text>',
        f'<text class="r" x="{across(middle):.1f}" y="{kill - 8:.1f}" text-anchor="middle">'
        "torchrun restarts all ranks</text>",
        f'<text x="{(LEFT + WIDE) / 2}" y="{HIGH - 8}" text-anchor="middle">seconds</text>',
        f'<text x="{LEFT}" y="{TOP - 18}">steps done</text>',
    ]
    axis = f'<path class="axis" d="M{LEFT},{TOP - 8}V{HIGH - 44}H{WIDE - 16}" fill="none"/>'
    font = 'font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" {font}>'
    return "\n".join([head, STYLE, axis, *lines, *kills, *ticks, *words, "</svg>\n"])


if __name__ == "__main__":
    main()
