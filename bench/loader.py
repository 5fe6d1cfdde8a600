"""The samples of each step in real trainers that take a GlobalLoader.

Stopped and gone on with another number of ranks.

    PYTHONPATH=TORCHTITAN TITAN=COMMIT python bench/loader.py > bench/results/loader.md

TORCHTITAN is a checkout of pytorch/torchtitan, with what it needs installed. Beside the trainers torchdata's
StatefulDataLoader, with its own sampler.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from isobatch.integrations.torch import GlobalLoader

SIZE, BATCH, MICRO, EPOCHS = 50, 12, 2, 2
PARTS = ((2, 3), (3, 6), (1, None))
"""Ranks, and the step before which they stop."""


class Ids(torch.utils.data.Dataset):
    """Samples that are their own numbers."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        return index


class Record:
    """Notes the samples of each step of this rank."""

    def __init__(self) -> None:
        self.steps: dict[int, list[int]] = collections.defaultdict(list)

    def note(self, step: int, batch: torch.Tensor, loader: Any = None) -> None:
        """Notes a micro-batch, but for a stand-in's."""
        if loader is None or not loader.stand_in:
            self.steps[step] += batch.tolist()


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model of one weight."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-4)


def global_loader(**more: Any) -> GlobalLoader:
    """The loader of all trainers."""
    return GlobalLoader(Ids(), BATCH, max_micro_batch=MICRO, seed=3, **more)


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The mean over a micro-batch."""
    return mse_loss(model(batch[:, None].float()), torch.ones(len(batch), 1))


def plain(folder: Path, stop: int | None, record: Record) -> None:
    """A loop of one's own, with DDP."""
    dist.init_process_group("gloo")
    model, optimizer = model_and_optimizer()
    ddp, loader, file, step = (
        torch.nn.parallel.DistributedDataParallel(model),
        global_loader(),
        folder / "plain.pt",
        0,
    )
    if file.exists():
        state = torch.load(file)
        step = state["step"]
        loader.load_state_dict(state["loader"])
    while loader.state_dict()["epoch"] < EPOCHS and step != stop:
        for batch in loader:
            record.note(step, batch, loader)
            (loss_of(ddp, batch) * loader.weight).backward()
            if loader.last:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if step == stop:
                    break
    dist.barrier()
    if dist.get_rank() == 0:
        torch.save({"step": step, "loader": loader.state_dict()}, file)


def accelerate(folder: Path, stop: int | None, record: Record) -> None:
    """Accelerate: prepare, accumulate, save_state and load_state."""
    from accelerate import Accelerator

    Accelerator(cpu=True)
    loader = global_loader(equal_passes=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=loader.passes)
    model, optimizer, prepared = accelerator.prepare(*model_and_optimizer(), loader)
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    file, step = folder / "accelerate", 0
    if file.exists():
        accelerator.load_state(str(file))
        accelerator.step = 0  # its micro-batches, of which a step had another number
        step = json.loads((file / "step").read_text())
    while loader.state_dict()["epoch"] < EPOCHS and step != stop:
        for batch in loader:
            record.note(step, batch, loader)
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch) * loader.weight * loader.passes)
                optimizer.step()
                optimizer.zero_grad()
            assert accelerator.sync_gradients == loader.last

            step += loader.last
            if step == stop:
                break
    accelerator.save_state(str(file))
    accelerator.wait_for_everyone()
    (file / "step").write_text(json.dumps(step))


def lightning(folder: Path, stop: int | None, record: Record) -> None:
    """Lightning's Trainer, with its own checkpoint of the loader."""
    from lightning import Callback, LightningModule, Trainer

    class Restart(Callback):
        def on_train_start(self, trainer: Any, *_: Any) -> None:
            trainer.fit_loop.epoch_loop.restarting = (
                False  # the loader is there already: batches count from 0
            )

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.sgd = model_and_optimizer()

        def training_step(self, batch: torch.Tensor, _index: int) -> torch.Tensor:
            record.note(self.global_step, batch, loader)
            return loss_of(self.model, batch) * loader.weight * loader.passes

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.sgd

    ranks, file = int(os.environ["WORLD_SIZE"]), folder / "lightning.ckpt"
    loader = global_loader(equal_passes=True)
    steps = EPOCHS * -(-SIZE // BATCH)
    trainer = Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        accumulate_grad_batches=loader.passes,
        max_steps=stop or steps,
        max_epochs=-1,
        callbacks=[Restart()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), loader, ckpt_path=str(file) if file.exists() else None, weights_only=False)
    trainer.save_checkpoint(file)


