"""torchvision's classification reference: its own transforms, mixup in the loader's collation, gradients
cleared between forward and backward, a scheduler stepped each epoch, an averaged copy of the weights,
evaluation of both, and checkpoints.
"""

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.utils.data import default_collate
from torchvision.transforms import v2

CLASSES, SIZE = 5, 32


class Images(torch.utils.data.Dataset):
    """Random pictures."""

    def __init__(self, size, transform):
        draw = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (size, 3, SIZE, SIZE), dtype=torch.uint8, generator=draw)
        self.labels, self.transform = torch.randint(CLASSES, (size,), generator=draw).tolist(), transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.labels[index]


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    """Buffers, too."""

    def __init__(self, model, decay, device="cpu"):
        def averaged(old, new, _):
            return decay * old + (1 - decay) * new

        super().__init__(model, device, averaged, use_buffers=True)


def train_one_epoch(model, criterion, optimizer, data_loader, epoch, model_ema, clip, bound):
    """An epoch."""
    model.train()
    for i, (image, target) in enumerate(data_loader):
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), bound)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        if i % 2 == 0:
            model_ema.update_parameters(model)
            if epoch < 1:
                model_ema.n_averaged.fill_(0)


def evaluate(model, criterion, data_loader):
    """The loss over a loader, and how many were right."""
    model.eval()
    samples = torch.zeros(2)
    with torch.inference_mode():
        for image, target in data_loader:
            output = model(image)
            criterion(output, target)
            samples += torch.tensor([(output.argmax(1) == target).sum(), len(target)])
    dist.barrier()
    dist.all_reduce(samples)
    return float(samples[0] / samples[1])


def main(plan, guard, folder, *, clip="norm", mixed=True):
    """Trains for the plan's epochs."""
    torch.manual_seed(dist.get_rank())
    common = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.5,) * 3, (0.25,) * 3)]
    train = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), *common])
    dataset = Images(plan.recipe.dataset_size, v2.Compose([train, v2.RandomErasing(0.1)]))
    dataset_test = Images(20, v2.Compose(common))
    train_sampler = torch.utils.data.distributed.DistributedSampler(dataset)
    test_sampler = torch.utils.data.distributed.DistributedSampler(dataset_test, shuffle=False)
    mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)])

    def collate_fn(batch):
        return mix(*default_collate(batch)) if mixed else default_collate(batch)

    data_loader = torch.utils.data.DataLoader(
        dataset, batch_size=plan.micro_batch, sampler=train_sampler, num_workers=2, collate_fn=collate_fn
    )
    data_loader_test = torch.utils.data.DataLoader(
        dataset_test, batch_size=plan.micro_batch, sampler=test_sampler, num_workers=1
    )
    model = torchvision.models.shufflenet_v2_x0_5(num_classes=CLASSES)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    decayed, norms = [], []
    for module in model.modules():
        kind = norms if isinstance(module, nn.BatchNorm2d) else decayed
        kind.extend(module.parameters(recurse=False))
    groups = [{"params": norms, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 1e-4}]
    optimizer = torch.optim.SGD(groups, lr=plan.lr, momentum=0.9, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    model_without_ddp = model
    model = torch.nn.parallel.DistributedDataParallel(model)
    model_ema = ExponentialMovingAverage(model_without_ddp, decay=0.99)

    watch = guard(plan, loss=lambda model, batch: criterion(model(batch[0]), batch[1]))
    watch.attach(model, optimizer, data_loader)
    for epoch in range(plan.total_steps // plan.steps_per_epoch):
        train_sampler.set_epoch(epoch)
        bound = plan.recipe.clip_norm or 1.0
        train_one_epoch(model, criterion, optimizer, data_loader, epoch, model_ema, clip, bound)
        lr_scheduler.step()
        evaluate(model, criterion, data_loader_test)
        evaluate(model_ema, criterion, data_loader_test)
        if dist.get_rank() == 0:
            checkpoint = {
                "model": model_without_ddp.state_dict(),
                "optimizer": optimizer.state_dict(),
                "lr_scheduler": lr_scheduler.state_dict(),
                "epoch": epoch,
                "model_ema": model_ema.state_dict(),
            }
            torch.save(checkpoint, folder / f"model_{epoch}.pth")
            torch.save(checkpoint, folder / "checkpoint.pth")
    watch.finish()
