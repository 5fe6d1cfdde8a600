"""Launchers' files as they are run: on the plan's GPUs they start the script, on others they end with the
command that plans anew.
"""

import json
import os
import runpy
import shlex
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import isobatch as ib
from isobatch.cli import main
from isobatch.tools.detect import TOOLS, writer
from isobatch.tools.launchers import port
from isobatch.tools.sheet import Job

LAUNCHERS = ("slurm", "torchrun", "torchx", "skypilot", "kubeflow", "ray-train")
JOB = {"command": ("train.py", "--data", "a b"), "again": 'isobatch plan "it\'s $HOME`x`.toml"'}


def written(tool, **job):
    """A plan for two nodes of four GPUs, as a file."""
    recipe = ib.Recipe(effective_batch=256, lr=0.1, duration="100st")
    plan = ib.plan(recipe, ib.Cluster(nodes=2, gpus_per_node=4, gpu="H100"))
    return plan.to(tool, job=Job(**{**JOB, **job})).text


def started(tool, text, folder, nodes):
    """Starts a file on `nodes` of four GPUs; returns the exit code, its output, and whether the training
    started.
    """
    if tool == "ray-train":
        return started_by_ray(text, folder, 4 * nodes)
    environment = {"SLURM_JOB_ID": "7", "SKYPILOT_TASK_ID": "sky_1", "SKYPILOT_NODE_RANK": "0"}
    for value, names in (
        ("x", "MASTER_ADDR SLURM_JOB_NODELIST SKYPILOT_NODE_IPS"),
        ("4", "SLURM_GPUS_ON_NODE SKYPILOT_NUM_GPUS_PER_NODE PET_NPROC_PER_NODE"),
        (str(nodes), "SLURM_JOB_NUM_NODES SKYPILOT_NUM_NODES PET_NNODES"),
    ):
        environment |= dict.fromkeys(names.split(), value)
    words = ["bash", "-c", text.replace("\nNODES=2\n", f"\nNODES={nodes}\n")]
    if tool == "skypilot":
        task = yaml.safe_load(text)
        words, environment = ["bash", "-c", task["run"]], environment | task["envs"]
    if tool == "kubeflow":
        trainer = yaml.safe_load(text)["spec"]["trainer"]
        words = [word.replace("$$(", "$(") for word in trainer["command"]]
        environment |= {variable["name"]: variable["value"] for variable in trainer["env"]}
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("torchrun", "srun", "torchx", "scontrol"):
        stub = folder / "bin" / name
        stub.write_text(f"#!/bin/sh\necho {'x' if name == 'scontrol' else '$0 $@ >> started'}\n")
        stub.chmod(0o755)
    environment["PATH"] = f"{folder / 'bin'}:/usr/bin:/bin"
    (folder / "started").unlink(missing_ok=True)
    process = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=20)
    return process.returncode, process.stderr, (folder / "started").exists()


def started_by_ray(text, folder, gpus):
    """Runs a worker of a fake Ray with a number of workers."""
    (folder / "train.py").write_text("open('started', 'w').close()")
    (folder / "launch.py").write_text(text)
    ray = {name: ModuleType(name) for name in ("ray", "ray.train", "ray.train.torch")}
    ray["ray.train"].get_context = lambda: SimpleNamespace(get_world_size=lambda: gpus)
    ray["ray.train"].RunConfig = ray["ray.train"].ScalingConfig = ray["ray.train.torch"].TorchTrainer = (
        lambda **_: None
    )
    (folder / "started").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [""])
        patch.setattr(os, "environ", {})
        for name, module in ray.items():
            patch.setitem(sys.modules, name, module)
        names = runpy.run_path("launch.py")
        try:
            names["train"](names["ENVIRONMENT"])
        except RuntimeError as error:
            return 1, f"isobatch: {error}\n", (folder / "started").exists()
    return 0, "", (folder / "started").exists()


def test_every_launcher_is_tried():
    """A launcher's file starts the training itself."""
    names = [name.replace("_", "-") for name in TOOLS]
    assert {name for name in names if is_launcher(name)} == set(LAUNCHERS)


def is_launcher(name):
    try:
        return not writer(name).writer.is_part
    except ib.InputError:  # it is read, not written
        return False


@pytest.mark.parametrize("tool", LAUNCHERS)
def test_a_file_starts_on_the_plans_gpus_and_ends_on_others(tool, tmp_path):
    """`sbatch -N 2` of a script for one node trained with twice the batch."""
    assert started(tool, written(tool), tmp_path, nodes=2) == (0, "", True)
    for nodes in (1, 4):
        code, output, training = started(tool, written(tool), tmp_path, nodes=nodes)
        assert (code, training) == (1, False)
        again = f"plan anew: {JOB['again']} --gpus {4 * nodes} --to {tool}"
        assert output == f"isobatch: planned for 8 GPUs, started on {4 * nodes}; {again}\n"


