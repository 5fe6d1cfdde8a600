"""Survivors on made-up GPUs over the CPU (tests/fakecuda): what of NCCL's side a GPU is not needed for."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import fakecuda  # noqa: E402
from ddp import surviving  # noqa: E402
from ddp.crews import Ranks, faults, lines  # noqa: E402

OPTIONS = {"ranks": 2, "min_ranks": 1, "lease": 10.0, "timeout": 60.0, "steps": 30, "gpus": 2, "inside": True}


def through(folder, each, **environment):
    """Trains two ranks on a made-up GPU each; returns their exit codes and outputs."""
    with Ranks(folder, OPTIONS) as store, ExitStack() as stack:
        processes = []
        for rank, options in enumerate(each):
            words = [f"127.0.0.1:{store.port}", str(folder), str(rank), json.dumps({**OPTIONS, **options})]
            processes.append(
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, surviving.__file__, *words],
                        env=fakecuda.environment(folder, **environment),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        text=True,
                    )
                )
            )
            stack.callback(processes[-1].kill)
        printed = [process.communicate(timeout=100)[0] for process in processes]
        return [process.returncode for process in processes], printed


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["killed", "CUDA error"])
def test_nccl_is_aborted_and_the_other_rank_goes_on(tmp_path, ends):
    """By torchrun's variable, 1, torch's watchdog would end it."""
    alone = surviving.undisturbed(OPTIONS)
    loss = {"kills": [[9, "between"]]} if ends == "killed" else {"fails": 9}
    codes, (printed, lost) = through(tmp_path, [{}, loss], TORCH_NCCL_ASYNC_ERROR_HANDLING="1")
    assert codes == [0, -9 if ends == "killed" else 1], (printed, lost)
    assert faults(tmp_path, alone)[0] == []
    crews = [(line["crew"], line["of"]) for line in lines(tmp_path) if "at" in line and line["rank"] == 0]
    assert sorted({*crews}) == [(0, 2), (1, 1)]
    assert (
        printed.count("NCCL is made with TORCH_NCCL_ASYNC_ERROR_HANDLING=2 TORCH_NCCL_RETHROW_CUDA_ERRORS=0")
        == 2
    )
    assert "NCCL is aborted" in printed
    assert ("illegal memory access" in lost) == (ends != "killed")
