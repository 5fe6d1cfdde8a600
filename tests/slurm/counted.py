"""A job's training script: it prints the samples of a step over all ranks, and lasts so many seconds."""

import os
import sys
import time


def main():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    samples = torch.tensor(int(os.environ["ISOBATCH_MICRO_BATCH"]) * int(os.environ["ISOBATCH_ACCUMULATION"]))
    dist.all_reduce(samples)
    if dist.get_rank() == 0:
        cpus = os.environ["SLURM_CPUS_ON_NODE"]
        print(f"{samples} samples a step on {dist.get_world_size()} ranks, {cpus} CPUs a node", flush=True)
    for _ in range(int(sys.argv[1])):
        time.sleep(1)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
