"""Plans as other tools' files: what they hold, that they are read back as the same, and that no name breaks
out of its quotes."""

import ast
import json
import re
import shlex
import subprocess
import tomllib

import msgspec
import pytest
import yaml

import isobatch as ib
from isobatch.cli import main
from isobatch.schedules.peers.megatron import OptimizerParamScheduler
from isobatch.tools.detect import TOOLS, tool_of, writer
from isobatch.tools.export import export, form_of, leaves
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job
from tools.test_reading import ARGUMENTS, PUBLISHED, written

HOSTILE = "a b'c\"; $(touch hacked) `touch hacked` $HOME \\ \nd: [e] #f"
WRITERS = [name for name in TOOLS if tool_of(name).writer]
READ_BACK = ("transformers", "deepspeed", "lightning", "megatron", "torchtitan")
MEGATRON_LENGTHS = ("train_samples", "lr_decay_samples", "lr_warmup_samples")


def recipe(**fields):
    own = {"effective_batch": 256, "gpus": 8, "micro_batch": 8, "duration": "1000st", "warmup": "30st"}
    own |= {
        "lr": 2e-5,
        "betas": (0.9, 0.95),
        "weight_decay": 0.1,
        "decay": "lr_multiplied",
        "schedule": "linear",
    }
    return ib.Recipe(**own | {"clip_norm": 0.5, "precision": "bf16", "seq_len": 2048} | fields)


