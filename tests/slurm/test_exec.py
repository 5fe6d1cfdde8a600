"""Slurm starts a job again on other GPUs: with `isobatch exec` an unchanged script does the same steps."""

import sys
import time

import pytest

from cli.test_exec_moved import LOOP, STEPS, compared, line, steps_of, undisturbed
from slurm.test_elastic import requeued, torch_load

pytestmark = pytest.mark.slow
HEAD = "#!/bin/bash\n#SBATCH --nodes=1 --gpus-per-node=2 --ntasks-per-node=4 --requeue --open-mode=append\n"
TORCHRUN = (
    f"{sys.executable} -m torch.distributed.run --nproc-per-node $SLURM_GPUS_ON_NODE --master-port 29611"
)
RANK = "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=127.0.0.1 MASTER_PORT=29612; exec"
WAYS = {
    "torchrun in srun": "srun -n 1 {torchrun} --no-python {words}",
    "srun in front": "srun -n $SLURM_GPUS_ON_NODE bash -c '{rank} {words}'",
    "srun behind": "{exec} srun -n $SLURM_GPUS_ON_NODE bash -c '{rank} {command}'",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_is_requeued_with_three_gpus_does_the_same_steps(cluster, tmp_path, way):
    torch = pytest.importorskip("torch", reason="the job trains with it")
    moved, alone, file = tmp_path / "moved", tmp_path / "alone", tmp_path / "moved" / "job.sbatch"
    moved.mkdir()
    alone.mkdir()
    words = line(moved, *LOOP)
    before, command = words[: words.index("--") + 1], words[words.index("--") + 1 :]
    parts = {"torchrun": TORCHRUN, "rank": RANK, "exec": " ".join(before)}
    script = WAYS[way].format(words=" ".join(words), command=" ".join(command), **parts)
    file.write_text(f"{HEAD}cd {moved}\nexport GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1\n{script}\n")

    number = cluster.sbatch(file)
    end = time.monotonic() + 240
    while len(steps_of(moved)) < 5:
        assert time.monotonic() < end, cluster.output(number)
        time.sleep(0.5)
    requeued(cluster, number, file)
    assert cluster.wait(number) == "COMPLETED", cluster.output(number)

    undisturbed(alone, LOOP)
    assert [*dict.fromkeys(rows[0][3] for _, rows in sorted(steps_of(moved).items()))] == [2, 3]
    assert compared(moved) == compared(alone)
    assert [*compared(moved)] == [*range(STEPS)]
    weights, expected = (torch_load(folder)["net"] for folder in (moved, alone))
    assert all(torch.allclose(weights[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)
