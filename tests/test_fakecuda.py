"""The made-up CUDA of the tests: does it refuse what CUDA refuses?"""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="the made-up CUDA is put into torch")

import fakecuda

SCRIPT = """
import importlib.util
importlib.util.find_spec("torch")  # as a tool that looks what there is
import torch
from cuda_on_cpu import GPU

def refused(work):
    try:
        work()
    except (RuntimeError, TypeError) as error:
        return type(error).__name__
    return "not refused"

torch.cuda.set_device(1)
a, b = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20)
print(a.device, a.is_cuda, b.is_cuda, (a * 2).sum().item(), a.to("cpu").device, end=" ")
print(b.cuda().device, (a + 1).is_cuda)
print(*map(refused, (lambda: a + b, lambda: a.numpy(), lambda: torch.empty(1 << 30, device="cuda"))))
print(torch.cuda.memory_allocated() >> 20, torch.cuda.max_memory_allocated() >> 20)
model = torch.nn.Linear(4, 4).to("cuda")
with torch.autocast("cuda", torch.bfloat16):
    loss = model(torch.ones(2, 4, device="cuda")).float().sum()
attention = torch.nn.MultiheadAttention(4, 2, dropout=0.1).to("cuda")
x, mask = torch.ones(3, 1, 4, device="cuda"), torch.ones(3, 3, device="cuda").triu(1).bool()
print(attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0].device)
loss.backward()
before = GPU.syncs
float(loss.detach())
print(model.weight.grad.device, GPU.syncs - before)
"""


def test_it_refuses_what_cuda_refuses(tmp_path):
    words, environment = [sys.executable, "-c", SCRIPT], fakecuda.environment(tmp_path)
    process = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
    tensors, refused = (
        "cuda:1 True False 2097152.0 cpu cuda:1 True",
        "RuntimeError TypeError OutOfMemoryError",
    )
    assert process.stdout.splitlines() == [tensors, refused, "4 8", "cuda:1", "cuda:1 1"], process.stderr
