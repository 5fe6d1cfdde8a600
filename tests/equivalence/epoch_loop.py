"""A training whose rows are no whole number of steps, right at the end of an epoch or with one fault."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--rows", type=int, default=44)
parser.add_argument("--by", default="hand", choices=("hand", "Trainer"))
parser.add_argument("--streamed", action="store_true")
parser.add_argument("--end", default="divided by its passes")
parser.add_argument("--saves", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
x, y = torch.randn(args.rows, 6), torch.randint(0, 3, (args.rows,))


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def train_by_hand():
    net = nn.Linear(6, 3)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    data = TensorDataset(x, y)
    loader = DataLoader(Stream([*data]) if args.streamed else data, args.micro, shuffle=not args.streamed)
    for _epoch in range(3):
        batches = list(loader)
        if args.end == "dropped":
            batches = batches[: len(batches) // args.accum * args.accum]
        for number, (inputs, labels) in enumerate(batches):
            window = min(args.accum, len(batches) - number // args.accum * args.accum)
            passes = args.accum if args.end == "divided by all" else window
            (nn.functional.cross_entropy(net(inputs), labels) / passes).backward()
            is_last = number + 1 == len(batches) and args.end not in ("kept", "cleared")
            if (number + 1) % args.accum == 0 or is_last:
                optimizer.step()
                optimizer.zero_grad()
                if args.saves and number > 3 * args.accum:
                    torch.save(net.state_dict(), "saved.pt")
        if args.end == "cleared":
            optimizer.zero_grad()


def train_by_trainer():
    from transformers import Trainer, TrainingArguments

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x, labels=None):
            return {"loss": nn.functional.cross_entropy(self.head(x), labels)}

    class ByAll(Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model.train(), inputs) / self.args.gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    rows = [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)]
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=args.micro,
        gradient_accumulation_steps=args.accum,
        max_steps=12,
        report_to="none",
        save_strategy="no",
    )
    trainer = ByAll if args.end == "divided by all" else Trainer
    trainer(Net(), arguments, train_dataset=Stream(rows) if args.streamed else rows).train()


train_by_hand() if args.by == "hand" else train_by_trainer()
