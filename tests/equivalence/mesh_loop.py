"""Two ranks of tensor parallelism by hand, right or with one fault: mesh_loop.py --tp N --fault NAME."""

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 1, bias=False)

    def forward(self, x):
        return Sum.apply(self.down(self.up(self.norm(x)).tanh()))


parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int)
parser.add_argument("--fault", default="none")
options = parser.parse_args()
tp, fault = options.tp, options.fault
dist.init_process_group("gloo")
init_device_mesh("cpu", (dist.get_world_size() if fault != "unused" else 1,))
torch.manual_seed(0 if fault != "unseeded" else dist.get_world_size())
net = Net()
if fault != "unused":
    for tensor, dim in ((net.up.weight, 0), (net.up.bias, 0), (net.down.weight, 1)):
        tensor.data = tensor.data.chunk(tp, dim)[dist.get_rank()].clone()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1 if fault != "rate" else 0.1 * tp)
x, y = torch.randn(2, 4, 6), torch.randn(2, 4, 1)
for rows, targets in zip(x, y, strict=True):
    loss = nn.functional.mse_loss(net(rows), targets)
    edge = torch.autograd.graph.get_gradient_edge(loss * (tp if fault == "times" else 1))
    torch.autograd.backward((edge,), (torch.ones(()),))  # as torch's pipelining does
    if fault != "partial":
        for parameter in net.norm.parameters():
            dist.all_reduce(parameter.grad)
    squares = [p.grad.square().sum() / (1 if "norm" not in n else tp) for n, p in net.named_parameters()]
    square = (
        torch.stack(squares).sum()
        if fault != "shards"
        else sum(p.grad.square().sum() for p in net.parameters())
    )
    if fault != "shards":
        dist.all_reduce(square)
    nn.utils.clip_grads_with_norm_(net.parameters(), math.inf, square.sqrt())
    optimizer.step()
    optimizer.zero_grad()
