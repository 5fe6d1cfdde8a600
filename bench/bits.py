"""Whether a training in chunks has the same bits at every number of ranks, and what that costs beside DDP.

    python bench/bits.py same                      # SHA after 1,000 steps at 1, 2, 3, 5 and 8 ranks
    python bench/bits.py restarts                  # ElasticRun: 2 → 3 → 1 → 4 ranks
    python bench/bits.py losses --events 100       # survivors: kills and joins
    python bench/bits.py price --sizes 1M,10M,50M  # a step beside DDP's, by turns, in one run
    python bench/bits.py memory

Each part prints its lines of bench/results/bits.md.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import isobatch as ib
from ddp import chunked
from ddp.crews import Ranks, lines
from ddp.pool import Pool
from isobatch.integrations.torch import ElasticRun

Pool.limit = 7200  # A busy machine takes its time.
TOKENS = 128
SIZES = {"1M": (128, 4, 1000), "10M": (320, 7, 4000), "50M": (640, 9, 8000)}
"""Width, layers and vocabulary."""


def compare_splits(steps: int, workloads: list[str], counts: list[int], device: str) -> None:
    """Prints the SHA of each training at each number of ranks."""
    print(f"| training | {' | '.join(map(str, counts))} |\n|---|{'---|' * len(counts)}")
    digests: dict[str, list[str]] = {workload: [] for workload in workloads}
    for count in counts:
        with closing(Pool(count)) as pool:
            for workload, row in digests.items():
                answers = pool(chunked.train, workload, steps=steps, device=device)
                (digest,) = {ends["end"] for _, ends in answers}
                row.append(digest[:8])
                print(f"  {count} ranks, {workload}: {digest[:16]}", file=sys.stderr, flush=True)
    for workload, row in digests.items():
        print(f"| {chunked.WORKLOADS[workload]} | {' | '.join(row)} |")


def compare_restarts(steps: int, workloads: list[str]) -> None:
    """Prints the SHA of a run through restarts, and of the run on one rank."""
    for workload in workloads:
        checkpoint, digest = None, ""
        for count, stop in ((2, steps // 4), (3, steps // 2), (1, 3 * steps // 4), (4, None)):
            pool = Pool(count)
            answers = pool(chunked.train, workload, checkpoint, steps=steps, stop=stop)
            checkpoint, digest = answers[0][0], answers[0][1]["end"]
            pool.close()
        expected = chunked.train(workload, steps=steps)[1]["end"]
        print(
            f"| {workload}, restarts 2 → 3 → 1 → 4 | {digest[:8]} | undisturbed: {expected[:8]} |", flush=True
        )


def compare_losses(events: int, seed: int) -> None:
    """Prints the SHA of a run through kills and joins, and of the run on one rank."""
    draw = random.Random(seed)
    pause, steps, kills, joins = 0.02, 10 * events, 0, 0
    options = {"module": "bits_rank", "ranks": 4, "min_ranks": 1, "lease": 5.0, "timeout": 120.0}
    options |= {"steps": steps, "pause": pause}
    with tempfile.TemporaryDirectory() as name, Ranks(Path(name), options) as ranks:
        for rank in range(4):
            ranks.start(f"r{rank}")
        while kills + joins < events:
            time.sleep(draw.uniform(0.3, 1.5))
            log = [line for line in lines(ranks.folder) if "at" in line]
            number = max((line["crew"] for line in log), default=-1)
            crew = [line["rank_of"].split("-")[1] for line in log if line["crew"] == number]
            alive = [name for name, process in ranks.processes.items() if process.exitcode is None]
            crew = [name for name in crew if name in alive]
            last_step = max((line["done"] for line in lines(ranks.folder) if "done" in line), default=0)
            if any("ended" in line for line in lines(ranks.folder)):
                break
            if len(alive) < 5 and (draw.random() < 0.5 or len(crew) < 2):
                joins += 1
                ranks.start(f"j{joins}")
            elif len(crew) > 1:
                kills += 1
                ranks.processes[draw.choice(crew)].kill()
            print(
                f"  step {last_step}, {kills} kills, {joins} joins, crew {number}",
                file=sys.stderr,
                flush=True,
            )
        codes = ranks.wait(1200)
        digests = {path.read_text() for path in ranks.folder.glob("final-*")}
        crews = max(line["crew"] for line in lines(ranks.folder) if "crew" in line) + 1
    print(f"  {digests} after {steps} steps, exit codes {codes}", file=sys.stderr, flush=True)
    _, ends = chunked.train("gpt", steps=steps)
    print(
        f"| GPT, {kills} kills and {joins} joins, {crews} crews, {steps} steps | "
        f"{', '.join(digest[:8] for digest in digests)} | undisturbed: {ends['end'][:8]} |"
    )


# ---- the price ----


class Gpt(nn.Module):
    """A GPT of some size."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.output(self.layers(self.embedding(tokens)))