@pytest.mark.parametrize("tool", LAUNCHERS)
def test_an_elastic_job_starts_on_any_gpus(tool, tmp_path):
    text = written(tool, elastic=True)
    assert all(started(tool, text, tmp_path, nodes=nodes)[::2] == (0, True) for nodes in (1, 2, 4))


def test_the_command_that_plans_anew_is_that_of_the_file(tmp_path, monkeypatch, capsys, ran):
    monkeypatch.chdir(tmp_path)
    fields = "--set effective_batch=256 --set lr=0.1 --set duration=9st"
    (tmp_path / "job.json").write_text(json.dumps({"effective_batch": 256, "lr": 0.1, "duration": "9st"}))
    arguments = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 9}
    (tmp_path / "args.json").write_text(json.dumps(arguments))
    line = "plan job.json --gpus 8 -o plan.json"
    assert main(line.split()) == 0
    options = "--rule sqrt --script 'my.py -x'"
    cases = {
        "plan job.json --gpus 8 --to slurm": "plan job.json",
        f"plan {fields} --gpus 8 --to slurm": f"plan {fields}",
        "plan --from args.json --set gpus=8 --gpus 8 --to slurm": "plan --from args.json --set gpus=8",
        f"plan --nodes 2 job.json --to=slurm --gpus-per-node=4 {options}": f"plan job.json {options}",
        "plan plan.json --to slurm": "replan plan.json --at-step STEP",
        "replan plan.json --at-step 4 --gpus 8 --to slurm": "replan plan.json --at-step STEP",
    }
    for line, again in cases.items():
        capsys.readouterr()
        assert f"; plan anew: isobatch {again} --gpus $GPUS --to slurm" in ran(shlex.split(line)).out


@pytest.mark.parametrize("tool", ["slurm", "torchrun", "torchx", "kubeflow", "ray-train"])
def test_the_files_of_a_table_do_not_meet(tool, tmp_path):
    """Hundreds of jobs on the same machines: names of their own, a check in each, and ports that seldom are
    the same.
    """
    rows = "".join(f"job {number},256,0.1,9st\n" for number in range(91))
    (tmp_path / "jobs.csv").write_text(f"job,effective_batch,lr,duration\n{rows}")
    (tmp_path / "clusters.csv").write_text("cluster,nodes,gpus_per_node\na,1,4\nb,2,8\nc,4,8\n")
    plans, folder = str(tmp_path / "plans.csv"), tmp_path / "out"
    clusters = str(tmp_path / "clusters.csv")
    assert main(["fleet", str(tmp_path / "jobs.csv"), clusters, "-o", plans]) == 0
    assert main(["report", plans, "--clusters", clusters, "--to", tool, "-o", str(folder)]) == 0
    texts = [path.read_text() for path in folder.rglob(writer(tool).writer.file)]
    assert len(texts) == 3 * 91
    # torchrun of one node has no name.
    assert len({*texts}) == (2 * 91 + 1 if tool == "torchrun" else 3 * 91)
    assert all("plan anew" in text and "29500" not in text for text in texts)


def test_jobs_have_ports_of_their_own():
    ports = [port(f"job-{number}") for number in range(273)]
    assert len({*ports}) > 265 and all(15000 <= number < 30000 for number in ports)


@pytest.mark.parametrize("gpus", [4, 8, 16])
def test_the_check_that_a_file_of_settings_names_is_one(gpus, tmp_path):
    """The Trainer's file has the batch per GPU alone: its comment is a command that tells 8 GPUs from
    others.
    """
    recipe = ib.Recipe(effective_batch=256, gpus=8, micro_batch=32, lr=2e-5, duration="100st")
    text = ib.plan(recipe, 8).to("transformers")
    text.save(tmp_path / text.file)
    words = next(note for note in text.notes if "isobatch doctor" in note).partition("isobatch ")[2]
    command = words.replace("FILE", str(tmp_path / text.file)).replace('"$WORLD_SIZE"', str(gpus))
    assert main(command.partition(" ends ")[0].split()) == (0 if gpus == 8 else 1)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("job,effective_batch,lr\na,256,0.1\n", "has no column 'status': it does not hold a fleet's plans"),
        ("job,status,lr\na,ok,0.1\n", "has no column 'effective_batch'"),
        ("job,status,effective_batch,lr\na,ok,256,0.1\n", "world_size is missing"),
    ],
)
def test_a_table_without_what_a_launch_needs_is_named(columns, says, tmp_path, ran):
    table = tmp_path / "plans.csv"
    table.write_text(columns)
    error = ran(["report", str(table), "--to", "torchrun", "-o", str(tmp_path / "jobs")], 2).err
    assert str(table) in error and says in error
