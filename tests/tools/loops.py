"""Training scripts as people write them, each with a construct of its own: a loop, a loader, an optimizer, a
trainer's subclass. They run on one CPU in seconds."""

from collections.abc import Iterator
from textwrap import indent

# ---- Accelerate: a loop of its own ----

ACCELERATE = """
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler
import accelerate
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

ACCUM, BATCH = 4, 8
data = TensorDataset(torch.randn(480, 5), torch.randn(480, 1))
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 1))
accelerator = {accelerator}
loader = {loader}
optimizer = {optimizer}
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
loss_of = torch.nn.functional.mse_loss
{loop}
"""
BY_ACCELERATE = "Accelerator(gradient_accumulation_steps=4)"
PLAIN = """
for x, y in loader:
    accelerator.backward(loss_of(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
"""
ACCUMULATE = """
for x, y in loader:
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(x), y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""
LOOPS = {
    "plain": ("Accelerator()", PLAIN),
    "accumulate": (BY_ACCELERATE, ACCUMULATE),
    "declared alone": (BY_ACCELERATE, PLAIN),
    "plugin": (
        "Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2))", ACCUMULATE,
    ),
    "assigned later": ("Accelerator()", "accelerator.gradient_accumulation_steps = 2\n" + ACCUMULATE),
    "by the module": ("accelerate.Accelerator(gradient_accumulation_steps=ACCUM // 2)", ACCUMULATE),
    "by a function": (
        "Accelerator(gradient_accumulation_steps=2)", f"def main():\n{indent(ACCUMULATE, '    ')}\nmain()\n",
    ),
    "modulo": ("Accelerator()", """
for i, (x, y) in enumerate(loader):
    accelerator.backward(loss_of(model(x), y) / ACCUM)
    if (i + 1) % ACCUM == 0:
        optimizer.step()
        optimizer.zero_grad()
"""),
    "modulo or the end": ("Accelerator()", """
for i, (x, y) in enumerate(loader):
    accelerator.backward(loss_of(model(x), y) / 4)
    if i % 4 == 3 or i == len(loader) - 1:
        optimizer.step()
        optimizer.zero_grad()
"""),
    "a range": ("Accelerator()", """
batches = iter(loader)
for step in range(10):
    for _ in range(ACCUM):
        x, y = next(batches)
        accelerator.backward(loss_of(model(x), y) / ACCUM)
    optimizer.step()
    optimizer.zero_grad()
"""),
    "chunks": ("Accelerator()", """
for x, y in loader:
    for part, target in zip(x.chunk(4), y.chunk(4)):
        accelerator.backward(loss_of(model(part), target) / 4)
    optimizer.step()
    optimizer.zero_grad()
"""),
    "continue": ("Accelerator()", """
for i, (x, y) in enumerate(loader):
    accelerator.backward(loss_of(model(x), y) / 4)
    if (i + 1) % 4:
        continue
    optimizer.step()
    optimizer.zero_grad()
"""),
    "a counter": ("Accelerator()", """
waiting = 0
for x, y in loader:
    accelerator.backward(loss_of(model(x), y) / 4)
    waiting += 1
    if waiting == 4:
        optimizer.step()
        optimizer.zero_grad()
        waiting = 0
"""),
    "two functions": ("Accelerator()", """
def go_back(x, y):
    accelerator.backward(loss_of(model(x), y) / 4)

def update():
    optimizer.step()
    optimizer.zero_grad()

for i, (x, y) in enumerate(loader):
    go_back(x, y)
    if i % 4 == 3:
        update()
"""),
    "a class": ("Accelerator()", """
class Training:
    def fit(self):
        for self.at, (x, y) in enumerate(loader):
            self.train(x, y)

    def train(self, x, y):
        accelerator.backward(loss_of(model(x), y))
        if self.at % 2:
            self.update()

    def update(self):
        optimizer.step()
        optimizer.zero_grad()

Training().fit()
"""),
    "no_sync": ("Accelerator()", """
from contextlib import nullcontext
for i, (x, y) in enumerate(loader):
    syncs = i % 4 == 3
    with nullcontext() if syncs else accelerator.no_sync(model):
        accelerator.backward(loss_of(model(x), y) / 4)
    if syncs:
        optimizer.step()
        optimizer.zero_grad()
"""),
    "batches in a list": ("Accelerator()", """
batches = iter(loader)
for step in range(10):
    taken = [next(batches) for _ in range(ACCUM)]
    for x, y in taken:
        accelerator.backward(loss_of(model(x), y) / ACCUM)
    optimizer.step()
    optimizer.zero_grad()
"""),
    "two losses": ("Accelerator()", """
for x, y in loader:
    accelerator.backward(loss_of(model(x), y))
    accelerator.backward(model(x).square().mean())
    optimizer.step()
    optimizer.zero_grad()
