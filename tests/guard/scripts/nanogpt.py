"""nanoGPT's train.py: batches drawn from a file of tokens, or the five lines that make a loader of them;
require_backward_grad_sync set by hand, parameters with and without decay, the learning rate written into the
groups, evaluation on the master.
"""

import contextlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP

BLOCK, VOCABULARY, WIDTH = 16, 40, 16


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Dropout(0.2)

    def forward(self, x):
        heads = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        rate = 0.2 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(*heads, dropout_p=rate, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norms[1](x)))))


class GPT(nn.Module):
    """A tiny one, its head tied to the token embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, idx, targets=None):
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))

    def configure_optimizers(self, lr, weight_decay):
        """Decays matrices only."""
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def main(plan, guard, folder, *, clip="norm", loader=False, compiled=None, evaluated=True):
    """Trains for max_iters iterations and nanoGPT's one more; `compiled` is a backend of torch.compile."""
    rank, world = dist.get_rank(), dist.get_world_size()
    master, seed_offset = rank == 0, rank
    gradient_accumulation_steps = plan.accumulation * world // world
    batch_size, max_iters, eval_interval = plan.micro_batch, plan.total_steps, 4
    path = folder / f"train-{rank}.bin"
    np.random.default_rng(0).integers(VOCABULARY, size=4096, dtype=np.uint16).tofile(path)
    torch.manual_seed(1337 + seed_offset)

    def get_batch(split):
        data = np.memmap(path, dtype=np.uint16, mode="r")
        data = data[:3600] if split == "train" else data[3600:]
        ix = torch.randint(len(data) - BLOCK, (batch_size,))
        x, y = (
            torch.stack([torch.from_numpy(data[i + k : i + k + BLOCK].astype(np.int64)) for i in ix])
            for k in (0, 1)
        )
        return x, y

    class Batches(torch.utils.data.IterableDataset):
        def __iter__(self):
            while True:
                yield get_batch("train")

    batches = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=2) if loader else None

    model = GPT()
    optimizer = model.configure_optimizers(plan.lr, 0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    if compiled:
        model = torch.compile(model, backend=compiled)
    model = DDP(model)
    raw_model = model.module

    @torch.no_grad()
    def estimate_loss():
        out = {}
        model.eval()
        for split in ("train", "val"):
            out[split] = torch.stack([model(*get_batch(split))[1] for _ in range(3)]).mean()
        model.train()
        return out

    watch = guard(plan, loss=(lambda model, batch: model(*batch)[1]) if loader else None)
    watch.attach(model, optimizer, batches)
    drawn = iter(batches) if loader else None
    X, Y = next(drawn) if loader else get_batch("train")
    iter_num, best_val_loss = 0, 1e9
    while True:
        for param_group in optimizer.param_groups:
            param_group["lr"] = plan.lr_at(iter_num)
        if evaluated and iter_num % eval_interval == 0 and master:
            losses = estimate_loss()
            if losses["val"] < best_val_loss:
                best_val_loss = losses["val"]
                if iter_num > 0:
                    checkpoint = {
                        "model": raw_model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "iter_num": iter_num,
                    }
                    torch.save(checkpoint, folder / "ckpt.pt")
        for micro_step in range(gradient_accumulation_steps):
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            with contextlib.nullcontext():
                _, loss = model(X, Y)
                loss = loss / gradient_accumulation_steps
            X, Y = next(drawn) if loader else get_batch("train")  # while the model computes
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if clip == "norm":
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.recipe.clip_norm or 1.0)
        else:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        iter_num += 1
        if iter_num > max_iters:
            break
    watch.finish()
