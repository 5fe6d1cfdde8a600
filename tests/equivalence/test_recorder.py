"""The recorder on scripts other than a loop with a loader: each test starts one or two small ones."""

import sys
from textwrap import dedent

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isobatch.equivalence.commands.runs import Recorded, start_run  # noqa: E402
from isobatch.equivalence.recorder.isobatch_recorder.samples import read_pass  # noqa: E402
from isobatch.equivalence.records import Recording  # noqa: E402
from isobatch.equivalence.split import Split  # noqa: E402
from isobatch.launch.command_line import CPU  # noqa: E402

HEAD = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(12, 3), torch.randn(12, 1))
model = nn.Linear(3, 1)
size = int(sys.argv[1])
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"


def record(
    tmp_path, script: str, split: Split, steps: int = 1, head=HEAD + OPTIMIZER, **settings
) -> Recording:
    path = tmp_path / "script.py"
    path.write_text(head + dedent(script))
    recorded = Recorded(str(tmp_path / f"record-{split}"), steps, **settings)
    run = start_run([sys.executable, str(path), str(split.micro_batch)], CPU, recorded, split, 120)
    assert run.recording is not None, run.output
    return run.recording


def gradient(recording: Recording) -> np.ndarray:
    return recording.steps[0, 0].gradients[0]


def test_an_evaluation_over_the_training_rows_draws_none_of_the_rows_that_are_given(tmp_path):
    script = """
    with torch.no_grad():
        [model(x) for x, _ in DataLoader(data, size)]
    [model(x).detach() for x, _ in DataLoader(data, 5)]
    for x, y in DataLoader(data, size):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    """
    plain = record(tmp_path, script, Split(1, 1, 2))
    assert plain.drawn_steps() == [[0, 1]]
    rows = {"loader": plain.training_loader().name, "ranks": [[7, 4]]}
    assert record(tmp_path, script, Split(1, 1, 2), rows=rows).rows((0, 0)) == [[[7, 4]]]


def test_the_passes_of_a_model_whose_wrapper_is_not_in_training_are_seen(tmp_path):
    script = """
    wrapped = nn.Sequential(model).eval()
    model.train()
    for x, y in DataLoader(data, size):
        nn.functional.mse_loss(wrapped(x), y).backward()
        optimizer.step()
    """
    step = record(tmp_path, script, Split(1, 1, 2)).last
    assert [len(samples.hashes) for samples in step.first.passes] == [2]


def test_a_trial_before_the_optimizer_is_made_is_no_part_of_the_first_pass(tmp_path):
    script = """
    for x, y in DataLoader(data, size):
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    """
    trial = "model(data[:3][0]).sum().backward()\nmodel.zero_grad()\n"
    step = record(tmp_path, script, Split(1, 1, 2), head=HEAD + trial + OPTIMIZER).last
    assert [len(samples.hashes) for samples in step.first.passes] == [2]


def test_batches_that_are_passed_twice_are_drawn_once(tmp_path):
    script = """
    for x, y in DataLoader(data, size):
        for _ in range(2):
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    """
    recording = record(tmp_path, script, Split(1, 1, 2))
    assert recording.rows((0, 0)) is None
    assert recording.drawn_steps() == [[0, 1]]


