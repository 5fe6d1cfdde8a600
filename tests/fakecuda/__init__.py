"""Simulated GPUs over the CPU, for child processes: the tests then run the branches of CUDA.

`environment(folder, gpus=2)` is the environment of such a process and of its children. On its PYTHONPATH is
this folder: `sitecustomize` puts `cuda_on_cpu` into torch at its import, `pynvml` answers for the driver.
They show our questions to CUDA, NCCL and NVML and our judgements, neither a GPU's results nor its speed.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent
MIB = 1 << 20


def environment(folder, gpus=2, mib=1000, host=None, **more):
    """Returns the environment of a process on GPUs of `mib` each, on `host` where there are several.

    600 MiB of a GPU are the driver's, and each process takes 500 more; the processes meet in `folder`.
    """
    drop = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    drop += ("CUDA_VISIBLE_DEVICES",)  # An empty one hides GPUs that are made up, too.
    contexts = Path(folder) / f"gpus-of-{host}"
    contexts.mkdir(exist_ok=True)
    path = [str(FOLDER), str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **{name: value for name, value in os.environ.items() if name not in drop},
        "PYTHONPATH": os.pathsep.join(path),
        "OMP_NUM_THREADS": "1",
        "FAKE_GPUS": str(gpus),
        "FAKE_GPU_BYTES": str(mib * MIB),
        "FAKE_GPU_CONTEXTS": str(contexts),
        **({} if host is None else {"FAKE_HOST": host}),
        **{name: str(value) for name, value in more.items()},
    }
