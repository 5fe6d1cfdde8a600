"""The guard on imitated GPUs (tests/fakecuda): halves, a loss scaler, waiting, memory."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the guard needs torch")

import torch

import fakecuda

SCRIPT = Path(__file__).parent / "scripts" / "gpu.py"
HALF, CLIPPED = {"precision": "fp16"}, {"precision": "fp16", "clip_norm": 0.01}
BEHIND = "the gradient's size (its direction was checked): clipped behind a loss scaler"
NO_ROOM, NO_SIZE = (
    "no room on a GPU to read them",
    "the gradient's size: no room for another gradient on the GPU",
)
SUMMED = "summed loss (8×)"
RUNS = [
    ("", {"precision": "bf16"}, []),
    ("", CLIPPED, [BEHIND]),
    ("no unscale", CLIPPED, "gradients clipped otherwise (before scaler.unscale_(optimizer))"),
    ("no division", HALF, "× accumulation (3×)"),
    ("sum", {}, SUMMED),
    (
        "large",
        {"precision": "bf16"},
        [f"equal {kind} on all ranks: {NO_ROOM}" for kind in ("weights", "gradients")] + [NO_SIZE],
    ),
]
"""A kind of loop, its recipe, and what the guard leaves unchecked, or says."""


GPU = torch.cuda.is_available()
ADAMW = {"optimizer": "adamw", "lr": 1e-3}
REAL = {
    "eager": [
        ("", {}, None),
        ("", {"precision": "bf16"}, None),
        ("", {"precision": "fp16"}, None),
        ("sum", {}, SUMMED),
    ],
    "compile": [("compiled", {}, None), ("compiled step", {}, None)],
    "optimizers": [("fused", ADAMW, None), ("capturable", ADAMW, None)],
}
"""A kind of loop, its recipe, and what the guard says of it."""


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="torch finds no CUDA device")
@pytest.mark.parametrize("kind", REAL)
def test_loops_on_a_real_gpu(kind):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    words = [*torchrun, str(SCRIPT), json.dumps([run[:2] for run in REAL[kind]])]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    answers = [json.loads(line) for line in finished.stdout.splitlines() if line.startswith(('"', "[["))]
    complaints = [answer if isinstance(answer, str) else None for answer in answers]
    assert complaints == [expected for *_, expected in REAL[kind]]


def test_loops_on_gpus(tmp_path):
    runs = [("unwatched", {"precision": "bf16"}, []), *RUNS]
    words = [sys.executable, str(SCRIPT), json.dumps([run[:2] for run in runs])]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = fakecuda.environment(
        tmp_path, mib=2000, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=2
    )
    ranks = [
        subprocess.Popen(
            words,
            env={**environment, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    answers = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    outcomes = [json.loads(line) for line in answers[0][0].splitlines()]
    assert [outcome if isinstance(outcome, str) else outcome[0] for outcome in outcomes] == [
        expected for *_, expected in runs
    ]
    assert outcomes[1][1] == outcomes[0][1], "the guard waits for the GPU in later steps"
