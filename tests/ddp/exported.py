"""Trainings by the files that a plan was exported to, in the tools themselves, reported step by step."""

import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from ddp.quiet import LIGHTNING, stay_offline

_OWN = ("use_cpu", "report_to", "ddp_backend", "disable_tqdm", "logging_strategy")


class Rows(torch.utils.data.Dataset):
    """Samples that are counted as they are used."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        tokens = torch.tensor([index % 11, 1, 2])
        return {"input_ids": tokens, "labels": tokens}


def over_ranks(counts):
    """Sums lists of numbers over the ranks."""
    total = torch.tensor(counts, dtype=torch.int64)
    dist.all_reduce(total)
    return total.tolist()


def transformers(file, dataset_size, *, extra=None):
    """Trains by the arguments of an exported file; returns the batch and the steps that the Trainer reports,
    and of every step its learning rate and its samples over all ranks.
    """
    stay_offline()
    import transformers as hf

    rates, samples, waiting = [], [], [0]

    class Watch(hf.TrainerCallback):
        def on_pre_optimizer_step(self, *_, optimizer=None, **__):
            _record(optimizer, rates, samples, waiting)

    class Trainer(hf.Trainer):
        def training_step(self, model, inputs, *rest):
            waiting[0] += len(inputs["input_ids"])
            return super().training_step(model, inputs, *rest)

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        parser = hf.HfArgumentParser(hf.TrainingArguments)
        config = parser.parse_yaml_file(file)[0].to_dict()
        options = {name: value for name, value in config.items() if name not in _OWN}
        arguments = hf.TrainingArguments(
            **{**options, "output_dir": folder, **(extra or {})},
            ddp_backend="gloo",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
            report_to=[],
        )
        torch.manual_seed(0)
        shape = hf.GPT2Config(
            vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
        )
        trainer = Trainer(
            hf.GPT2LMHeadModel(shape), arguments, train_dataset=Rows(dataset_size), callbacks=[Watch()]
        )
        trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
        return {
            "batch": trainer.get_total_train_batch_size(arguments),
            "steps": trainer.state.max_steps,
            "done": trainer.state.global_step,
            "lr": rates,
            "samples": over_ranks(samples),
        }


def _record(optimizer, rates, samples, waiting):
    """Before a step of the optimizer: its learning rate, and the samples since the last."""
    rates.append(optimizer.param_groups[0]["lr"])
    samples.append(waiting[0])
    waiting[0] = 0


def lightning(file, dataset_size, plan_json):
    """Trains by Lightning's Trainer, optimizer and data of an exported configuration."""
    import importlib

    import lightning.pytorch as pl
    import yaml
    from lightning.pytorch.strategies import DDPStrategy

    from isobatch import Plan
    from isobatch.integrations.lightning import configure_optimizers

    config = yaml.safe_load(Path(file).read_text())
    plan = Plan.from_json(plan_json)
    rates, samples, waiting = [], [], [0]

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, _):
            waiting[0] += len(batch["input_ids"])
            return self.layer(batch["input_ids"].float()).mean() * 1e-3

        def on_before_optimizer_step(self, optimizer):
            _record(optimizer, rates, samples, waiting)

        def configure_optimizers(self):
            module, _, name = config["optimizer"]["class_path"].rpartition(".")
            make_optimizer = getattr(importlib.import_module(module), name)
            return configure_optimizers(
                make_optimizer(self.parameters(), **config["optimizer"]["init_args"]), plan
            )

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        assert config["trainer"].pop("strategy") == "ddp"
        trainer = pl.Trainer(
            **config["trainer"],
            **LIGHTNING,
            strategy=DDPStrategy(process_group_backend="gloo"),
            default_root_dir=folder,
        )
        size = config["data"]["batch_size"]
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(dataset_size), size, shuffle=True))
        return {
            "batch": size * trainer.accumulate_grad_batches * trainer.world_size,
            "steps": trainer.max_steps,
            "done": trainer.global_step,
            "lr": rates,
            "samples": over_ranks(samples),
        }
