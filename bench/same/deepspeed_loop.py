"""A loop by hand around DeepSpeed's engine, right or with one fault.

python deepspeed_loop.py --stage 2 --offload --per_device_train_batch_size 2 --gradient_accumulation_steps 4
"""

import argparse
import os

import deepspeed
import torch
from net import Layers
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


class Net(Layers):
    """Averages the loss of the tokens before."""

    def forward(self, tokens):
        return nn.functional.cross_entropy(self.logits(tokens), tokens.roll(1, 1).flatten())


def settings(options) -> dict:
    """Returns the engine's configuration."""
    zero = {"stage": options.stage, "overlap_comm": False}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "gradient_accumulation_steps": options.engine_accumulation or options.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": zero,
        "gradient_clipping": options.clip,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", dest="micro_batch", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", dest="accumulation", type=int, default=4)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--offload", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--engine-accumulation", type=int, help="of the configuration, whatever the loop's")
    parser.add_argument("--divide", action="store_true", help="also divides the loss by the accumulation")
    parser.add_argument("--by-hand", action="store_true", help="the engine steps at the loop's word")
    parser.add_argument("--mark-boundary", action="store_true", help="and is told the last pass of a step")
    options = parser.parse_args()
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
        os.environ.setdefault(name, value)  # without a launcher
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    net = Net()
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(1, 64, (8,), generator=generator) for _ in range(256)]
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=settings(options))
    loader = DataLoader(data, options.micro_batch, sampler=DistributedSampler(data, shuffle=False))
    for number, tokens in enumerate(loader, 1):
        is_last = number % options.accumulation == 0
        if options.mark_boundary:
            engine.set_gradient_accumulation_boundary(is_last)
        loss = engine(tokens)
        engine.backward(loss / options.accumulation if options.divide else loss)
        if is_last or not options.by_hand:
            engine.step()
        if engine.global_steps == 20:
            break
    print("weights", sum(float(p.double().square().sum()) for p in net.parameters()))


if __name__ == "__main__":
    main()
