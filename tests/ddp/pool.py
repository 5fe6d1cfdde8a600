"""Ranks that stay: one start for many tests."""

import multiprocessing
import os
import socket
import traceback
from datetime import timedelta


def _serve(rank, world_size, port, pipe):
    import torch
    import torch.distributed as dist

    from isobatch.validate.launching import gc_frozen

    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    environment = dict(os.environ)
    while (job := pipe.recv()) is not None:
        function, args, kwargs = job
        try:
            with gc_frozen():  # Looks for a test's own garbage, not in all that torch and trainers have made.
                pipe.send((True, function(*args, **kwargs)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
        # Trainers write WORLD_SIZE and the like; the next test shall not see it.
        os.environ.clear()
        os.environ.update(environment)
    dist.destroy_process_group()


class Pool:
    """Ranks of one gloo group; `pool(function, ...)` gives what the function returned on each."""

    def __init__(self, world_size):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # One process imports torch, and all ranks are its forks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch._dynamo", "ddp.pool", "isobatch.validate.worker"])
        self.pipes, self.processes = [], []
        for rank in range(world_size):
            pipe, pipe_of_rank = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world_size, port, pipe_of_rank), daemon=False
            )
            process.start()
            self.pipes.append(pipe)
            self.processes.append(process)

    limit = 600
    """Seconds that an answer may take."""

    def __call__(self, function, *args, **kwargs):
        for pipe in self.pipes:
            pipe.send((function, args, kwargs))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            assert pipe.poll(self.limit), f"rank {rank} does not answer"
            answers.append(pipe.recv())
        for rank, (good, value) in enumerate(answers):
            assert good, f"rank {rank}:\n{value}"
        return [value for _, value in answers]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