def torchdata(folder: Path, stop: int | None, record: Record) -> None:
    """torchdata's StatefulDataLoader with its StatefulDistributedSampler.

    Each rank's state from its own file, else from rank 0's.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sampler = StatefulDistributedSampler(Ids(), num_replicas=ranks, rank=rank, shuffle=True, seed=3)
    passes, step, epoch = BATCH // MICRO // ranks, 0, 0
    loader = StatefulDataLoader(Ids(), batch_size=MICRO, sampler=sampler)
    files = [folder / f"torchdata-{number}.pt" for number in (rank, 0)]
    state_file = next((file for file in files if file.exists()), None)
    if state_file is not None:
        state = torch.load(state_file, weights_only=False)
        step, epoch = state["step"], state["epoch"]
        loader.load_state_dict(state["loader"])
    dist.barrier()
    while epoch < EPOCHS and step != stop:
        sampler.set_epoch(epoch)
        for index, batch in enumerate(loader):
            record.note(step, batch)
            if (index + 1) % passes == 0:
                step += 1
                if step == stop:
                    break
        else:
            epoch, step = epoch + 1, step + 1
    torch.save({"step": step, "epoch": epoch, "loader": loader.state_dict()}, files[0])


def torchtitan(folder: Path, stop: int | None, record: Record) -> None:
    """torchtitan's Trainer with its debug model, on CPUs."""
    from loader_titan import train  # beside this file

    train(folder, stop, record, global_loader)


TRAINERS = {
    "plain": (plain, "a loop with DDP, `torch.save` of the state", "torch"),
    "accelerate": (accelerate, "`prepare`, `accumulate`, `save_state`", "accelerate"),
    "lightning": (lightning, "`Trainer.fit`, `save_checkpoint`, `ckpt_path`", "lightning"),
    "torchtitan": (torchtitan, "`Trainer.train` of llama3's debug model, its CheckpointManager", ""),
    "torchdata": (torchdata, "StatefulDataLoader, StatefulDistributedSampler; no GlobalLoader", "torchdata"),
}


def worker(name: str, folder: Path, stop: int | None, part: int) -> None:
    """Trains one rank of a part, and writes down the samples of its steps."""
    record = Record()
    TRAINERS[name][0](folder, stop, record)
    rank = os.environ["RANK"]
    (folder / f"seen-{part}-{rank}.json").write_text(json.dumps(record.steps))
    if dist.is_initialized():
        dist.destroy_process_group()


def steps_of(name: str, parts: Any) -> list[list[int]]:
    """Trains parts one after the other, and gathers the samples of each step, sorted.

    A step that was begun again counts once more.
    """
    steps: dict[int, list[int]] = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for part, (ranks, stop) in enumerate(parts):
            command = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                ranks,
            ]
            command += [__file__, name, "--folder", folder, "--part", part]
            command += [] if stop is None else ["--stop", stop]
            process = subprocess.run(
                list(map(str, command)), capture_output=True, text=True, timeout=240,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )  # fmt: skip
            if process.returncode:
                raise SystemExit(process.stdout + process.stderr)
            for rank in range(ranks):
                samples_of = json.loads((Path(folder) / f"seen-{part}-{rank}.json").read_text())
                for step, ids in samples_of.items():
                    steps[int(step)] += ids
    return [sorted(steps[step]) for step in sorted(steps)]


def row(name: str) -> str:
    """A trainer's row."""
    undisturbed, moved = steps_of(name, ((2, None),)), steps_of(name, PARTS)
    same = sum(a == b for a, b in zip(undisturbed, moved, strict=False))
    epoch = len(undisturbed) // EPOCHS
    first = collections.Counter(i for step in moved[:epoch] for i in step)
    twice = sum(count > 1 for count in first.values())
    never = len({i for step in undisturbed[:epoch] for i in step} - first.keys())
    _, how, package = TRAINERS[name]
    known = version(package) if package else os.environ["TITAN"]
    return f"| {name} {known} | {how} | {len(undisturbed)} | {len(moved)} | {same} | {twice} | {never} |"


def main() -> None:
    """Prints the table, or the rows of the named trainers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--part", type=int)
    parser.add_argument("--stop", type=int)
    args = parser.parse_args()
    if args.folder is not None:
        worker(args.names[0], args.folder, args.stop, args.part)
        return
    print(HEAD)
    for name in args.names or TRAINERS:
        print(row(name), flush=True)
    print(NOTES)


HEAD = f"""\
# The samples of each step after restarts on other numbers of ranks

> Each step has the samples of an undisturbed run, in a plain loop, Accelerate, Lightning and torchtitan.
> torchdata's own sampler repeats some and loses others.

Made by `PYTHONPATH=TORCHTITAN TITAN=COMMIT python bench/loader.py`; torch {version("torch")},
Python {sys.version.split()[0]}, CPUs and gloo.

{SIZE} samples in batches of {BATCH}, shuffled, micro-batches of {MICRO}, two epochs (torchtitan:
`drop_last`). Undisturbed on 2 ranks; moved: 2 ranks until step 3, 3 until step 6, then 1, by
the trainer's own checkpoints.

| trainer | by | steps undisturbed | steps moved | steps with the same samples | samples of the first epoch \
twice | never |
|---|---|---|---|---|---|---|"""

NOTES = """
- Without `accelerator.step = 0` after `load_state`, and without the callback of Lightning's page, steps
  differ (Lightning: 3 of 10 the same).
- torchtitan: attention of its graph trainer's tests (FlexAttention has no backward on CPUs), plain sums in
  gloo (`set_force_sum_reduction_for_comms`). Its own loader refuses another number of ranks.
- torchdata: each rank loads its own state, a new one rank 0's."""


if __name__ == "__main__":
    main()
