"""GPUs that are made up, over the CPU: for child processes, so that what only runs on CUDA runs in the tests.

`environment(folder, gpus=2)` is the environment of such a process; what it spawns has it too. On its PYTHONPATH is this folder, whose
`sitecustomize` puts `cuda_on_cpu` into torch as soon as that is imported, and whose `pynvml` answers for the driver. It says that our code asks CUDA,
NCCL and NVML for what there is and judges what they answer; not what a GPU computes, and nothing of its speed.

    def test_something(tmp_path):
        done = subprocess.run([sys.executable, "script.py"], env=fakecuda.environment(tmp_path), ...)
"""

import os
from pathlib import Path

FOLDER = Path(__file__).parent
MIB = 1 << 20


def environment(folder, gpus=2, mib=1000, host=None, **more):
    """Returns the environment of a process that has GPUs.

    Args:
        folder: for what the processes on these GPUs know of each other.
        gpus: of this host.
        mib: each one's memory; 600 MiB of it are the driver's, and each process takes 500 more.
        host: its name, where several hosts are played.
        more: other variables.
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
