"""The overhead of the validator's own measuring over a bare DDP loop. In one run, in turns:

torchrun --standalone --nproc-per-node 2 bench/validate_overhead.py
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

import isobatch as ib
from isobatch.integrations.torch import PlanLR
from isobatch.validate import Options
from isobatch.validate.ranks.group import Group
from isobatch.validate.training import Training
from isobatch.validate.workload import perceptron

STEPS, TURNS = 40, 8


def main() -> None:
    recipe = ib.Recipe(effective_batch=256, lr=0.01, optimizer="sgd", duration="100000st", micro_batch=64)
    plan = ib.plan(recipe, 2)
    options = Options(device="cpu")
    group = Group(options)
    bare, control = (Training(plan, options, perceptron(plan, 1_000_000), group) for _ in range(2))
    optimizers = [training.optimizer(training.model) for training in (bare, control)]
    schedulers = [PlanLR(optimizer, plan) for optimizer in optimizers]
    batches = bare.few_in_turn(1)
    weights = bare.weights(batches)

    def step(training: Training, index: int) -> None:
        training.backward(batches, weights)
        optimizers[index].step()
        optimizers[index].zero_grad(set_to_none=True)
        schedulers[index].step()

    for _ in range(5):
        step(bare, 0)
        step(control, 1)
    ways = {"bare": (bare, 0), "bare, another model": (control, 1), "validator": (bare, 0)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS):
        for name in [*list(ways)[turn % 3 :], *list(ways)[: turn % 3]]:  # nobody is always first
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(STEPS):
                if name == "validator":
                    group.time(lambda: step(bare, 0))
                else:
                    step(*ways[name])
            seconds[name].append((time.perf_counter() - begun) / STEPS)
    if group.rank == 0:
        reference = statistics.median(seconds["bare"])
        print(
            f"torch {torch.__version__}, 2 gloo ranks, mlp of 1e6 parameters, {STEPS} steps × {TURNS} turns"
        )
        for name, samples in seconds.items():
            median = statistics.median(samples)
            turns = [own / bare - 1 for own, bare in zip(samples, seconds["bare"], strict=True)]
            print(
                f"{name}: {median * 1e3:.2f} ms, {median / reference - 1:+.1%}; by turn "
                f"{statistics.median(turns):+.1%}"
            )
    group.close()


if __name__ == "__main__":
    main()
