"""Healthy scripts of transformers' Trainer, Accelerate and Lightning, and the same with one fault.

`--kind`, `--fault`.
"""

import argparse
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--fault", default="")
parser.add_argument("--batch", type=int)
parser.add_argument("--accum", type=int)
args = parser.parse_args()
kind, fault = args.kind, args.fault
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
torch.manual_seed(0)
rows = TensorDataset(torch.randn(240, 6), torch.randn(240, 2))
texts = [{"input_ids": torch.randint(3, 60, (int(n),)).tolist()} for n in torch.randint(4, 14, (240,))]


class Lines(IterableDataset):
    def __iter__(self):
        yield from texts


def hugging_face():
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertForSequenceClassification,
        DataCollatorForLanguageModeling,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        Trainer,
        TrainingArguments,
    )

    small = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 64,
    }
    options = {
        "learning_rate": 1e-2,
        "report_to": [],
        "max_steps": 6,
        "save_strategy": "no",
        "logging_steps": 1,
        "use_cpu": True,
    }

    def collate(items):
        longest = max(len(item["input_ids"]) for item in items)
        ids = torch.tensor([item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items])
        batch = {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": ids.masked_fill(ids == 0, -100),
        }
        if "classes" in kind:
            batch["labels"] = ids[:, 0] % 3
        return batch

    data, model, extra = texts, None, {}
    if "classes" in kind:
        model = BertForSequenceClassification(BertConfig(**small, num_labels=3))
    elif kind == "hf masked":
        from tokenizers import Tokenizer, models

        inner = Tokenizer(
            models.WordLevel({**{f"w{i}": i for i in range(62)}, "[MASK]": 62, "[PAD]": 63}, "w0")
        )
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, mask_token="[MASK]", pad_token="[PAD]")
        collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.4)
        model = BertForMaskedLM(BertConfig(**small))
    else:
        model = LlamaForCausalLM(LlamaConfig(**small, num_key_value_heads=2))
    if kind == "hf iterable":
        data = Lines()
        options["accelerator_config"] = {"dispatch_batches": False}
    if kind == "hf grouped":
        options["train_sampling_strategy"] = "group_by_length"
    if kind == "hf workers":
        options["dataloader_num_workers"] = 1
    if kind == "hf label smoothing":
        options["label_smoothing_factor"] = 0.1
    if kind == "hf evaluation":
        options |= {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
        extra["eval_dataset"] = texts
    if kind == "hf saves":
        options |= {"save_strategy": "steps", "save_steps": 1}
    if kind == "hf packed":
        data = [
            {"input_ids": [t for item in texts[i : i + 3] for t in item["input_ids"]]}
            for i in range(0, 240, 3)
        ]
    if kind == "hf checkpointing":
        options["gradient_checkpointing"] = True

    def loss_func(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits[:, :-1].flatten(0, 1)
        if fault == "mean of a pass" or num_items_in_batch is None:
            return F.cross_entropy(logits, labels[:, 1:].flatten())
        return F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum") / num_items_in_batch

    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            labels = inputs.pop("labels")
            outputs = model(**inputs)
            loss = F.cross_entropy(
                outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
            )
            if fault == "mean of a pass":
                loss = (
                    loss
                    / (labels[:, 1:] != -100).sum()
                    / (self.args.gradient_accumulation_steps if fault else 1)
                )
            else:
                loss = (
                    loss
                    / num_items_in_batch
                    * (self.accelerator.num_processes if fault != "without ranks" else 1)
                )
            return (loss, outputs) if return_outputs else loss

    if kind == "hf compute_loss_func":
        extra["compute_loss_func"] = loss_func
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accum,
        **options,
    )
    (Own if kind == "hf compute_loss" else Trainer)(
        model, arguments, train_dataset=data, data_collator=collate, **extra
    ).train()


def accelerate():
    from accelerate import Accelerator, DataLoaderConfiguration

    shards = {"accelerate split": {"split_batches": True}, "accelerate dispatch": {"dispatch_batches": True}}
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=args.accum,
        dataloader_config=DataLoaderConfiguration(**shards.get(kind, {})),
    )
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    size = args.batch * (world if kind == "accelerate split" else 1)
    data = rows
    if kind == "accelerate dispatch":
        data = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter(list(rows))})()
    loader = DataLoader(data, size, shuffle=kind != "accelerate dispatch")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / 30))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if fault == "prepared scheduler":
        scheduler = accelerator.prepare(scheduler)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(x), y, reduction="sum" if fault == "summed loss" else "mean")
            accelerator.backward(loss / (args.accum if fault == "divided twice" else 1))
            if accelerator.sync_gradients or fault == "clipping each pass":
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if accelerator.sync_gradients or fault == "prepared scheduler":
                scheduler.step()
            optimizer.zero_grad()


def lightning():
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
            self.automatic_optimization = kind != "lightning manual"

        def training_step(self, batch, number):
            loss = F.mse_loss(
                self.net(batch[0]), batch[1], reduction="sum" if fault == "summed loss" else "mean"
            )
            if self.automatic_optimization:
                return loss
            self.manual_backward(loss / (1 if fault == "not divided" else args.accum))
            if (number + 1) % args.accum == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return None

        def validation_step(self, batch, number):
            self.log("val", F.mse_loss(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    trainer = L.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        accumulate_grad_batches=1 if kind == "lightning manual" else args.accum,
        gradient_clip_val=None if kind == "lightning manual" else 1.0,
    )  # fmt: skip
    val = DataLoader(rows, 16) if kind == "lightning validation" else None
    trainer.fit(Module(), DataLoader(rows, args.batch, shuffle=True), val)


{"hf": hugging_face, "accelerate": accelerate, "lightning": lightning}[kind.split()[0]]()