def test_random_draws_of_a_loader_are_the_same_for_a_row_in_every_batch(tmp_path):
    script = """
    class Noisy(Dataset):
        __len__ = lambda self: 12
        __getitem__ = lambda self, row: data[row][0] + torch.randn(3)
    def collate(rows):
        x = torch.stack(rows)
        return x * torch.bernoulli(torch.full((len(x), 3), 0.5)).add(1)
    held, draws = [], []
    for x in DataLoader(Noisy(), size, collate_fn=collate):
        held.append(x)
        if len(held) * size == 4:
            for x in held:
                (model(x).square().sum() / 4).backward()
            optimizer.step()
    """
    whole, split = (record(tmp_path, script, Split(1, 4 // size, size)) for size in (4, 2))
    assert gradient(split) == pytest.approx(gradient(whole), rel=1e-5)


def test_one_line_draws_alike_for_every_pass_of_a_step(tmp_path):
    script = """
    held = []
    for x, y in DataLoader(data, size):
        choice = torch.distributions.Categorical(logits=torch.cat([x, -x], 1)).sample()
        held.append((x, choice + torch.randn(len(x))))
        if len(held) * size == 4:
            for x, target in held:
                ((model(x)[:, 0] - target).square().sum() / 4).backward()
            optimizer.step()
    """
    whole, split = (record(tmp_path, script, Split(1, 4 // size, size), alike=True) for size in (4, 2))
    assert gradient(split) == pytest.approx(gradient(whole), rel=1e-5)


def test_a_pipeline_draws_its_passes_at_once_and_the_probe_of_its_shapes_is_none(tmp_path):
    script = """
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    stage = PipelineStage(model, 0, 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    for x, y in DataLoader(data, 2 * size):
        schedule.step(x, target=y)
        optimizer.step()
    """
    recording = record(tmp_path, script, Split(1, 2, 2), steps=2)
    assert recording.shape((0, 0)) == [[2, 2]]
    assert recording.drawn_steps() == [[0, 1, 2, 3], [4, 5, 6, 7]]


SPAWNED = """
import torch.multiprocessing as mp

def train(rank, port):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    optimizer.param_groups.clear()
    wrapped = wrap(model)
    own = Optimizer(wrapped.parameters(), lr=0.1)
    x = torch.arange(6.0).reshape(2, 3) + rank
    wrapped(x).mean().backward()
    own.step()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, (port,), nprocs=2)
"""


WRAPPED = {
    "fsdp1": """
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision
Optimizer = torch.optim.SGD
def wrap(model):
    settings = {"mixed_precision": MixedPrecision(torch.bfloat16), "cpu_offload": CPUOffload(True)}
    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=True, **settings)
""",
    "fsdp2": """
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
Optimizer = torch.optim.SGD
def wrap(model):
    return fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
""",
    "zero": """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
def wrap(model):
    model = nn.parallel.DistributedDataParallel(model)
    model.register_comm_hook(None, bf16_compress_hook)
    return model
def Optimizer(*args, **kwargs):  # each rank steps a tensor, inside of the step of all
    return ZeroRedundancyOptimizer(*args, optimizer_class=torch.optim.SGD, **kwargs)
""",
}
OFF = {
    "fsdp1": {"MixedPrecision of FSDP off", "cpu_offload of FSDP off"},
    "fsdp2": {"MixedPrecisionPolicy of FSDP off"},
    "zero": {"bf16_compress_hook off"},
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_ranks_that_a_script_spawns_are_told_apart_and_their_shards_are_whole(tmp_path, kind):
    recording = record(tmp_path, WRAPPED[kind] + SPAWNED, Split(2, 1, 2))
    assert len(recording.steps) == 1
    step = recording.last
    assert [rank_step.rank for rank_step in step.ranks] == [0, 1] and step.first.world == 2
    assert step.gradients[0] == pytest.approx(step.gradients[1])
    assert step.gradients[0].any()
    assert step.first.entries == [3, 1] and step.first.names == ["weight", "bias"]
    assert [group["tensors"] for group in step.first.groups] == [2]
    # The gradient of the mean is the mean of each input, over the rows of both ranks; a bucket has one entry.
    assert sorted(np.abs(step.gradients[0])) == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert step.after == pytest.approx(step.weights - 0.1 * step.gradients, rel=1e-5)
    assert OFF[kind] <= {*step.first.notes["off"]}


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TARGETS = [{"boxes": torch.rand(count, 4), "class_labels": torch.arange(count)} for count in (3, 1, 4, 2)]
MASKS = [torch.ones(count, 8, 8) * count for count in (3, 1, 4, 2)]
LEVELS = [IMAGES.mean(1), IMAGES.mean(2), IMAGES.mean(3), IMAGES.sum(1)]
LISTS = {
    "boxes of each image": lambda rows: {
        "labels": [TARGETS[row] for row in rows],
        "pixel_values": IMAGES[rows],
    },
    "masks of each image": lambda rows: {
        "mask_labels": [MASKS[row] for row in rows],
        "pixel_values": IMAGES[rows],
    },
    "a list of images": lambda rows: {
        "images": [IMAGES[row] for row in rows],
        "targets": [TARGETS[row] for row in rows],
    },
    "levels of a pyramid": lambda rows: {"features": [level[rows] for level in LEVELS]},
    "levels beside images": lambda rows: {"features": [level[rows] for level in LEVELS], "x": IMAGES[rows]},
}


@pytest.mark.parametrize("inputs_of", LISTS.values(), ids=LISTS)
def test_a_row_is_the_same_in_any_pass_also_with_lists_beside_it(inputs_of):
    whole, *passes = (
        read_pass((), inputs_of(rows))["hashes"] for rows in ([0, 1, 2, 3], [0, 1], [2, 3], [3])
    )
    assert len({*whole}) == 4
    assert passes == [whole[:2], whole[2:], whole[3:]]
