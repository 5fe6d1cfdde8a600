"""Elastic runs inside trainers, stopped and gone on: each gives its weights, and the rate of each step."""

import itertools
import logging
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import isobatch as ib
from ddp.quiet import LIGHTNING, stay_offline
from isobatch.elastic import agreement
from isobatch.integrations.torch import ElasticRun

RECIPE = {"effective_batch": 9, "lr": 0.05, "optimizer": "sgd", "dataset_size": 40}
RECIPE |= {"duration": "2ep", "warmup": "3st"}
SETTINGS = {"split": "uneven", "max_micro_batch": 3}


class Words(torch.utils.data.Dataset):
    def __init__(self):
        self.tokens = torch.randint(
            16, (RECIPE["dataset_size"], 6), generator=torch.Generator().manual_seed(1)
        )

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        labels = self.tokens[index].clone()
        labels[6 - index % 4 :] = -100
        return {"input_ids": self.tokens[index], "labels": labels, "index": index}


class Model(nn.Module):
    """Predicts words; its loss is the mean over its labels, or over those of the step where it is told."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)).double()

    def loss(self, input_ids, labels, reduction):
        return cross_entropy(self.net(input_ids).flatten(0, 1), labels.flatten(), reduction=reduction)


class Counting(Model):
    def forward(self, input_ids, labels, index, **kwargs):
        return {"loss": self.loss(input_ids, labels, "sum") / kwargs["num_items_in_batch"]}


class Averaging(Model):
    def forward(self, input_ids, labels, index):
        losses = self.loss(input_ids, labels, "none").view_as(labels).sum(1) / (labels != -100).sum(1)
        return {"loss": losses.mean()}


def every_step_agrees():
    """Lets each step take a second, so that ranks stop at the step after the one that asks for it."""
    agreement.monotonic = itertools.count().__next__


def size_of_world():
    return dist.get_world_size() if dist.is_initialized() else 1


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def in_transformers(folder, model=Averaging, stop=None, resume=False, optimizer=sgd, **options):
    """Trains a run in transformers; returns its Trainer, the run, each step's rate, and the events."""
    stay_offline()
    import transformers as hf

    from isobatch.integrations.transformers import ElasticTrainer, arguments, state_in

    every_step_agrees()
    rates, events = {}, []

    class Trainer(ElasticTrainer, hf.Trainer):
        pass

    class Watch(hf.TrainerCallback):
        def on_step_begin(self, args, state, control, optimizer, **_):
            rates[state.global_step] = optimizer.param_groups[0]["lr"]

        def on_step_end(self, args, state, control, **_):
            if state.global_step == stop:
                run.stop()

        def on_evaluate(self, args, state, control, **_):
            events.append(("evaluate", state.global_step, state.epoch))

        def on_save(self, args, state, control, **_):
            events.append(("save", state.global_step, state.epoch))

    checkpoint = str(Path(folder) / f"checkpoint-{resume}") if resume else None
    run = ElasticRun(ib.Recipe(**RECIPE), state=state_in(checkpoint), **SETTINGS)
    torch.manual_seed(0)
    model = model()
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    quiet |= {"use_cpu": True, "ddp_backend": "gloo", "remove_unused_columns": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            model,
            hf.TrainingArguments(
                folder,
                **{**quiet, "label_names": ["labels"], "max_grad_norm": 0.0, **arguments(run), **options},
            ),
            train_dataset=Words(),
            eval_dataset=Words(),
            elastic=run,
            elastic_optimizer=optimizer and optimizer(model.parameters()),
            callbacks=[Watch()],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, run, rates, events


def transformers(folder, counts, stop=None, resume=False):
    """The weights, the rate of each step, and how far the Trainer and the run are."""
    trainer, run, rates, _ = in_transformers(folder, Counting if counts else Averaging, stop, resume)
    return trainer.model.net.state_dict(), rates, trainer.state.global_step, run.state_dict()["step"]


def epochs(folder, stop=None, resume=False):
    """The Trainer's events where it evaluates and saves every epoch."""
    *_, events = in_transformers(
        folder, stop=stop, resume=resume, eval_strategy="epoch", save_strategy="epoch"
    )
    return events


class Normed(Averaging):
    """With weights that do not decay."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)


def own_optimizer(folder):
    """The weight decay of each group of the Trainer's own optimizer, and the rates that the run gives it."""
    trainer, _, rates, _ = in_transformers(folder, Normed, optimizer=None, weight_decay=0.1)
    return [group["weight_decay"] for group in trainer.optimizer.param_groups], [*rates.values()]


def in_lightning(path=None, stop=None, resume=False, data=None, **options):
    """Trains a run in Lightning's Trainer; returns the module, the Trainer, the run, and each step's rate and
    epoch; `validated` has the steps and epochs at which it validates.
    """
    import lightning.pytorch as pl

    from isobatch.integrations.lightning import ElasticLightning, state_in

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    every_step_agrees()
    run = ElasticRun(ib.Recipe(**RECIPE), state=state_in(path if resume else None), **SETTINGS)
    elastic = ElasticLightning(run)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.rates, self.validated = Averaging(), {}, []

        def training_step(self, batch, index):
            batch, factor = batch
            self.rates[self.global_step] = self.optimizers().param_groups[0]["lr"], self.current_epoch
            return self.model(**batch)["loss"] * factor

        def validation_step(self, batch, index):
            pass

        def on_validation_end(self):
            self.validated.append((self.global_step, self.current_epoch))

        def configure_optimizers(self):
            return elastic.configure_optimizers(sgd(self.parameters()))

        def on_train_batch_end(self, *_):
            if self.global_step == stop:
                run.stop()

    torch.manual_seed(0)
    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(**LIGHTNING, callbacks=[elastic], **elastic.arguments, **options)
        trainer.fit(module, elastic.loader(Words()), data, ckpt_path=path if resume else None)
        if stop:
            trainer.save_checkpoint(path)
    return module, trainer, run


def validated(every=1):
    """Returns the steps and epochs at which Lightning validates, and its epoch at the end."""
    data = torch.utils.data.DataLoader(Words(), 8)
    options = {"devices": 1, "num_sanity_val_steps": 0, "check_val_every_n_epoch": every}
    module, trainer, _ = in_lightning(data=data, **options)
    return module.validated, trainer.current_epoch


def lightning(path, stop=None, resume=False):
    """Returns the weights, the rate and epoch of each step, and how far the Trainer and the run are."""
    from lightning.pytorch.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend="gloo")
    options = {"devices": size_of_world(), "strategy": strategy, "use_distributed_sampler": False}
    module, trainer, run = in_lightning(path, stop, resume, **options)
    return module.model.net.state_dict(), module.rates, trainer.global_step, run.state_dict()["step"]


def accelerate(checkpoint=None, stop=None):
    """Trains in a loop with Accelerate: the model is prepared, the loader and the optimizer need not be."""
    stay_offline()
    from accelerate import Accelerator

    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator = Accelerator(cpu=True)
        model = accelerator.prepare(own)
    run = ElasticRun(ib.Recipe(**RECIPE), state=checkpoint and checkpoint["run"], **SETTINGS)
    scheduler, rates = run.scheduler(optimizer), {}
    if checkpoint:
        own.load_state_dict(checkpoint["model"])
    generator = torch.Generator().manual_seed(2)
    data = torch.randn(RECIPE["dataset_size"], 4, generator=generator, dtype=torch.float64)
    loader = run.loader(data)
    assert accelerator.prepare(loader) is loader
    for step in run.steps(loader):
        for micro in step:
            rows = micro.batch.to(accelerator.device)
            with micro.sync(model):
                accelerator.backward(mse_loss(model(rows[:, :3]), rows[:, 3:]) * micro.weight)
        rates[step.number] = optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step.number + 1 == stop:
            break
    accelerator.state._reset_state(reset_partial_state=True)
    weights = {name: value.clone() for name, value in own.state_dict().items()}
    return {"model": weights, "run": run.state_dict()}, rates
