"""timm's train.py: its loaders and transforms, mixup and cutmix, an averaged copy of the weights,
accumulation, a schedule by update, clipping by norm, by value or adaptively, validation of both models, and
checkpoints.
"""

import contextlib

import numpy as np
import timm
import timm.data
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as NativeDDP

CLASSES, SIZE = 5, 32


class Images(torch.utils.data.Dataset):
    """Random pictures; create_loader sets the transform."""

    def __init__(self, size):
        chance = np.random.default_rng(0)
        self.pixels = chance.integers(256, size=(size, SIZE, SIZE, 3), dtype=np.uint8)
        self.labels, self.transform = chance.integers(CLASSES, size=size).tolist(), None

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def validate(model, loader, loss_fn):
    """The mean loss."""
    model.eval()
    with torch.inference_mode():
        losses = [loss_fn(model(x), y) for x, y in loader]
    return timm.utils.reduce_tensor(torch.stack(losses).mean(), dist.get_world_size())


def main(plan, guard, folder, *, clip="norm", mixup="loop", prefetcher=False, layer_decay=None):
    """Trains for the plan's epochs; `mixup` is mixed in the "loop", in the loader's "collate", or is None."""
    rank, world = dist.get_rank(), dist.get_world_size()
    timm.utils.random_seed(42, rank)
    model = timm.create_model(
        "test_vit", num_classes=CLASSES, img_size=SIZE, patch_size=8, drop_path_rate=0.1
    )
    optimizer = timm.optim.create_optimizer_v2(
        model, opt="adamw", lr=plan.lr, weight_decay=0.05, layer_decay=layer_decay
    )
    model_ema = timm.utils.ModelEmaV3(model, decay=0.99)
    model = NativeDDP(model)

    mixing = {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "label_smoothing": 0.1, "num_classes": CLASSES}
    mixup_fn = timm.data.Mixup(**mixing) if mixup == "loop" else None
    collate_fn = timm.data.FastCollateMixup(**mixing) if mixup == "collate" else None
    common = {
        "input_size": (3, SIZE, SIZE),
        "batch_size": plan.micro_batch,
        "num_workers": 2,
        "distributed": True,
        "use_prefetcher": prefetcher,
        "device": torch.device("cpu"),
        "persistent_workers": True,
    }
    dataset_train, dataset_eval = Images(plan.recipe.dataset_size), Images(20)
    loader_train = timm.data.create_loader(
        dataset_train, is_training=True, re_prob=0.25, collate_fn=collate_fn, **common
    )
    loader_eval = timm.data.create_loader(dataset_eval, is_training=False, **common)
    train_loss_fn = timm.loss.SoftTargetCrossEntropy() if mixup else timm.loss.LabelSmoothingCrossEntropy()
    validate_loss_fn = nn.CrossEntropyLoss()

    updates_per_epoch = (len(loader_train) + plan.accumulation - 1) // plan.accumulation
    epochs = plan.total_steps // plan.steps_per_epoch
    lr_scheduler, _ = timm.scheduler.create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=epochs - 1,
        warmup_epochs=1,
        warmup_lr=0.0,
        warmup_prefix=True,
        step_on_epochs=False,
        updates_per_epoch=updates_per_epoch,
    )
    lr_scheduler.step_update(0)
    saver = (
        timm.utils.CheckpointSaver(
            model, optimizer, model_ema=model_ema, checkpoint_dir=str(folder), recovery_dir=str(folder)
        )
        if rank == 0
        else None
    )

    watch = guard(plan, loss=lambda model, batch: train_loss_fn(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, loader_train)
    for epoch in range(epochs):
        loader_train.sampler.set_epoch(epoch)
        model.train()
        num_updates, accum_steps = epoch * updates_per_epoch, plan.accumulation
        last_accum_steps = len(loader_train) % accum_steps
        last_batch_idx = len(loader_train) - 1
        last_batch_idx_to_accum = len(loader_train) - last_accum_steps
        optimizer.zero_grad()
        for batch_idx, (input, target) in enumerate(loader_train):
            last_batch = batch_idx == last_batch_idx
            need_update = last_batch or (batch_idx + 1) % accum_steps == 0
            if batch_idx >= last_batch_idx_to_accum:
                accum_steps = last_accum_steps
            if mixup_fn is not None:
                input, target = mixup_fn(input, target)
            with contextlib.nullcontext() if need_update else model.no_sync():
                loss = train_loss_fn(model(input), target)
                if accum_steps > 1:
                    loss = loss / accum_steps
                loss.backward()
            if not need_update:
                continue
            value = {"norm": plan.recipe.clip_norm or 1.0, "value": 0.01, "agc": 0.01}[clip]
            parameters = timm.models.model_parameters(model, exclude_head="agc" in clip)
            timm.utils.dispatch_clip_grad(parameters, value=value, mode=clip)
            optimizer.step()
            num_updates += 1
            optimizer.zero_grad()
            model_ema.update(model, step=num_updates)
            if saver is not None and num_updates % 3 == 0:
                saver.save_recovery(epoch, batch_idx)
            lr_scheduler.step_update(num_updates=num_updates)
        timm.utils.distribute_bn(model, world, True)
        metric = validate(model, loader_eval, validate_loss_fn)
        validate(model_ema.module, loader_eval, validate_loss_fn)
        if saver is not None:
            saver.save_checkpoint(epoch, metric=float(metric))
        lr_scheduler.step(epoch + 1, float(metric))
    watch.finish()