def training(size: str, ranks: int, chunks: int, *, in_chunks: bool, device: str = "cpu") -> Iterator[float]:
    """Trains, a step at a time, by the same loop; yields the size of the network."""
    torch.manual_seed(0)
    width, layers, vocabulary = SIZES[size]
    net = Gpt(width, layers, vocabulary).to(device)
    data = torch.randint(0, vocabulary, (1000, TOKENS + 1))
    recipe = ib.Recipe(
        effective_batch=ranks * chunks * 2,
        lr=1e-4,
        optimizer="adamw",
        dataset_size=1000,
        duration="9999ep",
        schedule="constant",
    )
    settings: dict[str, Any] = {"chunk": 2} if in_chunks else {"max_micro_batch": 2}
    run = ElasticRun(recipe, **settings)
    model, optimizer = run.wrap(net), torch.optim.AdamW(net.parameters(), 1e-4)
    scheduler = run.scheduler(optimizer)
    for step in run.steps(run.loader(data)):
        for micro in step:
            with micro.sync(model):
                tokens = micro.batch.to(device)
                loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                (loss * micro.weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield sum(parameter.numel() for parameter in net.parameters()) / 1e6


def price_of(size: str, chunks: int, pairs: int, device: str) -> dict[str, Any]:
    """Returns the seconds of steps by turns, DDP's and in chunks, and the CPU's seconds of this rank."""
    ranks = dist.get_world_size()
    loops = {
        in_chunks: training(size, ranks, chunks, in_chunks=in_chunks, device=device)
        for in_chunks in (False, True)
    }
    millions = 0.0
    for loop in loops.values():
        next(loop)
        millions = next(loop)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    cpu = {False: 0.0, True: 0.0}
    for pair in range(pairs):
        for in_chunks in (False, True) if pair % 2 else (True, False):
            dist.barrier()
            begun, used = time.perf_counter(), time.process_time()
            next(loops[in_chunks])
            if device != "cpu":
                torch.cuda.synchronize()
            dist.barrier()
            seconds[in_chunks].append(time.perf_counter() - begun)
            cpu[in_chunks] += (time.process_time() - used) / pairs
    return {"millions": millions, "seconds": seconds, "cpu": cpu}


def compare_price(
    sizes: list[str], counts: list[int], chunks_of_rank: list[int], pairs: int, device: str
) -> None:
    """Prints a step in chunks over DDP's, by size, ranks and chunks."""
    print(
        "| parameters | ranks | chunks a rank | DDP, ms | in chunks, ms | ratio of pairs: median (quartiles) "
        "| CPU |"
    )
    print("|---|---|---|---|---|---|---|")
    for count in counts:
        with closing(Pool(count)) as pool:
            for size in sizes:
                for chunks in chunks_of_rank:
                    answers = pool(price_of, size, chunks, pairs, device)
                    seconds = answers[0]["seconds"]
                    ratios = sorted(
                        chunked / ddp for ddp, chunked in zip(seconds[False], seconds[True], strict=True)
                    )
                    quartiles = statistics.quantiles(ratios, n=4)
                    ddp, chunked = (1e3 * statistics.median(seconds[kind]) for kind in (False, True))
                    used = [sum(answer["cpu"][kind] for answer in answers) for kind in (False, True)]
                    print(
                        f"| {answers[0]['millions']:.1f} M | {count} | {chunks} | {ddp:.0f} | "
                        f"{chunked:.0f} | {quartiles[1]:.2f} ({quartiles[0]:.2f}–{quartiles[2]:.2f}) | "
                        f"{used[1] / used[0]:.2f} |",
                        flush=True,
                    )


def peak_of(size: str, chunks: int, in_chunks: bool) -> tuple[float, float]:
    """Returns the network's MiB and this rank's peak MiB."""
    loop = training(size, dist.get_world_size(), chunks, in_chunks=in_chunks)
    for _ in range(2):
        next(loop)
    millions = next(loop)
    return 4e6 * millions / 2**20, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def compare_memory(size: str) -> None:
    """Prints the peak of a rank by chunks, in gradients beyond DDP's."""
    for chunks in (1, 4, 16):
        peaks = []
        for in_chunks in (False, True):
            pool = Pool(2)
            peaks.append(max(pool(peak_of, size, chunks, in_chunks)))
            pool.close()
        (gradient, ddp), (_, chunked) = peaks
        print(
            f"| {size}, 2 ranks, {chunks} chunks a rank | DDP {ddp:.0f} MiB | in chunks {chunked:.0f} MiB | "
            f"{(chunked - ddp) / gradient:+.1f} gradients of {gradient:.0f} MiB |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("same", "restarts", "losses", "price", "memory"))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workloads", default=",".join(chunked.WORKLOADS))
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sizes", default="1M,10M,50M")
    parser.add_argument("--counts", help="of ranks")
    parser.add_argument("--chunks", default="1,4")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--device", default="cpu", help="of same and price: cuda, which the ranks share")
    args = parser.parse_args()
    counts = [*map(int, (args.counts or ("1,2,3,5,8" if args.part == "same" else "2,3,4")).split(","))]
    if args.part == "same":
        compare_splits(args.steps, args.workloads.split(","), counts, args.device)
    elif args.part == "restarts":
        compare_restarts(args.steps, args.workloads.split(","))
    elif args.part == "losses":
        compare_losses(args.events, args.seed)
    elif args.part == "price":
        compare_price(
            args.sizes.split(","), counts, [*map(int, args.chunks.split(","))], args.pairs, args.device
        )
    else:
        compare_memory(args.sizes.split(",")[0])


if __name__ == "__main__":
    main()
