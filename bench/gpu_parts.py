"""Rows of a day with one GPU that are more than a command: `python gpu_parts.py PART WORDS...`.

A part prints its figures as JSON in its last line; what is not as it should be ends it with a message.
`gpu_parts:gpt2` and `gpu_parts:convnet` are workloads.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import isobatch as ib

BENCH = Path(__file__).parent
TESTS = BENCH.parent / "tests"
MICRO = {"convnet": 64, "gpt2": 8}


def gpt2() -> Any:
    """GPT-2 of 124 M parameters, sequences of 1024 tokens."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from isobatch.validate import Workload

    def batch(n: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        return torch.randint(50257, (n, 1024), generator=generator).to(device)

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    return Workload(model, torch.optim.AdamW, batch, lambda net, tokens: net(tokens, labels=tokens).loss)


def convnet() -> Any:
    """ResNet-50 on images of 224 × 224."""
    import torch
    from torchvision.models import resnet50

    from isobatch.validate import Workload

    def batch(n: int, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(n, 3, 224, 224, generator=generator)
        return images.to(device), torch.randint(1000, (n,), generator=generator).to(device)

    def loss(net: Any, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net(pair[0]), pair[1])

    return Workload(resnet50(), torch.optim.AdamW, batch, loss)


def command(*words: str) -> str:
    """Runs a command; returns its output, which goes into the row's too."""
    output = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(output.stdout, flush=True)
    return output.stdout


def validate(micro_batch: int, precision: str | None, *options: str) -> Any:
    """Runs `isobatch validate` of a plan for one GPU; returns the report."""
    length = {"dataset_size": 100 * micro_batch, "duration": "10ep", "schedule": "constant"}
    form = {"optimizer": "adamw", "lr": 1e-3, "micro_batch": micro_batch, "precision": precision}
    ib.plan(ib.Recipe(effective_batch=micro_batch, **length, **form), 1).save("plan.json")
    words = ["-m", "isobatch", "validate", "plan.json", "-o", "report.json", "--nproc-per-node", "1"]
    output = command(sys.executable, *words, *options)
    if not Path("report.json").exists():
        raise SystemExit(f"no report: {output[-400:]}")
    return json.loads(Path("report.json").read_text())


def bare_loop(model: str, micro_batch: int, precision: str | None) -> dict[str, float]:
    """Trains a workload for 5 s by a bare DDP loop of one rank, without isobatch."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from isobatch.equivalence.tensors import AUTOCAST, float32_as

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    workload, dtype = globals()[model](), AUTOCAST[precision]
    with tempfile.TemporaryDirectory() as folder:  # Not a file: torch deletes it.
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        net = DistributedDataParallel(workload.model.to(device), device_ids=[0])
        optimizer = workload.optimizer(net.parameters())
        batch = workload.batch(micro_batch, torch.Generator().manual_seed(0), device)

        def run(steps: int) -> float:
            begun = time.perf_counter()
            for _ in range(steps):
                with torch.autocast("cuda", dtype, enabled=dtype is not None):
                    loss = workload.loss(net, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize(device)
            return time.perf_counter() - begun

        with float32_as("tf32") if precision == "tf32" else nullcontext():
            run(5)
            torch.cuda.reset_peak_memory_stats(device)
            steps = max(5, min(200, round(25 / run(5))))
            seconds = run(steps) / steps
        dist.destroy_process_group()
    return {"bare_step_seconds": seconds, "bare_peak_gib": torch.cuda.max_memory_allocated(device) / 2**30}


def step(model: str, kind: str, *options: str) -> dict[str, Any]:
    """A validated step beside a bare loop's; without --quick its report is what a calibration reads."""
    precision = None if kind == "fp32" else kind
    report = validate(MICRO[model], precision, *options, "--workload", f"gpu_parts:{model}")
    if failed := [proof["text"] for proof in report["proofs"] if proof["verdict"] == "fail"]:
        raise SystemExit("\n".join(failed))
    bare = bare_loop(model, MICRO[model], precision)
    timed = report["step"]
    peak = max(size["peak_memory_bytes"] for size in timed["micro_batches"]) / 2**30
    figures = {"verdict": report["verdict"], "step_seconds": timed["planned_step_seconds"], "peak_gib": peak}
    return figures | bare | {"measurements": report["measurements"]}


def tests(*names: str) -> dict[str, int]:
    """Tests of `pytest -m gpu`; skipped tests alone have shown nothing."""
    words = f"-m pytest -q -m gpu -p no:cacheprovider -rfEs --rootdir={BENCH.parent}".split()
    files = [str(TESTS / name) for name in ("validate/test_gpu.py", "guard/test_guard_cuda.py")]
    output = command(sys.executable, *words, "-k", " ".join(names), *files)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", output)}
    if counts.keys() & {"failed", "error"} or "passed" not in counts:
        raise SystemExit(f"not all passed: {counts}")
    return counts


if __name__ == "__main__":
    part, *words = sys.argv[1:]
    print(json.dumps(globals()[part](*words)))
