"""Trainings, right or wrong after a restart: python resume_scripts.py NAME [--resume CHECKPOINT]."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import swa_utils
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, BATCH = 24, 4
CHECKPOINT = sys.argv[3] if len(sys.argv) > 3 else None


def net():
    """Makes a model with dropout, which shows the random states."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 3))


def data():
    """Makes rows and their classes."""
    return TensorDataset(
        torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 3
    )


class Words(torch.utils.data.Dataset):
    """Rows of tokens for a small GPT-2."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        tokens = torch.randint(3, 60, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def transformers(**settings):
    """Trains and resumes with the Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=BATCH, num_train_epochs=2, save_steps=1,
        report_to="none", learning_rate=1e-3, **settings,
    )  # fmt: skip
    Trainer(model, arguments, train_dataset=Words()).train(resume_from_checkpoint=CHECKPOINT)


def lightning(*, fits_on=True):
    """Trains and resumes with Lightning's own checkpoints; `fits_on`: `fit` gets the checkpoint's path."""
    import lightning as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3), "interval": "step"}
            ]

    pl.seed_everything(0)
    keep = ModelCheckpoint(dirpath="out", every_n_train_steps=6, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, callbacks=[keep], enable_progress_bar=False
    )
    module = Module() if fits_on or CHECKPOINT is None else Module.load_from_checkpoint(CHECKPOINT)
    trainer.fit(module, DataLoader(data(), BATCH), ckpt_path=CHECKPOINT if fits_on else None)


def accelerate(*, skips=True, seedable=True):
    """Trains with Accelerate; `skips`: the batches of the epoch before the checkpoint."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(0)
    # Without a seedable sampler a restart in mid-epoch draws another order.
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    model = net()
    model[2].p = 0.0  # a restart in mid-epoch draws another dropout: the loader draws a seed first
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = DataLoader(data(), BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step = 0
    if CHECKPOINT:
        accelerator.load_state(CHECKPOINT)
        step = int(Path(CHECKPOINT).name.rpartition("-")[2])
    batches = len(loader)
    for epoch in range(step // batches, 3):
        done = step % batches if skips else 0
        loader.set_epoch(epoch)
        for x, y in accelerator.skip_first_batches(loader, done) if done else loader:
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            accelerator.save_state(f"out/step-{step}")


def stateful():
    """Trains as torchtitan does: a StatefulDataLoader and torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torchdata.stateful_dataloader import StatefulDataLoader

    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    for number, tensor in enumerate(model.parameters()):
        nn.init.normal_(tensor, 0, 0.1, generator=torch.Generator().manual_seed(number))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = StatefulDataLoader(data(), BATCH, shuffle=False)
    epoch, step = 0, 0
    if CHECKPOINT:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=CHECKPOINT)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        rest = torch.load(f"{CHECKPOINT}/rest.pt")
        loader.load_state_dict(rest["loader"])
        epoch, step = rest["epoch"], rest["step"]
    while epoch < 3:
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            weights, moments = get_state_dict(model, optimizer)
            place = f"out/step-{step}"
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=place)
            torch.save({"loader": loader.state_dict(), "epoch": epoch, "step": step}, f"{place}/rest.pt")
        epoch += 1


def elastic():
    """Trains with ElasticRun."""
    import isobatch as ib
    from isobatch.integrations.torch import ElasticRun

    recipe = ib.Recipe(
        effective_batch=BATCH,
        lr=0.05,
        optimizer="sgd",
        momentum=0.9,
        dataset_size=ROWS,
        duration="3ep",
        warmup="4st",
    )
    state = torch.load(CHECKPOINT) if CHECKPOINT else {}
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    for number, tensor in enumerate(model.parameters()):
        nn.init.normal_(tensor, 0, 0.1, generator=torch.Generator().manual_seed(number))
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.lr, momentum=0.9)
    run = ElasticRun(recipe, max_micro_batch=2, state=state.get("run"))
    loader, scheduler = run.loader(data()), run.scheduler(optimizer)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    Path("out").mkdir(exist_ok=True)
    for step in run.steps(loader):
        for micro in step:
            x, y = micro.batch
            (nn.functional.cross_entropy(model(x), y) * micro.weight).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
        torch.save(state, f"out/step-{step.number + 1}.pt")


