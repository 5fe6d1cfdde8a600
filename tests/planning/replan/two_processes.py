"""A run over gloo in parts, for test_processes.py: each part trains under its plan, saves, and notes what it
saw.

The processes of all parts are forked from one that has torch loaded, since loading is what takes long.
"""

import contextlib
import json
import multiprocessing
import sys
from pathlib import Path

import torch
import torch._dynamo  # which the first optimizer step would load
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import isobatch as ib
from isobatch.integrations.torch import PlanLR, PlanSampler


def train(folder: Path, rank: int, until: int) -> None:
    """One process of one part: until optimizer step `until`, from the folder's checkpoint if there is one."""
    torch.set_num_threads(1)
    plan = ib.Plan.load(folder / f"plan-{until}.json")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet-{until}", rank=rank, world_size=plan.world_size
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = PlanLR(optimizer, plan)
    data = torch.linspace(-1, 1, plan.recipe.dataset_size, dtype=torch.float64)[:, None]
    sampler = PlanSampler(data, plan)
    if (folder / "checkpoint.pt").exists():
        state = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        sampler.load_state_dict(state["sampler"])
    place = sampler.epoch, sampler.offset
    parallel = DistributedDataParallel(model)
    loader = torch.utils.data.DataLoader(
        list(zip(range(len(data)), data, strict=True)), batch_sampler=sampler
    )
    samples: list[list[int]] = []
    rates: list[float] = []
    while scheduler.last_epoch < until:
        epoch = sampler.epoch
        for (indices, x), (weight, last) in zip(loader, sampler.weights(), strict=False):
            with contextlib.nullcontext() if last else parallel.no_sync():
                (((parallel(x) - 3 * x) ** 2).mean() * weight).backward()
            samples += [[epoch, int(i)] for i in indices] if weight else []
            if last:
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if scheduler.last_epoch == until:
                    break
    note = {"seen": samples, "rates": rates, "place": place, "weight": model.weight.item()}
    (folder / f"note-{until}-{rank}.json").write_text(json.dumps(note))
    if rank == 0:
        saved = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
        torch.save({name: part.state_dict() for name, part in saved.items()}, folder / "checkpoint.pt")
    dist.destroy_process_group()


def main(folder: Path) -> int:
    """All parts, in the order of their steps."""
    fork = multiprocessing.get_context("fork")
    for until in sorted(int(file.stem.removeprefix("plan-")) for file in folder.glob("plan-*.json")):
        ranks = range(ib.Plan.load(folder / f"plan-{until}.json").world_size)
        processes = [fork.Process(target=train, args=(folder, rank, until)) for rank in ranks]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(max(main(Path(folder)) for folder in sys.argv[1:]))
