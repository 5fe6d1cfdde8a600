"""How far `ib.memory_of` is from the peak that a CPU process measures: models × precisions × micro-batches.

    python bench/memory.py [--json results.json]

Each peak is measured in a process of its own, by the system's own count of its resident memory, in the second
step of a DDP run of one gloo rank, and without what the process needs before: torch itself, and its libraries
warmed up by a small model.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch
from torch import nn

import isobatch as ib
from isobatch.validate import Workload

MIB = 2**20


class Block(nn.Module):
    """A block of a GPT."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.mlp(self.norms[1](x))


def gpt(layers, width, length, vocabulary):
    """A small GPT under AdamW."""
    model = nn.Sequential(
        nn.Embedding(vocabulary, width),
        *(Block(width, width // 64) for _ in range(layers)),
        nn.Linear(width, vocabulary),
    )

    def batch(n, generator, device):
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator).to(device)
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(model, torch.optim.AdamW, batch, _cross_entropy)


def _cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def convnet(width):
    """A convolutional network with batch norm under SGD with momentum."""
    layers = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 100))

    def batch(n, generator, device):
        x = torch.randn(n, 3, 128, 128, generator=generator)
        return x.to(device), torch.randint(100, (n,), generator=generator).to(device)

    return Workload(model, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), batch, _cross_entropy)


def mlp(width):
    """A multilayer perceptron under Adam."""
    model = nn.Sequential(
        nn.Linear(512, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )

    def batch(n, generator, device):
        x = torch.randn(n, 512, generator=generator)
        return x.to(device), torch.randint(10, (n,), generator=generator).to(device)

    return Workload(model, torch.optim.Adam, batch, _cross_entropy)


MODELS = {
    "GPT, 4 × 256, 256 tokens, vocabulary 8,192": (lambda: gpt(4, 256, 256, 8192), (2, 8, 16)),
    "GPT, 6 × 512, 512 tokens, vocabulary 16,384": (lambda: gpt(6, 512, 512, 16384), (1, 4)),
    "convolutions, width 64, 128 × 128": (lambda: convnet(64), (8, 32)),
    "perceptron, width 4,096": (lambda: mlp(4096), (64, 4096)),
}


def measure(name, precision, n, out):
    """The peak of a process, bytes above what it has before."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": "lo"}
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    train(gpt(1, 64, 16, 64), precision, 1)  # loads the kernels
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    train(MODELS[name][0](), precision, n)
    out.put(resident("VmHWM") - before)


def train(work, precision, n):
    """Two steps of two micro-batches under DDP."""
    dtype = torch.bfloat16 if precision == "bf16" else None
    ddp = nn.parallel.DistributedDataParallel(work.model)
    optimizer = work.optimizer(work.model.parameters())
    for _ in range(2):
        for last in (False, True):
            batch = work.batch(n, torch.Generator().manual_seed(0), torch.device("cpu"))
            ddp.require_backward_grad_sync = last
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = work.loss(ddp, batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def resident(key):
    """A count of the process's memory, bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {torch.get_num_threads()} threads")
    print("| model | precision | micro-batch | measured, MiB | worked out | off |\n|---|---|---|---|---|---|")
    rows = []
    for name, (factory, sizes) in MODELS.items():
        for precision in ("fp32", "bf16"):
            memory = ib.memory_of(factory, micro_batches=sizes, precision=precision, device="cpu")
            for n in sizes:
                context = multiprocessing.get_context("spawn")
                out = context.Queue()
                process = context.Process(target=measure, args=(name, precision, n, out))
                process.start()
                measured, worked_out = out.get(timeout=600), memory.peak_bytes[n]
                process.join()
                rows.append(
                    {
                        "model": name,
                        "precision": precision,
                        "n": n,
                        "measured": measured,
                        "worked_out": worked_out,
                    }
                )
                print(
                    f"| {name} | {precision} | {n:,} | {measured / MIB:,.0f} | {worked_out / MIB:,.0f} | "
                    f"{worked_out / measured - 1:+.1%} |",
                    flush=True,
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