def loop(fault):
    """Trains by a loop with one fault after the restart."""
    model = net()
    if "buffers" in fault:
        model[1], model[2].p = nn.BatchNorm1d(16), 0.0
    sampler = DistributedSampler(data(), 1, 0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20)
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    epoch, done = 0, 0
    if CHECKPOINT:
        state = torch.load(CHECKPOINT)
        weights = {name: tensor.float() for name, tensor in state["model"].items()}
        if fault == "buffers":
            weights = {name: tensor for name, tensor in weights.items() if "running" not in name}
        model.load_state_dict(weights, strict=False)
        for name, part in (
            ("optimizer", optimizer), ("schedule", schedule), ("averaged", averaged), ("scaler", scaler)
        ):  # fmt: skip
            if fault != f"no {name}":
                part.load_state_dict(state[name])
        epoch, done = state["epoch"], state["done"]
        epoch, done = (epoch + 1, 0) if fault == "epoch skipped" else (epoch, done)
        done = 0 if fault == "epoch anew" else done
        if fault != "no random state":
            torch.set_rng_state(state["random"])
    Path("out").mkdir(exist_ok=True)
    while epoch < 3:
        seed = epoch + (50 if fault == "another seed" and CHECKPOINT else 0)
        sampler.set_epoch(0 if fault == "no set_epoch" and CHECKPOINT else seed)
        order = torch.tensor([*sampler]).split(BATCH)
        for number in range(done, len(order)):
            x, y = data()[order[number]]
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()
            averaged.update_parameters(model)
            is_last = number + 1 == len(order)
            weights = model.state_dict()
            if fault == "half weights":
                weights = {name: tensor.bfloat16() for name, tensor in weights.items()}
            state = {"model": weights, "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
            state |= {"schedule": schedule.state_dict(), "averaged": averaged.state_dict()}
            state |= {"epoch": epoch + is_last, "done": 0 if is_last else number + 1}
            state["scaler"] = scaler.state_dict()
            torch.save(state, f"out/step-{epoch * len(order) + number + 1}.pt")
        epoch, done = epoch + 1, 0


SCRIPTS = {
    "Trainer": transformers,
    "Trainer, ignore_data_skip": lambda: transformers(ignore_data_skip=True),
    "Trainer, save_only_model": lambda: transformers(save_only_model=True),
    "Lightning": lightning,
    "Lightning without ckpt_path": lambda: lightning(fits_on=False),
    "Accelerate": accelerate,
    "Accelerate without skip_first_batches": lambda: accelerate(skips=False),
    "Accelerate without a seedable sampler": lambda: accelerate(seedable=False),
    "StatefulDataLoader and DCP": stateful,
    "ElasticRun": elastic,
    "loop": lambda: loop("none"),
    "loop without its optimizer": lambda: loop("no optimizer"),
    "loop, the epoch anew": lambda: loop("epoch anew"),
    "loop, the epoch skipped": lambda: loop("epoch skipped"),
    "loop with another seed": lambda: loop("another seed"),
    "loop, weights in bfloat16": lambda: loop("half weights"),
    "loop without its schedule": lambda: loop("no schedule"),
    "loop without its random states": lambda: loop("no random state"),
    "loop without set_epoch": lambda: loop("no set_epoch"),
    "loop without averaged weights": lambda: loop("no averaged"),
    "loop without its loss scale": lambda: loop("no scaler"),
    "loop without its buffers": lambda: loop("buffers"),
    "loop with its buffers": lambda: loop("right, with buffers"),
}

if __name__ == "__main__":
    SCRIPTS[sys.argv[1]]()
