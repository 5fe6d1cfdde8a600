"""The time of `isobatch same`: five splits of a 2-layer Llama by torchrun, with starts that fork and without.

python bench/same_start.py [forks | typed]: prints wall and processor seconds of both, or of one, and the
seconds of each run. `memory` prints the peak of a rank with 100 million parameters, one sample a pass, beside
that of the bare script; ZeRO-3 where DeepSpeed is installed.
"""

import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from isobatch.equivalence import session
from isobatch.equivalence.commands import runs

SCRIPT = """
import torch, transformers
torch.manual_seed(0)
config = transformers.LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(128, (64, 32))]
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=20, report_to="none",
    save_strategy="no",
)
transformers.Trainer(transformers.LlamaForCausalLM(config), arguments, train_dataset=rows).train()
"""
LARGE = """
import sys, torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.utils.data import DataLoader, DistributedSampler
torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(6)))
if sys.argv[1] == "zero3":
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    settings = {
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "overlap_comm": False},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings)
    backward, step = engine.backward, engine.step
else:
    torch.distributed.init_process_group("gloo")
    if sys.argv[1] == "fsdp1":
        settings = {"device_id": torch.device("cpu"), "use_orig_params": True}
        engine = FSDP(nn.Sequential(*(FSDP(layer, **settings) for layer in net)), **settings)
    else:
        engine = fully_shard(nn.Sequential(*map(fully_shard, net)))
    optimizer = torch.optim.AdamW(engine.parameters())
    backward, step = lambda loss: loss.backward(), lambda: (optimizer.step(), optimizer.zero_grad())
rows = [torch.randn(4096) for _ in range(6)]
for row in DataLoader(rows, 1, sampler=DistributedSampler(rows)):
    backward(engine(row).square().mean())
    step()
"""
RECORDED = """
import sys
from isobatch.equivalence.commands.runs import Recorded, start_run
from isobatch.launch.command_line import CPU
from isobatch.equivalence.split import Split
folder, ranks, *words = sys.argv[1:]
for name, settings in (("split", {}), ("samples", {"singles": True})):
    run = start_run(words, CPU, Recorded(f"{folder}/{name}", 2, **settings), Split(int(ranks), 1, 1), 600)
    assert run.recording is not None, run.output
"""
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""


def peak_of(*words: str) -> int:
    """Returns the most MiB of a process that a command starts."""
    line = [sys.executable, "-c", PEAK, *words]
    return int(subprocess.run(line, check=True, capture_output=True, text=True).stdout)


def compare_peaks(script: Path) -> None:
    """Prints the peak of a rank, bare and recorded, in two steps and two of a sample alone."""
    script.write_text(LARGE)
    engines = ["fsdp1", "fsdp2", *(["zero3"] if importlib.util.find_spec("deepspeed") else [])]
    for engine in engines:
        for ranks in (1, 2):
            launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {ranks}"
            words = [*launcher.split(), str(script), engine]
            bare, folder = peak_of(*words), f"{script.parent}/{engine}-{ranks}"
            recorded = peak_of(sys.executable, "-c", RECORDED, folder, str(ranks), *words)
            print(f"  {engine}, {ranks} ranks: {bare} MiB, recorded {recorded}, × {recorded / bare:.2f}")


def processor_seconds() -> float:
    """Returns the processor time of this process and of all that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def ask(script: Path) -> None:
    """Asks the script once, and prints what that took."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    wall, processor = time.monotonic(), processor_seconds()
    answer = session.same(words, say=lambda line: print(f"    {line}"))
    wall, processor = time.monotonic() - wall, processor_seconds() - processor
    splits = len(answer.splits) + 1
    print(f"  {splits} splits, same: {answer.same}; {wall:.1f} s, {processor:.1f} s of processor")


def main() -> None:
    """Measures both ways."""
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        os.chdir(folder)
        if "memory" in sys.argv:
            compare_peaks(script)
            return
        script.write_text(SCRIPT)
        if "typed" not in sys.argv:
            print("starts that fork")
            ask(script)
        if "forks" not in sys.argv:
            print("starts as typed")
            runs.start_server = lambda *_: None
            ask(script)


if __name__ == "__main__":
    main()
