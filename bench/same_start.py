"""What `isobatch same` takes: five splits of a 2-layer Llama by torchrun, with starts that fork and without.

python bench/same_start.py [forks | typed]: prints wall and processor seconds of both, or of one, and the
seconds of each run.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from isobatch.equivalence import runs, session

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
        script.write_text(SCRIPT)
        os.chdir(folder)
        if "typed" not in sys.argv:
            print("starts that fork")
            ask(script)
        if "forks" not in sys.argv:
            print("starts as typed")
            runs.start_server = lambda *_: None
            ask(script)


if __name__ == "__main__":
    main()
