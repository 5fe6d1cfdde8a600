"""A script that spawns its ranks, as PyTorch's tutorials do: no rank has RANK in its environment."""

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(rank: int, ranks: int, micro_batch: int, accumulation: int, port: int) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(data, micro_batch, sampler=DistributedSampler(data, ranks, rank))
    for number, (x, y) in enumerate(loader):
        (nn.functional.mse_loss(model(x), y) / accumulation).backward()
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    numbers = [int(word) for word in sys.argv[1:]]
    mp.spawn(train, (*numbers, port), nprocs=numbers[0])
