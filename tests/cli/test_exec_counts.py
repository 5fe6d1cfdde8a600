"""`isobatch exec`: the innermost launcher says the number of GPUs, in the environment and in the command."""

import shlex
from pathlib import Path

import pytest

import isobatch as ib

WORDS = ("{gpus}", "{micro_batch}", "{accumulation}", "{lr}", "{total_steps}")


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"WORLD_SIZE": "4", "RANK": "2"}, 4),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}, 2),
        ({"SLURM_NTASKS": "4"}, 4),
        ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4"}, 8),
        ({"OMPI_COMM_WORLD_SIZE": "3", "SLURM_NTASKS": "2"}, 3),
        ({"PMI_SIZE": "6"}, 6),
        # torchrun on each of two nodes that srun has started
        ({"WORLD_SIZE": "12", "RANK": "7", "LOCAL_WORLD_SIZE": "6", "SLURM_STEP_NUM_TASKS": "2"}, 12),
        ({"WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "x", "PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "1"}, 3),
    ],
)
def test_the_innermost_launcher_says_the_count(become, environment, count):
    words, handed = become("--", "train", *WORDS, **environment)
    plan = ib.plan(ib.Recipe.load(Path(handed["TMPDIR"], "job.toml")), count)
    assert words == ["train", str(count), str(plan.micro_batch), str(plan.accumulation), "0.1", "84"]
    assert ib.Plan.load(handed["ISOBATCH_PLAN"]) == plan
    assert (handed["ISOBATCH_MICRO_BATCH"], handed["ISOBATCH_WORLD_SIZE"]) == (words[2], str(count))


JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
ALLOCATED = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "3", "SLURM_NNODES": "3", "SLURM_GPUS_ON_NODE": "2"}
TOLERANT = ("--batch-tolerance", "0.2")


