"""The peak memory of a step, worked out with fake tensors."""

import re
import resource
from dataclasses import replace

import pytest

import isobatch as ib
from isobatch.validate.memory import largest

torch = pytest.importorskip("torch", reason="works out torch models")
from isobatch.validate import Workload  # noqa: E402 (needs torch)

WIDTH = 512
WEIGHTS = 4 * WIDTH * WIDTH  # bytes


def linear(width=WIDTH, optimizer=torch.optim.Adam):
    return Workload(
        model=torch.nn.Linear(width, width, bias=False),
        optimizer=lambda parameters: optimizer(parameters, lr=0.1),
        batch=lambda n, generator, device: torch.randn(n, width, generator=generator).to(device),
        loss=lambda model, batch: model(batch).sum(),
    )


def test_a_linear_layers_memory_is_that_of_pencil_and_paper():
    memory = ib.memory_of(linear, micro_batches=[1, 1024, 2048], device="cpu")
    assert memory.weights_bytes == WEIGHTS
    assert memory.gradient_bytes == 2 * WEIGHTS  # with DDP's buckets
    assert memory.optimizer_bytes == pytest.approx(2 * WEIGHTS, rel=1e-3)
    # Input and output.
    assert memory.peak_bytes[2048] - memory.peak_bytes[1024] == 2 * 1024 * WIDTH * 4
    # Weights, gradient, bucket, two moments; and the root of the second one with its quotient.
    assert memory.peak_bytes[1] == pytest.approx(7 * WEIGHTS, rel=0.01)


def test_a_list_of_tensors_at_once_needs_more_than_one_after_another():
    def deep():
        layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(8)))
        return replace(linear(256), model=layers)

    peaks = [ib.memory_of(deep, micro_batches=[1], device=device).peak_bytes for device in ("cpu", "cuda")]
    one_by_one, at_once = (peak[1] for peak in peaks)
    assert at_once - one_by_one == pytest.approx(7 * 4 * 256**2, rel=0.5)


def test_the_largest_that_fits_is_within_the_room_and_the_next_is_not():
    memory = ib.memory_of(linear, memory_gib=0.25, reserve_gib=0.05)
    room, best = (0.25 - 0.05) * 2**30, memory.micro_batch
    assert memory.peak_bytes[best] <= room < memory.peak_bytes[best + 1]
    assert f"micro-batch {best:,}" in memory.explain() and "not measured" in memory.explain()


@pytest.mark.parametrize(
    "peak", [lambda n: 10 + n, lambda n: 10 + 3 * n + n % 7, lambda n: max(200, 8 * n), lambda n: n * n]
)
@pytest.mark.parametrize("room", [5, 11, 13, 100, 199, 1000, 12345])
def test_the_search_finds_the_largest(peak, room):
    known = {}
    best = largest(peak, room, known)
    fitting = [n for n in range(1, 13_000) if peak(n) <= room]
    assert best in (fitting or [0]) and len(known) < 40


def test_more_memory_than_the_machine_has():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = ib.memory_of(lambda: linear(200_000), memory_gib=80)  # 160 GB of weights
    assert (memory.micro_batch, memory.weights_bytes) == (0, 4 * 200_000**2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    assert "not even one sample" in memory.explain()


def test_a_model_that_looks_at_its_values_is_named():
    def curious():
        return replace(linear(), loss=lambda model, batch: model(batch).sum() * float(batch.sum() > 0))

    with pytest.raises(ib.InputError, match="cannot be worked out without values"):
        ib.memory_of(curious, micro_batches=[1])


def test_a_model_that_existed_before_is_refused():
    work = linear()
    with pytest.raises(ib.InputError, match="must make the model each time"):
        ib.memory_of(lambda: work, micro_batches=[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "fp8"}, "precision"),
        ({"micro_batches": [0]}, "micro_batches"),
        ({"memory_gib": -1.0}, "memory_gib"),
        ({"reserve_gib": 1.0}, "memory_gib is missing"),
        ({"device": "tpu"}, "device"),
        ({"workload": "nowhere"}, "package.module:factory"),
        ({"workload": lambda: 1}, "must return an isobatch.validate.Workload"),
    ],
)
def test_wrong_input_is_named(arguments, message):
    with pytest.raises(ib.InputError, match=re.escape(message)):
        ib.memory_of(**{"workload": linear, **arguments})


def test_the_command_line_caps_the_plan(tmp_path, monkeypatch, ran):
    (tmp_path / "own_training.py").write_text(
        "import torch\n"
        "from isobatch.validate import Workload\n"
        "def make():\n"
        "    return Workload(torch.nn.Linear(64, 64), torch.optim.SGD,\n"
        "        lambda n, generator, device: torch.randn(n, 64), lambda model, batch: model(batch).sum())\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = ["plan", "--set", "effective_batch=4194304", "--set", "lr=0.1", "--gpus", "2"]
    recipe += ["--memory-of", "own_training:make"]
    out, err = ran([*recipe, "--memory-gib", "2.25"])
    cap = int(re.search(r"fragmentation: micro-batch ([\d,]+)", err)[1].replace(",", ""))
    assert int(re.search(r"micro-batch ([\d,]+)", out)[1].replace(",", "")) <= cap
    assert "--memory-gib is missing" in ran(recipe, 2).err
    assert "not even one sample fits 1 GiB" in ran([*recipe, "--memory-gib", "1"], 2).err
    assert "give one of the two" in ran([*recipe, "--memory-gib", "3", "--max-micro-batch", "4"], 2).err
