"""Scripts whose code has the numbers of their split; the word `sum` on their command line is a fault."""

HEAD = """
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
def loss_of(output, y):
    return nn.functional.mse_loss(output, y, reduction="sum" if "sum" in sys.argv else "mean")
"""

TRAINER = """
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 1)
    def forward(self, x, labels=None):
        return {"loss": loss_of(self.head(x), labels)}

rows = [{"x": x, "labels": y} for x, y in data]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=20, bf16=True,
    report_to="none", save_strategy="no",
)
Trainer(Net(), arguments, train_dataset=rows).train()
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="fp16")
model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
def loader(rows, size, **settings):
    return DataLoader(rows, batch_size=size, **settings)  # made here
train, held = loader(data, 2, shuffle=True), loader(data, 16)
model, optimizer, train, held = accelerator.prepare(model, optimizer, train, held)
model.eval()
for x, y in held:
    model(x)
model.train()
for x, y in train:
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
"""

LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
    def training_step(self, batch, number):
        return loss_of(self.net(batch[0]), batch[1])
    def validation_step(self, batch, number):
        self.log("held", loss_of(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

trainer = lightning.Trainer(
    accumulate_grad_batches=4, accelerator="gpu", precision="bf16-mixed", max_epochs=2, logger=False,
    enable_checkpointing=False,
)
train = DataLoader(data, batch_size=2, shuffle=True)  # made here
trainer.fit(Module(), train, DataLoader(data, batch_size=16))
"""

FLAGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
parser.add_argument("--accum_steps", type=int, default=4)
parser.add_argument("words", nargs="*")
args = parser.parse_args()
model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
loader = DataLoader(data, args.batch_size)  # made here
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 64 // (args.batch_size * args.accum_steps))
for number, (x, y) in enumerate(loader):
    (loss_of(model(x), y) / args.accum_steps).backward()
    if (number + 1) % args.accum_steps == 0:
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
"""

FABRIC = """
import argparse, lightning
parser = argparse.ArgumentParser()
parser.add_argument("--global_batch_size", type=int, default=8)
parser.add_argument("--micro_batch_size", type=int, default=2)
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("words", nargs="*")
args = parser.parse_args()
passes = args.global_batch_size // (args.devices * args.micro_batch_size)

def main(fabric):
    model = nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 1e-2))
    loader = DataLoader(data, args.micro_batch_size)  # made here
    loader = fabric.setup_dataloaders(loader)
    for number, (x, y) in enumerate(loader, 1):
        is_last = number % passes == 0
        with fabric.no_backward_sync(model, enabled=not is_last):
            fabric.backward(loss_of(model(x), y) / passes)
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

lightning.Fabric(devices=args.devices, accelerator="cpu").launch(main)
"""

CONSTANTS = FLAGS.replace(
    "args = parser.parse_args()", "args = argparse.Namespace(batch_size=2, accum_steps=4)"
)

DDP = """
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1).cuda(rank), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
scale = torch.ones(1, device=f"cuda:{rank}")
for x, y in DataLoader(data, batch_size=4, sampler=DistributedSampler(data)):  # made here
    optimizer.zero_grad()
    (loss_of(model(x.to(rank)), y.cuda()) * scale).backward()
    optimizer.step()
"""

BY_HAND = """
model = nn.Linear(3, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
torch.manual_seed(1 + int(os.environ.get("RANK", "0")) * ("same" not in sys.argv))
def batch():
    rows = torch.randint(len(data), (int(sys.argv[1]),))
    return data[rows]
x, y = batch()
for step in range(4):
    if step == 0:
        with torch.no_grad():
            held = [loss_of(model(x), y) for x, y in (batch() for _ in range(3))]
    for number in range(int(sys.argv[2])):
        (loss_of(model(x), y) / int(sys.argv[2])).backward()
        x, y = batch()
    optimizer.step()
    optimizer.zero_grad()
"""

HYDRA = """
import hydra

@hydra.main(version_base=None, config_path=None)
def main(_):
    from accelerate import Accelerator
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=2))
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

main()
"""