"""),
    "zero_grad by modulo": ("Accelerator()", """
for i, (x, y) in enumerate(loader):
    accelerator.backward(loss_of(model(x), y))
    optimizer.step()
    if i % 2:
        optimizer.zero_grad()
"""),
    "while": ("Accelerator()", """
batches, step = iter(loader), 0
while step < 10:
    x, y = next(batches)
    accelerator.backward(loss_of(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
    step += 1
"""),
    "a closure": ("Accelerator()", """
for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        return loss

    optimizer.step(closure)
"""),
}  # fmt: skip
LOADERS = {
    "positional": "DataLoader(data, 8, True)",
    "drop_last": "DataLoader(data, batch_size=BATCH, shuffle=True, drop_last=True)",
    "batch sampler": "DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, True))",
    "sampler of batches": (
        "DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 8, False))"
    ),
    "weighted": "DataLoader(data, batch_size=16, sampler=WeightedRandomSampler([1.0] * 480, 480))",
    "computed": "DataLoader(data, batch_size=BATCH * 2)",
    "keywords": "DataLoader(data, **dict(batch_size=6, shuffle=True))",
    "without a size": "DataLoader(data)",
    "by a function": "(lambda size: DataLoader(data, batch_size=size))(12)",
    "by the environment": "DataLoader(data, batch_size=int(__import__('os').environ.get('B', '20')))",
}
OPTIMIZERS = {
    "sgd": "torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)",
    "adam": "torch.optim.Adam(model.parameters(), lr=ACCUM * 1e-4, betas=(0.9, 0.95))",
    "decay for one part": (
        "torch.optim.AdamW([dict(params=model[0].parameters(), weight_decay=0.1), "
        "dict(params=model[1].parameters(), weight_decay=0.0)], lr=1e-3)"
    ),
    "two rates": (
        "torch.optim.AdamW([{'params': model[0].parameters(), 'lr': 1e-4}, "
        "{'params': model[1].parameters()}], lr=1e-3)"
    ),
    "a list of groups": (
        "torch.optim.AdamW([{'params': part.parameters(), 'lr': 10.0 ** -at} "
        "for at, part in enumerate(model, 2)])"
    ),
    "keywords": "torch.optim.AdamW(model.parameters(), **{'lr': 3e-4, 'weight_decay': 0.2})",
    "defaults": "torch.optim.AdamW(model.parameters())",
    "a subclass": "type('Mine', (torch.optim.AdamW,), {})(model.parameters(), lr=2e-4)",
}
MORE_GROUPS = "optimizer.add_param_group(dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=1.0))\n"

# ---- Lightning ----

LIGHTNING = """
import torch
import lightning as L
from lightning.pytorch import callbacks as cb
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 1))
{module}
    def training_step(self, batch, i):
{step}
    def configure_optimizers(self):
        return {optimizer}

