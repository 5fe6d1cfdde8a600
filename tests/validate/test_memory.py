"""The peak memory of a step, worked out with fake tensors."""

import re
import resource

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


def test_what_a_linear_layer_needs_is_what_pencil_and_paper_say():
    found = ib.memory_of(linear, micro_batches=[1, 1024, 2048], device="cpu")
    assert found.weights_bytes == WEIGHTS
    assert found.gradient_bytes == 2 * WEIGHTS  # with DDP's buckets
    assert found.optimizer_bytes == pytest.approx(2 * WEIGHTS, rel=1e-3)
    # Input and output.
    assert found.peak_bytes[2048] - found.peak_bytes[1024] == 2 * 1024 * WIDTH * 4
    # Weights, gradient, bucket, two moments; and the root of the second one with its quotient.
    assert found.peak_bytes[1] == pytest.approx(7 * WEIGHTS, rel=0.01)


def test_a_list_of_tensors_at_once_needs_more_than_one_after_another():
    def deep():
        work = linear(256)
        layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(8)))
        return Workload(layers, work.optimizer, work.batch, work.loss)

    one_by_one, at_once = (
        ib.memory_of(deep, micro_batches=[1], device=d).peak_bytes[1] for d in ("cpu", "cuda")
    )
    assert at_once - one_by_one == pytest.approx(7 * 4 * 256**2, rel=0.5)


def test_the_largest_that_fits_is_within_the_room_and_the_next_is_not():
    found = ib.memory_of(linear, memory_gib=0.25, reserve_gib=0.05)
    room = (0.25 - 0.05) * 2**30
    assert found.peak_bytes[found.micro_batch] <= room < found.peak_bytes[found.micro_batch + 1]
    assert f"micro-batch {found.micro_batch:,}" in found.explain()
    assert "not measured" in found.explain()


@pytest.mark.parametrize(
    "peak", [lambda n: 10 + n, lambda n: 10 + 3 * n + n % 7, lambda n: max(200, 8 * n), lambda n: n * n]
)
@pytest.mark.parametrize("room", [5, 11, 13, 100, 199, 1000, 12345])
def test_the_search_finds_the_largest(peak, room):
    known = {}
    found = largest(peak, room, known)
    fitting = [n for n in range(1, 13_000) if peak(n) <= room]
    if peak(found + 1) > room:
        assert found == 0 or peak(found) <= room
    assert found in {0, *fitting}
    assert not fitting or found >= min(fitting)
    assert len(known) < 40


def test_more_memory_than_the_machine_has():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = ib.memory_of(lambda: linear(200_000), memory_gib=80)  # 160 GB of weights
    assert found.micro_batch == 0
    assert found.weights_bytes == 4 * 200_000**2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB
    assert "not even one sample" in found.explain()


def test_a_model_that_looks_at_its_values_is_named():
    def curious():
        work = linear()
        return Workload(
            work.model,
            work.optimizer,
            work.batch,
            lambda model, batch: model(batch).sum() * float(batch.sum() > 0),
        )

    with pytest.raises(ib.InputError, match="cannot be worked out without values"):
        ib.memory_of(curious, micro_batches=[1])


def test_a_model_that_existed_before_is_refused():
    work = linear()
    with pytest.raises(ib.InputError, match="must make the model each time"):
        ib.memory_of(lambda: work, micro_batches=[1])


@pytest.mark.parametrize(
    ("asked", "message"),
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
def test_what_is_wrong_is_named(asked, message):
    with pytest.raises(ib.InputError, match=re.escape(message)):
        ib.memory_of(**{"workload": linear, **asked})


def test_the_command_line_caps_the_plan(tmp_path, monkeypatch, ran):
    (tmp_path / "own_training.py").write_text(
        "import torch\n"
        "from isobatch.validate import Workload\n"
        "def make():\n"
        "    return Workload(torch.nn.Linear(64, 64), torch.optim.SGD,\n"
        "        lambda n, generator, device: torch.randn(n, 64), lambda model, batch: model(batch).sum())\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = [
        "plan",
        "--set",
        "effective_batch=4194304",
        "--set",
        "lr=0.1",
        "--gpus",
        "2",
        "--memory-of",
        "own_training:make",
    ]
    out, said = ran([*recipe, "--memory-gib", "2.25"])
    cap = int(re.search(r"fragmentation: micro-batch ([\d,]+)", said)[1].replace(",", ""))
    assert int(re.search(r"micro-batch ([\d,]+)", out)[1].replace(",", "")) <= cap
    assert "--memory-gib is missing" in ran(recipe, 2).err
    assert "not even one sample fits 1 GiB" in ran([*recipe, "--memory-gib", "1"], 2).err
    assert "give one of the two" in ran([*recipe, "--memory-gib", "3", "--max-micro-batch", "4"], 2).err
