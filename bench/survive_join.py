"""The cost of taking a rank in: seconds to form a crew and to heal the newcomer, beside another checkout.

python bench/survive_join.py --beside CHECKOUT --rounds 2 --joins 6 --mib 3,96

One rank trains, and a second comes, is healed and leaves, time and again; all in pairs of processes of each
checkout by turns, at one store. The state is the network's with AdamW's, three times its bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

KEY = "a-key-of-this-measurement"


def crews(store: str, name: str, mib: int) -> Any:
    import isobatch as ib
    from isobatch.integrations.torch import survivors

    torch.manual_seed(1)
    net = nn.Linear(
        1 << 9, mib << 7, bias=False
    )  # A row of 2 KiB, so 512 are a MiB; with AdamW's two states three.
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.001)
    recipe = ib.Recipe(effective_batch=2, lr=0.001, optimizer="adamw", dataset_size=1000, duration="100000st")
    data = torch.randn(1000, 1 << 9)
    for crew in survivors(
        recipe, net, optimizer, store=store, name=name, ranks=1, min_ranks=1, split="uneven"
    ):
        with crew:
            model = crew.wrap(net)
            for step in crew.run.steps(crew.run.loader(data)):
                for micro in step:
                    with micro.sync(model):
                        (model(micro.batch).square().mean() * micro.weight).backward()
                optimizer.step()
                crew.scheduler.step()
                optimizer.zero_grad()
                yield crew


def come(store: str, mib: int, joins: int) -> None:
    """Prints the seconds of each join: of the group, and of the state."""
    from isobatch.elastic import survivors as module
    from isobatch.elastic.group import CrewGroup

    seconds_of: dict[str, float] = {}

    def timed(function: Any, name: str) -> Any:
        def around(*args: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            answer = function(*args, **options)
            seconds_of[name] = time.perf_counter() - begun
            return answer

        return around

    CrewGroup.form = timed(CrewGroup.form, "form")  # type: ignore[method-assign]
    module.heal = timed(module.heal, "heal")
    for join in range(joins):
        training = crews(store, f"r1-{join}", mib)
        next(training)
        training.close()
        print(seconds_of["form"], seconds_of["heal"], flush=True)
        time.sleep(1.0)


def measure(checkout: Path, mib: int, joins: int) -> list[tuple[float, float]]:
    host = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ,
        "PYTHONPATH": str(checkout / "python"),
        "ISOBATCH_RUN_KEY": KEY,
        "OMP_NUM_THREADS": "1",
    }
    words = [
        sys.executable,
        __file__,
        "--store",
        f"127.0.0.1:{host.port}",
        "--mib",
        str(mib),
        "--joins",
        str(joins),
    ]
    pipes: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*words, "--rank", "stays"], **pipes) as stays:
        assert stays.stdout is not None
        stays.stdout.readline()
        with subprocess.Popen([*words, "--rank", "comes"], **pipes) as comes:
            out, _ = comes.communicate(timeout=300)
        stays.kill()
    return [(float(form), float(heal)) for form, heal in map(str.split, out.splitlines())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--beside", type=Path, help="a checkout, with its core built")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--joins", type=int, default=6, help="of each checkout in a round; the first is not counted"
    )
    parser.add_argument("--mib", default="3,96", help="of state")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.rank == "comes":
        come(args.store, int(args.mib) // 3, args.joins)
        return
    if args.rank == "stays":
        for number, _ in enumerate(crews(args.store, "r0", int(args.mib) // 3)):
            if not number:
                print("trains", flush=True)
        return
    own = Path(__file__).parents[1]
    checkouts = {"beside": args.beside, "here": own} if args.beside else {"here": own}
    print("| state, MiB | checkout | joins | form, median s | heal, median s (least to most) |")
    print("|---|---|---|---|---|")
    for mib in map(int, args.mib.split(",")):
        joins_of: dict[str, list[tuple[float, float]]] = {name: [] for name in checkouts}
        for _ in range(args.rounds):
            for name, checkout in checkouts.items():
                joins_of[name] += measure(checkout, mib, args.joins)[1:]
        for name, rows in joins_of.items():
            forms, heals = zip(*rows, strict=True)
            least, most = min(heals), max(heals)
            median = (
                f"{statistics.median(forms):.3f} | {statistics.median(heals):.3f} ({least:.3f} to {most:.3f})"
            )
            print(f"| {mib} | {name} | {len(rows)} | {median} |", flush=True)
    load = os.getloadavg()[0]
    print(
        f"load {load:.1f}, {os.cpu_count()} cores, {platform.machine()}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