data = TensorDataset(torch.randn(480, 5), torch.randn(480, 1))
trainer = L.Trainer(max_steps=20, devices=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False{trainer})
{after}
trainer.fit(Net(), {loader})
"""
LOSS = "torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])"
LIGHTNINGS = {
    "plain": {},
    "accumulation": {"trainer": ", accumulate_grad_batches=4"},
    "assigned later": {"after": "trainer.accumulate_grad_batches = 4"},
    "scheduler of accumulation": {"trainer": ", callbacks=[cb.GradientAccumulationScheduler({0: 8})]"},
    "weight averaging": {"trainer": ", callbacks=[cb.StochasticWeightAveraging(swa_lrs=1e-2)]"},
    "a list of callbacks": {
        "trainer": ", callbacks=[cb.RichModelSummary(), "
        "cb.GradientAccumulationScheduler(scheduling={0: 2})]",
    },
    "manual": {
        "module": "        self.automatic_optimization = False",
        "step": f"loss = {LOSS}\nself.manual_backward(loss / 2)\nif i % 2:\n"
        "    optimizer = self.optimizers()\n"
        "    optimizer.step()\n    optimizer.zero_grad()",
    },
    "own optimizer_step": {
        "module": "\n    def optimizer_step(self, epoch, at, optimizer, closure=None):\n"
        "        optimizer.step(closure=closure)\n",
    },
    "groups": {
        "optimizer": "torch.optim.AdamW([{'params': self.net[0].parameters(), 'lr': 1e-5}, "
        "{'params': self.net[1].parameters()}], lr=1e-3)",
    },
    "two optimizers": {
        "module": "        self.automatic_optimization = False",
        "optimizer": "[torch.optim.Adam(part.parameters(), lr=1e-3) for part in self.net]",
        "step": f"for optimizer in self.optimizers():\n    optimizer.zero_grad()\n"
        f"    self.manual_backward({LOSS})\n"
        "    optimizer.step()",
    },
    "batch sampler": {"loader": "DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, True))"},
    "loader's default": {"loader": "DataLoader(data)"},
}  # fmt: skip

# ---- transformers' Trainer ----

TRAINER = """
import torch, transformers
from transformers import Trainer, TrainerCallback, TrainingArguments
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))
data = [dict(input_ids=[row % 50] * 6, labels=[row % 50] * 6) for row in range(480)]
args = TrainingArguments("out", per_device_train_batch_size=8, gradient_accumulation_steps=2,
                         learning_rate=2e-4, max_steps=20, use_cpu=True, report_to="none",
                         lr_scheduler_type="constant",
                         save_strategy="no"{arguments})
{body}
{kind}(model=model, args=args, train_dataset=data{trainer}).train()
"""
TRAINERS = {
    "plain": {},
    "assigned later": {"body": "args.gradient_accumulation_steps = 3\nargs.learning_rate = 1e-3"},
    "set with": {"body": "args.set_training(learning_rate=5e-4, batch_size=4, max_steps=20)"},
    "set by setattr": {"body": "setattr(args, 'per_device_train_batch_size', 16)"},
    "replaced": {"body": "import dataclasses\nargs = dataclasses.replace(args, learning_rate=7e-4)"},
    "own loader": {
        "kind": "Own",
        "body": "class Own(Trainer):\n    def get_train_dataloader(self):\n"
        "        return torch.utils.data.DataLoader(data, batch_size=4, collate_fn=self.data_collator)",
    },
    "own optimizer": {
        "kind": "Own",
        "body": "class Own(Trainer):\n    def create_optimizer(self, *_):\n"
        "        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)\n"
        "        return self.optimizer",
    },
    "own training_step": {
        "kind": "Own",
        "body": "class Own(Trainer):\n    def training_step(self, model, inputs, *rest):\n"
        "        super().training_step(model, inputs, *rest)\n"
        "        return super().training_step(model, inputs, *rest)",
    },
    "an optimizer given": {"trainer": ", optimizers=(torch.optim.SGD(model.parameters(), 0.05), None)"},
    "an optimizer class given": {"trainer": ", optimizer_cls_and_kwargs=(torch.optim.SGD, dict(lr=0.3))"},
    "a callback": {
        "trainer": ", callbacks=[Warm()]",
        "body": "class Warm(TrainerCallback):\n"
        "    def on_train_begin(self, args, state, control, optimizer=None, **_):\n"
        "        for group in optimizer.param_groups:\n            group['lr'] = 0.5",
    },
    "a patched method": {
        "body": "Trainer.get_train_dataloader = lambda self: torch.utils.data.DataLoader(\n"
        "    data, batch_size=2, collate_fn=self.data_collator)",
    },
    "a library's subclass": {
        "kind": "Made",
        "body": "Made = type('Made', (Trainer,), dict(\n    get_train_dataloader=lambda self: "
        "torch.utils.data.DataLoader(data, batch_size=2, collate_fn=self.data_collator)))",
    },
    "group by length": {"arguments": ", train_sampling_strategy='group_by_length'"},
    "num_steps inside": {
        "arguments": ", accelerator_config={'gradient_accumulation_kwargs': {'num_steps': 2}}"
    },
}


def scripts() -> Iterator[tuple[str, str]]:
    """Yields each script with its name."""
    loader, adam = (
        "DataLoader(data, batch_size=8, shuffle=True)",
        "torch.optim.AdamW(model.parameters(), lr=1e-3)",
    )

    def looped(**parts: str) -> str:
        whole = {"accelerator": "Accelerator()", "loader": loader, "optimizer": adam, "loop": PLAIN, **parts}
        return ACCELERATE.format(**whole)

    for name, (accelerator, loop) in LOOPS.items():
        yield f"accelerate: {name}", looped(accelerator=accelerator, loop=loop)
    for name, own in LOADERS.items():
        yield f"loader: {name}", looped(loader=own)
    for name, own in OPTIMIZERS.items():
        yield f"optimizer: {name}", looped(optimizer=own)
    yield "optimizer: a group more", looped(loop=MORE_GROUPS + PLAIN)
    lightning = {"module": "", "step": f"return {LOSS}", "trainer": "", "after": "", "loader": loader}
    for name, parts in LIGHTNINGS.items():
        whole = {**lightning, "optimizer": "torch.optim.AdamW(self.parameters(), lr=1e-3)", **parts}
        whole["step"] = indent(whole["step"], " " * 8)
        yield f"lightning: {name}", LIGHTNING.format(**whole)
    for name, parts in TRAINERS.items():
        yield (
            f"trainer: {name}",
            TRAINER.format(**{"arguments": "", "body": "", "kind": "Trainer", "trainer": "", **parts}),
        )