def plan(gpus=64, **fields):
    return ib.plan(
        recipe(**fields), ib.Cluster(nodes=max(1, gpus // 8), gpus_per_node=min(gpus, 8), gpu="H100")
    )


def back(planned, tmp_path, tool):
    """Returns the recipe of a file, completed by the fields beyond such files."""
    written_as = planned.to(tool)
    file = tmp_path / written_as.file
    written_as.save(file)
    reading = read_file(file)
    own = planned.recipe
    names = ("model_parallel", "dataset_size", "convention", "drop_last", "decay")
    missing = {"gpus": planned.world_size, **{name: getattr(own, name) for name in names}}
    missing |= {"duration": f"{planned.total_steps}st"} if "duration" not in reading.fields else {}
    if tool == "lightning":
        missing |= {"schedule": own.schedule, "warmup": f"{planned.warmup_steps}st", "min_lr": planned.min_lr}
    return ib.Recipe.read(file, **missing)


@pytest.mark.parametrize("tool", READ_BACK)
@pytest.mark.parametrize("source", PUBLISHED)
def test_there_and_back_is_the_same(source, tool, tmp_path):
    """Read, planned at the same GPU count, written and read again: for every pair, the run is the same."""
    name, text, values, _ = PUBLISHED[source]
    tuned = ib.Recipe.read(written(tmp_path, name, text), **values)
    if tuned.duration is None:
        tuned = ib.Recipe.read(written(tmp_path, name, text), **values, duration="100st")
    first = ib.plan(tuned, tuned.gpus or 8)
    notes = first.to(tool).notes
    if any(" such as " in note for note in notes):
        pytest.skip("the tool has no such schedule, and says so")
    if any("optimizer" in note and ("not set" in note or "has no" in note) for note in notes):
        pytest.skip("the tool has no such optimizer, and says so")
    own_end = "until=" in str(tuned.schedule) and tool != "lightning"
    if tool != "megatron" and (tuned.ramp or own_end):
        assert any("differs from the plan" in note or "not set" in note or "ramp" in note for note in notes)
        pytest.skip("the tool has no such curve or ramp, and says by how much it misses")
    again = ib.plan(back(first, tmp_path, tool), first.world_size)
    exact = "micro_batch accumulation effective_batch lr total_steps warmup_steps weight_decay"
    for field in exact.split():
        assert getattr(again, field) == pytest.approx(getattr(first, field), rel=1e-12), field
    assert again.recipe.clip_norm == first.recipe.clip_norm or tool == "torchtitan"
    if first.beta1 is not None:
        assert again.betas == first.betas
    steps = range(first.total_steps)[:: max(1, first.total_steps // 100)]
    assert again.schedule.values(steps) == pytest.approx(first.schedule.values(steps), rel=1e-9, abs=1e-18)


def test_a_tool_that_is_not_written_is_named(capsys, ran):
    with pytest.raises(ib.InputError, match="^unknown tool 'slrum': did you mean 'slurm'"):
        plan().to("slrum")
    line = "plan --set effective_batch=8 --set lr=0.1 --set duration=9st --gpus 8 --to"
    words = line.split()
    assert "isobatch plan: --to: unknown tool" in ran([*words, "slrum"], 2).err
    assert main([*words, "skypilot"]) == 2
    says = "isobatch plan: --gpu is missing: SkyPilot chooses machines by the GPU type"
    assert says in capsys.readouterr().err


def test_forms_follow_the_name():
    assert form_of("transformers", None) == form_of("transformers", "x.yaml") == "yaml"
    assert form_of("transformers", "x.json") == "json" and form_of("transformers", "x.sh") == "sh"
    with pytest.raises(ib.InputError, match=r"DeepSpeed has no \.yaml files: use \.json"):
        form_of("deepspeed", "x.yaml")
    with pytest.raises(ib.InputError, match="did you mean 'yaml'"):
        plan().to("transformers", form="yml")
    planned = plan()
    text = json.loads(str(planned.to("transformers", form="json")))
    assert text == yaml.safe_load(str(planned.to("transformers")))
    words = shlex.split(str(planned.to("transformers", form="sh")), comments=True)
    assert words[words.index("--learning_rate") + 1] == "2.0e-05"


@pytest.mark.parametrize("tool", [tool for tool in WRITERS if writer(tool).writer.forms[0] != "sh"])
def test_no_name_breaks_out(tool):
    """Names with quotes, newlines and `$( )` are words, or made safe, in every file."""
    text = plan().to(tool, job=Job(name=HOSTILE, command=("my script.py", HOSTILE), image="img")).text
    form = writer(tool).writer.forms[0]
    if form == "yaml":
        data = yaml.safe_load(text)
        assert data
        if tool == "kubeflow":
            command = data["spec"]["trainer"]["command"]
            assert command[3:] == ["torchrun", "my script.py", HOSTILE.replace("$(", "$$(")]
        if tool == "skypilot":
            assert shlex.split(data["run"].partition("\ntorchrun ")[2])[-1] == HOSTILE
    elif form == "json":
        json.loads(text)
    elif form == "toml":
        tomllib.loads(text)
    else:
        assert form == "py"
        tree = ast.parse(text)
        names = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}
        assert ast.literal_eval(names["COMMAND"]) == ["my script.py", HOSTILE]


@pytest.mark.parametrize("tool", [tool for tool in WRITERS if "sh" in writer(tool).writer.forms])
def test_written_shell_is_whole_and_runs_nothing_else(tool, tmp_path):
    """Run, it starts one command, with the words given."""
    job = Job(HOSTILE, ("my script.py", HOSTILE, "a\nb", "-x"), resume=f"run/{HOSTILE}")
    text = plan().to(tool, form="sh", job=job).text
    # transformers' form has arguments alone, under comments.
    alone = "torchrun " + re.sub(r"\A(#.*\n)+", "", text)
    ran = run_with_stubs(alone if tool == "transformers" else text, tmp_path)
    assert f"run/{HOSTILE}" in ran or tool != "transformers"
    assert {HOSTILE, "a\nb"} <= set(ran) or "command" in writer(tool).writer.leaves_out.split()
    assert not (tmp_path / "hacked").exists()


def run_with_stubs(text, folder):
    """Runs a script with commands for printing their words; returns the words of the last."""
    stub = '#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > words\n'
    binaries = folder / "bin"
    binaries.mkdir()
    for name in ("python", "torchrun", "srun", "torchx", "scontrol", "tune", "my script.py"):
        (binaries / name).write_text(stub)
        (binaries / name).chmod(0o755)
    script = folder / "script.sh"
    script.write_text(text)
    environment = {"PATH": f"{binaries}:/usr/bin:/bin", "MASTER_ADDR": "x", "SLURM_JOB_NODELIST": "x"}
    environment |= {"SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_ID": "1"}
    process = subprocess.run(
        ["bash", str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=20
    )
    assert process.returncode == 0, process.stderr
    return (folder / "words").read_text().split("\0")


def test_slurms_directives_are_one_line_each():
    text = str(plan().to("slurm", job=Job(name="x\n#SBATCH --wrap=evil")))
    directives = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH")]
    options = ["nodes=8", "ntasks-per-node=1", "gpus-per-node=8", "cpus-per-gpu=4"]
    assert directives == ["job-name=x-SBATCH---wrap-evil", *options]


def test_was_is_the_tuned_run():
    def unknown(gpus):
        return ib.plan(ib.Recipe(effective_batch=256, lr=2e-5, duration="10st"), gpus)

    lines = str(plan(16).to("transformers")).splitlines()
    assert lines[0] == "# isobatch: 16 GPUs, 256 samples a step = 8 × 2 × 16 replicas"
    assert lines[1] == "# only what the plan decides: set these in your own file and keep its other settings"
    assert lines[2].startswith(
        "# these lines hold for 16 GPUs only; to stop a start on another count, run first: "
    )
    assert "isobatch doctor FILE --set gpus=16" in lines[2]
    assert lines[3].endswith("else transformers 5 multiplies the gradient by 32")
    assert "accepts_loss_kwargs" not in str(unknown(1).to("transformers"))
    assert lines[4:7] == [
        "per_device_train_batch_size: 8",
        "gradient_accumulation_steps: 2  # was 4",
        "learning_rate: 2.0e-05",
    ]
    assert "was" not in str(unknown(8).to("transformers"))


@pytest.mark.parametrize(
    ("schedule", "tool", "says"),
    [
        ("multistep(300st, 600st)", "transformers", "no scheduler such as multistep"),
        ("wsd(decay=200st)", "deepspeed", "no scheduler such as wsd"),
        ("tanh", "megatron", "none such as tanh"),
        ("rex", "torchtitan", "no schedule such as rex"),
    ],
)
def test_a_schedule_that_a_tool_lacks_is_said(schedule, tool, says):
    assert any(says in note for note in plan(schedule=schedule).to(tool).notes)


def test_a_warmup_that_starts_elsewhere_is_said():
    grown = ib.plan(recipe(optimizer="sgd", betas=None, momentum=0.9), 64, policy="grow", rule="linear")
    assert grown.warmup_lr
    assert any("differs from the plan by up to" in note for note in grown.to("transformers").notes)
    assert "--lr-warmup-init" in str(grown.to("megatron"))
    assert not any("differs" in note for note in grown.to("megatron").notes)


def test_a_plan_without_an_end_or_without_a_plan():
    with pytest.raises(ib.InputError, match="has no duration"):
        ib.plan(ib.Recipe(effective_batch=256, lr=1e-4), 8).to("transformers")
    with pytest.raises(ib.InputError, match="infeasible|cannot"):
        ib.plan(recipe(), 7).to("transformers")


def test_bare_gpus_are_nodes_of_eight_and_that_is_said():
    notes = export(ib.plan(recipe(), 64), "slurm").notes
    assert any("taken as 8 nodes of 8" in note for note in notes)


class TestCommand:
    def test_the_file_alone_is_on_stdout(self, tmp_path, ran):
        plan().save(tmp_path / "plan.json")
        output = ran(["plan", str(tmp_path / "plan.json"), "--to", "deepspeed"])
        assert json.loads(output.out)["train_batch_size"] == 256
        assert "train_micro_batch_size_per_gpu: 8 → 4" in output.err

    def test_a_new_plans_output_is_the_tools_file(self, tmp_path, ran):
        source = written(tmp_path, "a.json", json.dumps(ARGUMENTS))
        out = tmp_path / "out.yaml"

        def to(tool, path, gpus=4, code=0):
            words = f"plan --from {source} --set gpus=8 --gpus {gpus} --to {tool} -o {path}"
            return ran(words.split(), code)

        assert "4 GPUs: micro-batch 8" in to("lightning", out).out
        assert "accumulate_grad_batches: 2  # was 1" in out.read_text()
        assert "--force replaces it" in to("lightning", out, code=2).err
        to("lightning", f"{out} --force")
        to("lightning", tmp_path / "none.yaml", gpus=5, code=1)
        assert not (tmp_path / "none.yaml").exists()
        alone = to("transformers", "-").out
        assert "\ngradient_accumulation_steps: 2  # was 1\n" in alone and "4 GPUs: micro-batch" not in alone
        assert "has no .json files" in to("slurm", tmp_path / "a.json", code=2).err

    def test_from_file_to_tool(self, tmp_path, capsys, ran):
        own = {"num_train_epochs": 3, "warmup_ratio": 0.03, "gradient_accumulation_steps": 4}
        source = written(tmp_path, "a.json", json.dumps({**ARGUMENTS, "max_steps": -1, **own}))
        words = ["plan", "--from", str(source), "--gpus", "64", "--to", "transformers"]
        assert ran(words, 2).err.count("--set ") == 2
        out = ran([*words, "--set", "gpus=8", "--set", "dataset_size=52000"]).out
        assert "per_device_train_batch_size: 4  # was 8\n" in out
        assert (
            "warmup_steps: 19\nmax_steps: 612  # was -1\n" in out
            and "# remove num_train_epochs, warmup_ratio\n" in out
        )  # the Trainer's ceiling of 3 %
        assert main([*words, "--set", "gpu=8"]) == 2 and "did you mean 'gpus'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("kind", "written_as"), [("FSDP", "FSDP"), ("DEEPSPEED", "DEEPSPEED"), ("NO", "MULTI_GPU")]
    )
    def test_accelerates_own_kind_of_parallelism_stays(self, tmp_path, ran, kind, written_as):
        text = f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nnum_processes: 8\n"
        line = "plan --gpus 4 --to accelerate --set effective_batch=64 --set lr=1 --set duration=9st --from"
        out = ran([*line.split(), str(written(tmp_path, "a.yaml", text))]).out
        assert (
            f"distributed_type: {written_as}{'  # was NO' if kind == 'NO' else ''}\n" in out
            and "keep distributed_type" not in out
        )

    def checkpoint(self, folder, ranks):
        state = {"global_step": 500, "max_steps": 2000, "train_batch_size": 4, "log_history": []}
        written(folder, "trainer_state.json", json.dumps(state))
        for rank in ranks:
            written(folder, f"rng_state_{rank}.pth", "")
        return ["replan", "--from", str(folder)]

    def test_a_checkpoint_says_where_it_is(self, tmp_path, ran):
        source = self.checkpoint(tmp_path, range(8))
        assert "--set lr=" in ran([*source, "--gpus", "4"], 2).err
        out = ran([*source, "--gpus", "4", "--set", "lr=1e-4", "--set", "accumulation=1"]).out
        assert "gradient_accumulation_steps: 2  # was 1\n" in out
        assert f"resume_from_checkpoint: {tmp_path}\n" in out and "max_steps: 2000\n" in out

    def test_a_checkpoint_without_a_file_of_one_process_asks_for_the_gpus(self, tmp_path, ran, monkeypatch):
        arguments = {"gradient_accumulation_steps": 2, "learning_rate": 1e-4, "optimzer": "x"}
        monkeypatch.setattr("isobatch.tools.checkpoint._arguments", lambda folder: arguments)
        source = [*self.checkpoint(tmp_path, (0, 1, 3)), "--gpus", "2"]
        says = "has 3 files rng_state_N.pth, one a process, but rng_state_3.pth is there: give gpus"
        assert says in ran(source, 2).err
        assert "not understood, may change the batch: optimzer" in ran([*source, "--set", "gpus=4"]).err
        arguments["distributed_state"] = {"num_processes": 8}
        (tmp_path / "rng_state_3.pth").rename(tmp_path / "rng_state_2.pth")
        assert "but training_args.bin says 8 processes: give gpus" in ran(source, 2).err


class TestFolder:
    def table(self, tmp_path, jobs):
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        fields = {"effective_batch": 256, "lr": 0.1, "duration": "100st", "warmup": "10st"}
        rows = [{"job": job, **fields} for job in jobs]
        cluster = pa.table({"cluster": ["c"], "nodes": [2], "gpus_per_node": [4]})
        path = tmp_path / "plans.parquet"
        pq.write_table(ib.plan_fleet(pa.Table.from_pylist(rows), cluster), path)
        whole = pa.Table.from_pylist([{**row, "schedule": "cosine"} for row in rows])
        pq.write_table(whole, tmp_path / "jobs.parquet")
        return str(path)

    def test_a_folder_a_job(self, tmp_path, capsys):
        jobs = ["plain", "../../etc/evil", "A/b", "a/B", "$(touch hacked)\n", "!?"]
        out = tmp_path / "out"
        words = f"report {self.table(tmp_path, jobs)} --to slurm -o {out} --gpus-per-node 4".split()
        assert main(words) == 0
        files = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
        names = "plain etc-evil A-b a-B-2 touch-hacked job"
        assert files == sorted(f"{name}/job.sbatch" for name in names.split())
        text = (out / "plain/job.sbatch").read_text()
        assert "#SBATCH --nodes=2\n" in text and "export ISOBATCH_TOTAL_STEPS=100\n" in text
        (out / "plain/job.sbatch").write_text("mine")
        assert main(words) == 2 and "--force replaces them" in capsys.readouterr().err
        assert (out / "plain/job.sbatch").read_text() == "mine"
        assert main([*words, "--force"]) == 0 and (out / "plain/job.sbatch").read_text() == text

    def test_a_setting_that_the_table_lacks_is_asked_for(self, tmp_path, capsys):
        """verl's rollout.n is the plan's batch_multiple: 1 would be a guess."""
        words = ["report", self.table(tmp_path, ["a"]), "--to", "verl", "-o", str(tmp_path / "out")]
        jobs = tmp_path / "jobs.csv"
        jobs.write_text("job,schedule,batch_multiple\na,cosine,\n")
        assert (
            main([*words, "--jobs", str(jobs)]) == 2
            and "batch_multiple is missing" in capsys.readouterr().err
        )
        jobs.write_text("job,schedule,batch_multiple\na,cosine,8\n")
        assert main([*words, "--jobs", str(jobs)]) == 0
        assert "rollout.n=8" in next((tmp_path / "out/a").iterdir()).read_text()

    def test_the_jobs_table_has_the_schedule(self, tmp_path, capsys):
        words = ["report", self.table(tmp_path, ["a"]), "--to", "transformers", "-o", str(tmp_path / "out")]
        assert main(words) == 2
        says = "row 1: schedule is missing: the plans' table does not have it; name the jobs' with --jobs"
        assert says in capsys.readouterr().err
        assert main([*words, "--jobs", str(tmp_path / "jobs.parquet")]) == 0
        data = yaml.safe_load((tmp_path / "out/a/training_args.yaml").read_text())
        assert (data["lr_scheduler_type"], data["max_steps"], data["warmup_steps"]) == ("cosine", 100, 10)
        assert "accelerator_config" not in data  # the table counts padding

    @pytest.mark.parametrize("even", ["true", "false"])
    def test_a_csv_gives_the_files_that_its_plans_give(self, tmp_path, even):
        job = {"effective_batch": 250, "lr": 0.1, "dataset_size": 1000, "duration": "2ep"}
        job |= {"convention": "transformers", "even_batches": even == "true"}
        (tmp_path / "jobs.csv").write_text(
            f"job,schedule,{','.join(job)}\na,cosine,{','.join(map(str, [*job.values()][:-1]))},{even}\n"
        )
        plans, out = str(tmp_path / "plans.csv"), tmp_path / "out"
        assert main(["fleet", str(tmp_path / "jobs.csv"), "--gpus", "2", "-o", plans]) == 0
        assert main(f"report {plans} --to transformers -o {out} --jobs {tmp_path}/jobs.csv".split()) == 0
        data = yaml.safe_load((out / "a/training_args.yaml").read_text())
        alone = ib.plan(ib.Recipe(**job), 2).to("transformers", form="json")
        assert data == json.loads(str(alone))


# ---- intervals and pipelines ----

OFTEN = {"eval_every": "500st", "save_every": "1000st", "log_every": "10st"}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("transformers", {"eval_steps": 250, "save_steps": 500, "logging_steps": 5}),
        ("megatron", {"eval_interval": 250, "save_interval": 500, "log_interval": 5}),
        ("torchtitan", {"validation.freq": 250, "checkpoint.interval": 500, "metrics.log_freq": 5}),
        # In micro-batches; a callback saves.
        ("lightning", {"trainer.val_check_interval": 250 * 2, "trainer.check_val_every_n_epoch": None,
         "trainer.log_every_n_steps": 5}),
        ("torchrun", {"env.ISOBATCH_EVAL_STEPS": "250", "env.ISOBATCH_SAVE_STEPS": "500",
         "env.ISOBATCH_LOG_STEPS": "5"}),
    ],
)  # fmt: skip
def test_intervals_are_written_in_the_plans_steps(tool, expected):
    settings, plain = (
        leaves(ib.plan(tuned, 32, policy=512).to(tool).settings) for tuned in (recipe(**OFTEN), recipe())
    )
    assert {name: settings[name] for name in expected} == expected
    assert not expected.keys() & plain.keys()


@pytest.mark.parametrize("tool", ["transformers", "megatron"])
def test_intervals_are_read_back(tool, tmp_path):
    planned = ib.plan(recipe(**OFTEN), 32, policy=512)
    reading = back(planned, tmp_path, tool)
    assert (reading.eval_every, reading.save_every, reading.log_every) == ("250st", "500st", "5st")


def test_a_share_of_the_run_is_no_interval():
    assert ib.Recipe.read({**ARGUMENTS, "eval_steps": 0.1}, gpus=8).eval_every is None


def test_a_pipeline_is_told_what_it_needs(tmp_path):
    line = (
        "python pretrain_gpt.py --micro-batch-size 2 --global-batch-size 512 --lr 1e-4 --train-iters 100 "
        "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
    )
    notes = read_file(written(tmp_path, "train.sh", line)).notes
    assert any("(--accumulation-multiple 4)" in note for note in notes)
    planned = ib.plan(recipe(model_parallel=4, gpus=32), 64, accumulation_multiple=4)
    assert planned.accumulation % 4 == 0
    says = "the accumulation, 4, must be a multiple of their number"
    assert any(says in note for note in planned.to("megatron").notes)
    assert not any("interleaved" in note for note in plan().to("megatron").notes)


def test_a_tool_that_is_only_read_names_the_one_to_write(ran):
    words = ["plan", "--set", "effective_batch=256", "--set", "lr=0.1", "--gpus", "8", "--to", "checkpoint"]
    out, err = ran(words, 2)
    assert out == "" and "--to: checkpoint is read, not written: use transformers" in err


MEGATRON_RAMP = {"effective_batch": 1024, "convention": "megatron", "duration": "48828125sp",
 "warmup": "488281sp"}  # fmt: skip


@pytest.mark.parametrize(
    ("ramp", "key", "moved"),
    [
        ("128 128 5000000", "rampup_batch_size", ["120", "120", "5000000"]),
        ("0:256 2B:512 5B:1024", "step_batch_size_schedule", "0:255 2B:510 5B:1020"),
    ],
)
def test_megatrons_ramp_moves_with_the_batch(ramp, key, moved):
    """Megatron refuses an increment beside the global batch, and ramps to the schedule's last batch."""
    planned = ib.plan(recipe(**MEGATRON_RAMP, gpus=16, micro_batch=2, ramp=ramp), 15, split="smaller")
    settings = planned.to("megatron").settings
    assert settings[key] == moved
    assert planned.stages[-1].batch == planned.effective_batch
    assert "was [" not in planned.to("megatron").text


def test_megatron_keeps_the_samples_that_it_was_given(tmp_path):
    """It floors them to the plan's steps itself, and a checkpoint of the run has them."""
    planned = ib.plan(recipe(**MEGATRON_RAMP, ramp="128 128 5000000"), 16)
    settings = planned.to("megatron").settings
    assert [settings[name] for name in MEGATRON_LENGTHS] == [48_828_125, 48_828_125, 488_281]
    assert ib.plan(back(planned, tmp_path, "megatron"), 16).total_steps == planned.total_steps
    assert "--override-opt_param-scheduler" not in planned.to("megatron").text
    moved = ib.replan(planned, at_step=12_345, cluster=8)
    assert "--override-opt_param-scheduler" in moved.to("megatron").text
    assert moved.to("megatron").settings["train_samples"] == 48_828_125


def test_megatrons_decay_of_a_run_that_moved_counts_samples():
    """Its scheduler counts samples: 100,000 steps of 512 are 50,000 of 1,024, whatever was done before the
    move."""
    own = {"effective_batch": 512, "gpus": 16, "micro_batch": 2, "convention": "megatron"}
    tuned = recipe(**own, duration="100000st", warmup="2000st", schedule="cosine")
    moved = ib.replan(ib.plan(tuned, 16), at_step=50_000, effective_batch=1024)
    planned = moved.to("megatron")
    names = ("train_iters", "lr_decay_iters", "lr_warmup_iters")
    assert [planned.settings[name] for name in names] == [75_000, 50_000, 1000]
    assert not any("differs" in note for note in planned.notes)
    rates = {"init_lr": 0.0, "max_lr": planned.settings["lr"], "min_lr": planned.settings["min_lr"]}
    lengths = {"lr_warmup_steps": 1000 * 1024, "lr_decay_steps": 50_000 * 1024}
    scheduler = OptimizerParamScheduler(**rates, **lengths, lr_decay_style="cosine", increment=1)
    for step in (50_000, 60_000, 74_999):
        assert moved.lr_at(step) == pytest.approx(scheduler.at(moved.position(step).samples), rel=1e-9)
    same = ib.replan(ib.plan(tuned, 16), at_step=50_000, cluster=8).to("megatron")
    assert [same.settings[name] for name in names] == [100_000, 100_000, 2000]


@pytest.mark.parametrize(
    ("every", "written"),
    [
        ({"eval_every": "25st", "save_every": "50st"}, (25, 50)),
        ({"eval_every": "25st", "save_every": "75st"}, (25, 75)),
        # Was no multiple: the Trainer was not asked for the best.
        ({"eval_every": "25st", "save_every": "60st"}, (25, 61)),
        ({"save_every": "50st"}, (None, 51)),
    ],
)
def test_a_save_stays_a_multiple_of_an_evaluation(every, written):
    recipe = ib.Recipe(effective_batch=64, lr=1e-3, duration="94st", **every)
    planned = ib.plan(recipe, 7, batch_tolerance=0.02)
    assert planned.effective_batch == 63
    out = planned.to("transformers")
    assert (out.settings.get("eval_steps"), out.settings["save_steps"]) == written
    assert any("load_best_model_at_end" in note for note in out.notes) == (planned.save_steps != written[1])


MEGATRON_RUN = MEGATRON_RAMP | {"gpus": 64, "micro_batch": 1, "lr": 1e-4, "duration": "200000000sp",
 "warmup": "2000000sp"}  # fmt: skip


def test_a_ramp_that_is_over_is_left_out_of_a_restart():
    """Behind it no fraction of a batch is written; Megatron's int() would stop every rank."""
    tuned = ib.plan(ib.Recipe(**MEGATRON_RUN, ramp="128 128 12000000"), 64)
    behind = ib.replan(tuned, at_step=100_000, cluster=60, batch_tolerance=0.01).to("megatron")
    assert behind.settings["global_batch_size"] == 1020 and "rampup_batch_size" not in behind.settings
    assert behind.settings["train_samples"] == 200_000_000
    assert any("the batch ramp is over" in note for note in behind.notes)


def test_lengths_in_samples_stay_the_recipes_own():
    recipe = ib.Recipe(**MEGATRON_RUN, schedule="cosine(until=180000100sp)")
    out = export(ib.plan(recipe, 32), "megatron", was=ib.plan(recipe, 64))
    assert [out.settings[name] for name in MEGATRON_LENGTHS] == [200_000_000, 180_000_100, 2_000_000]
    assert "train_iters" not in out.settings and not any("_samples:" in note for note in out.notes)
    stable = ib.Recipe(**MEGATRON_RUN, schedule="wsd(decay=1000100sp, shape=linear)")
    assert ib.plan(stable, 32).to("megatron").settings["lr_wsd_decay_samples"] == 1_000_100


@pytest.mark.parametrize("tool", ["axolotl", "megatron", "deepspeed", "torchtitan", "trl", "lightning"])
def test_rows_of_a_table_without_columns_of_experts_are_written(tool, tmp_path, ran):
    jobs = written(
        tmp_path,
        "jobs.csv",
        "job,effective_batch,lr,optimizer,duration,seq_len,gpus,micro_batch\na,64,1e-4,adamw,100st,512,8,4\n",
    )
    ran(["fleet", str(jobs), "--gpus", "8", "-o", str(tmp_path / "plans.csv")])
    words = ["report", str(tmp_path / "plans.csv"), "--to", tool, "-o", str(tmp_path / "out")]
    ran([*words, "--jobs", str(jobs)])
    assert [*(tmp_path / "out" / "a").iterdir()]


@pytest.mark.parametrize("tool", ["transformers", "deepspeed", "megatron", "torchtune"])
def test_a_setting_of_0_says_that_the_recipe_has_none(tool):
    bare = ib.Recipe(effective_batch=64, lr=1e-4, duration="100st")
    (remark,) = [note for note in ib.plan(bare, 8).to(tool).notes if ": 0, since the recipe has none" in note]
    assert "weight_decay" in remark and ("clip" in remark or "grad_norm" in remark or tool == "torchtune")
    full = msgspec.structs.replace(bare, clip_norm=1.0, weight_decay=0.1)
    assert not any("since the recipe" in note for note in ib.plan(full, 8).to(tool).notes)


def test_the_notes_of_a_folder_of_files_are_printed(tmp_path, capsys):
    (tmp_path / "jobs.csv").write_text(
        "job,effective_batch,lr,duration,schedule\na,64,1e-3,100st,wsd(decay=20%)\n"
    )
    plans = tmp_path / "plans.csv"
    jobs = str(tmp_path / "jobs.csv")
    assert main(["fleet", jobs, "--gpus", "8", "-o", str(plans)]) == 0
    words = ["report", str(plans), "--to", "deepspeed", "-o", str(tmp_path / "out"), "--jobs", jobs]
    assert main(words) == 0
    assert "deepspeed: 1 file: DeepSpeed has no scheduler such as wsd" in capsys.readouterr().err