@pytest.mark.parametrize(
    ("command", "environment", "count"),
    [
        ("torchrun --nnodes 2 --nproc-per-node 4 t.py", {"SLURM_STEP_NUM_TASKS": "2"}, 8),
        ("torchrun t.py", {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3"}, 6),
        ("torchrun --nproc-per-node 4 t.py", {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "3"}, 8),
        ("python -m torch.distributed.run --nproc-per-node 3 t.py", {}, 3),
        ("accelerate launch --num_processes 6 t.py", {}, 6),
        ("srun python t.py", JOB, 4),
        ("srun -n 2 python t.py -n 8", JOB, 2),
        ("mpirun -np 3 python t.py", {}, 3),
        # the innermost of several
        ("srun torchrun --nnodes 3 --nproc-per-node 2 t.py", ALLOCATED, 6),
        ("srun accelerate launch --num_processes 6 t.py", ALLOCATED, 6),
        ("srun python -u -m torch.distributed.run --nnodes=3 --nproc_per_node=2 t.py", ALLOCATED, 6),
        ("srun -u --ntasks 3 --mpi none torchrun --nnodes 3 --nproc-per-node 2 t.py", {}, 6),
        ("mpirun --mca btl tcp -np 3 torchrun --nnodes 3 --nproc-per-node 2 t.py", {}, 6),
        ("srun uv run --no-sync torchrun --nnodes 3 --nproc-per-node 2 t.py", ALLOCATED, 6),
        ("accelerate-launch --num_processes 6 t.py", ALLOCATED, 6),
        ("bash -c 'cd x && exec torchrun --nproc-per-node 6 t.py'", {"WORLD_SIZE": "2"}, 6),
        ("srun bash -c 'export A=1; srun -n 9 true; torchrun --nnodes 9 t.py'", ALLOCATED, 9),
        ("bash -c 'torchrun --nnodes 3 \\\n  --nproc-per-node 2 t.py'", {"WORLD_SIZE": "2"}, 6),
        ("bash -c '# torchrun --nproc-per-node 6 t.py\npython t.py'", {"WORLD_SIZE": "2"}, 2),
        ("bash -c 'torchrun --nproc-per-node $(nvidia-smi -L | wc -l) t.py'", {"WORLD_SIZE": "2"}, 2),
        ("swift sft --x 1", {"NNODES": "3", "NPROC_PER_NODE": "2"}, 6),
        # options of the program, and values
        ("srun --mpi=pmix ./train.sh -n 2", JOB, 4),
        ("srun -n3 -c 2 ./train.sh -n 2", JOB, 3),
        ("srun -lO -N2 -n 3 --cpu-bind none ./train.sh", JOB, 3),
        ("mpirun -mca n 9 -x A -np 3 python t.py -np 2", {}, 3),
        ("./train.sh --launcher deepspeed", {"WORLD_SIZE": "2"}, 2),
        ("python t.py --launcher torchrun", {"WORLD_SIZE": "2"}, 2),
        ("bash -c 'echo torchrun; python t.py --deepspeed a.json'", {"WORLD_SIZE": "2"}, 2),
    ],
)
def test_a_launcher_in_the_command_says_the_count(become, command, environment, count):
    typed = shlex.split(command)
    words, _ = become(
        "--max-micro-batch", "24", *TOLERANT, "--", *typed, "{world_size}:{micro_batch}", **environment
    )
    assert words[:-1] == typed
    assert words[-1].partition(":")[0] == str(count)


@pytest.mark.parametrize(
    ("options", "environment", "message"),
    [
        ("-- t", {}, "the number of processes is missing: no launcher has set WORLD_SIZE, SLURM_NTASKS"),
        (
            "-- t",
            {"WORLD_SIZE": "-2"},
            "WORLD_SIZE must be a whole number of processes from 1, got the text '-2'",
        ),
        ("-- t", {"SLURM_NTASKS": "four"}, "SLURM_NTASKS must be a whole number of processes from 1"),
        ("-- t", {"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number of processes from 1"),
        (
            "-- t",
            {"WORLD_SIZE": "4", "SLURM_NTASKS": "2"},
            "WORLD_SIZE is 4, and SLURM_NTASKS is 2: two counts",
        ),
        ("--gpus 4 -- t", {"WORLD_SIZE": "2"}, "--gpus is 4, and WORLD_SIZE is 2: two counts"),
        (
            "--gpus 4 -- torchrun --nproc-per-node 2 t.py",
            {},
            "--gpus is 4, and torchrun's number of processes is 2",
        ),
        (
            "-- torchrun --nnodes 1:4 t.py",
            {},
            "torchrun's number of processes is open: pass --gpus N, or put exec",
        ),
        ("-- srun -N 2 --ntasks-per-node 4 t", JOB, "srun's number of tasks is open: pass --gpus N"),
        ("-- bash -c 'torchrun --nnodes $N t.py'", {}, "torchrun's number of processes is open"),
        ("-- bash -c 'torchrun t.py; mpirun -n 2 t'", {}, "mpirun's number of tasks is open"),
        (
            "-- srun deepspeed --hostfile h --num_gpus 4 t.py",
            ALLOCATED,
            "deepspeed's number of processes is open",
        ),
        ("-- horovodrun -np 4 python t.py", {"WORLD_SIZE": "2"}, "horovodrun's number of processes is open"),
        ("-- mpirun -np 2 a : -np 3 b", {}, "mpirun's number of tasks is open"),
        ("-- t", {"PET_NNODES": "1:4"}, "PET_NNODES × PET_NPROC_PER_NODE is open: pass"),
        ("-- t", JOB, "no srun has started them here"),
        ("--gpus 0 -- t", {}, "--gpus must be at least 1, got 0"),
        ("--gpus 4 -o - -- t {lr}", {}, "stdout is the command's: name a file"),
        ("--gpus 4 --", {}, "COMMAND is missing: write it behind --"),
        ("--gpus 4", {}, "COMMAND is missing: write it behind --"),
        ("--gpus 4 -- t {mico_batch}", {}, "unknown brace {mico_batch}: did you mean {micro_batch}?"),
        (
            "--gpus 4 -- t {print}",
            {},
            "a plan has no such column. To hand on {print} itself, write {{print}}",
        ),
        ("--gpus 4 -- t {hours}", {}, "{hours} has no value: this plan does not know hours"),
        ("--gpus 5 --split uneven -- t {micro_batch}", {}, "{micro_batch} is not the same on all ranks"),
    ],
)
def test_bad_process_counts_are_refused(become, options, environment, message):
    code, error = become(*shlex.split(options), **environment)
    assert code == 2
    assert message in error
    assert error.startswith("isobatch exec: ")
    assert error.count("\n") == 1


def test_the_count_of_an_allocation_gives_way_to_the_typed_one(become):
    words, _ = become("--gpus", "8", "--", "sh", "{gpus}", SLURM_JOB_ID="7", SLURM_NTASKS="2")
    assert words == ["sh", "8"]


MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "CUDA_VISIBLE_DEVICES": "0,1,2"}
PET = {"WORLD_SIZE": "2", "PET_NNODES": "1:4"}
TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_GPUS_ON_NODE": "4"}


@pytest.mark.parametrize(
    ("environment", "command", "who"),
    [
        (TASK, "t", "SLURM_NTASKS is 2, and SLURM_GPUS_ON_NODE gives each 4 GPUs"),
        ({**TASK, "SLURM_JOB_ID": "7", "SLURM_NNODES": "2"}, "t", "SLURM_GPUS_ON_NODE gives each 4 GPUs"),
        ({**TASK, "SLURM_GPUS_PER_TASK": "h100:3"}, "t", "--gpus-per-task gives each 3 GPUs"),
        (ALLOCATED, "srun t", "srun's number of tasks is 3, and SLURM_GPUS_ON_NODE gives each 2 GPUs"),
        (
            ALLOCATED,
            "srun -n 2 --gpus-per-task=3 t",
            "srun's number of tasks is 2, and --gpus-per-task gives",
        ),
        ({**TASK, "WORLD_SIZE": "2", "SLURM_NNODES": "2"}, "t", "WORLD_SIZE is 2, and SLURM_GPUS_ON_NODE"),
        (MPI, "t", "OMPI_COMM_WORLD_SIZE is 2, and CUDA_VISIBLE_DEVICES gives each 3 GPUs"),
        (
            {**PET, "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"},
            "t",
            "WORLD_SIZE is 2, and PET_NPROC_PER_NODE is auto",
        ),
        ({**PET, "PET_NPROC_PER_NODE": "4"}, "t", "WORLD_SIZE is 2, and PET_NPROC_PER_NODE is 4"),
    ],
)
def test_a_process_with_several_gpus_is_asked_about(become, environment, command, who):
    code, error = become("--", *command.split(), "{micro_batch}", **environment)
    assert code == 2
    assert f"{who}" in error and "pass --gpus-per-process N" in error
    typed = become("--gpus-per-process", "2", "--", *command.split(), "{micro_batch}", "{gpus}")[0]
    assert int(typed[-1]) in (4, 6)


@pytest.mark.parametrize(
    "environment",
    [
        {**TASK, "SLURM_NTASKS": "4", "SLURM_NNODES": "1"},
        {**TASK, "SLURM_NTASKS": "4", "SLURM_GPUS_PER_TASK": "1"},
        {**TASK, "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_NNODES": "2"},
        {**TASK, "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
        {"WORLD_SIZE": "4", "PET_NNODES": "1:4", "PET_NPROC_PER_NODE": "1"},
    ],
)
def test_a_process_with_one_gpu_is_not(become, environment):
    assert become("--", "t", "{gpus}:{micro_batch}", **environment)[0] == ["t", "4:6"]


def test_the_typed_number_of_gpus_may_be_the_tasks_gpus(become):
    words = ("--", "t", "{gpus}:{micro_batch}")
    assert become("--gpus", "8", *words, **TASK)[0] == ["t", "8:3"]
    code, error = become("--gpus", "6", *words)
    assert code == 2 and "--gpus is 6, and SLURM_NTASKS is 2" in error
