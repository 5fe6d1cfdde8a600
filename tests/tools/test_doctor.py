"""The real training of a configuration on a number of GPUs.

The findings, with their cause and the line to change.
"""

import json
import shutil
import subprocess

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.doctor.examine import examine
from isobatch.tools.detect import reader, readers
from isobatch.tools.page import Reading
from isobatch.tools.read import read_file
from isobatch.tools.tool import Case, Weight
from tools.test_reading import PUBLISHED, written
from tools.test_rl import stops

CLEAN = {"per_device_train_batch_size": 8, "learning_rate": 2e-5, "max_steps": 100, "max_grad_norm": 1.0}
CLEAN |= {"lr_scheduler_type": "linear", "warmup_steps": 10, "gradient_accumulation_steps": 1}
MULTIPLIED = (
    "transformers 5 multiplies the gradient of BERT, T5, BART and other models whose loss ignores "
    "num_items_in_batch by {}"
)
MEGATRON = "x --global-batch-size 64 --micro-batch-size 2 --lr 1e-4 --clip-grad 1 --adam-beta2 0.95"


def examined(tmp_path, settings, gpus=8, name="a.json", **fields):
    text = settings if isinstance(settings, str) else json.dumps(settings)
    return examine(written(tmp_path, name, text), gpus, **fields)


def test_the_same_gpus_with_nothing_odd(tmp_path):
    diagnosis = examined(tmp_path, CLEAN, tuned_gpus=8)
    assert diagnosis.batch == 64 and diagnosis.healthy
    assert [finding.what for finding in diagnosis.findings] == [MULTIPLIED.format(8)]
    alone = examined(tmp_path, CLEAN, 1, tuned_gpus=1)
    assert alone.text.endswith("the learning rate stays.\nNothing found.")


@pytest.mark.parametrize(
    ("settings", "gpus", "factor", "healthy"),
    [
        ({"gradient_accumulation_steps": 4}, 2, 8, True),
        ({"gradient_accumulation_steps": 4, "average_tokens_across_devices": False}, 1, 4, True),
        ({"model_name_or_path": "google-bert/bert-base-uncased"}, 2, 2, False),
        ({"model_name_or_path": "google/flan-t5-base", "gradient_accumulation_steps": 2}, 2, 4, False),
        ({"model_name_or_path": "answerdotai/ModernBERT-base"}, 2, 2, True),
    ],
)
def test_the_trainers_factor_is_named_and_certain_for_a_model_that_the_file_names(
    tmp_path, settings, gpus, factor, healthy
):
    diagnosis = examined(tmp_path, {**CLEAN, **settings}, gpus)
    (finding,) = [finding for finding in diagnosis.findings if "multiplies the gradient" in finding.what]
    assert finding.what.endswith(f" by {factor}")
    assert diagnosis.healthy is healthy
    assert "accepts_loss_kwargs = False" in finding.change


def test_more_gpus_move_batch_rate_and_lengths(tmp_path):
    diagnosis = examined(tmp_path, CLEAN, 64, tuned_gpus=8)
    assert diagnosis.batch == 512
    batch, rule, run, warmup, _ = diagnosis.findings
    assert batch.what == "a step has 512 samples, 8 × the 64 that it was tuned with"
    assert batch.change == "per_device_train_batch_size: 1; gradient_accumulation_steps: 1"
    assert "Krizhevsky" in rule.source and rule.change.startswith("learning_rate: 5.65685e-5")
    assert run.change.startswith("max_steps: 13 ") and warmup.change.startswith("warmup_steps: 1 ")
    # The change does what it says: with it the batch is the tuned one.
    fixed = {**CLEAN, "per_device_train_batch_size": 1}
    assert examined(tmp_path, fixed, 64).batch == 64


@pytest.mark.parametrize(
    ("name", "settings", "says", "change"),
    [
        ("a.json", {**CLEAN, "num_train_epochs": 3}, "num_train_epochs 3 has no effect",
         "remove num_train_epochs"),
        ("a.json", {**CLEAN, "warmup_ratio": 0.1}, "warmup_ratio 0.1 has no effect", "remove warmup_ratio"),
        ("a.json", {**CLEAN, "warmup_ratio": 0.1, "warmup_steps": 0}, "from 5.15 on has no warmup_ratio",
         "warmup_steps: 0.1"),
        ("a.json", {**CLEAN, "warmup_steps": 0.1}, "is no warmup before transformers 5",
         "transformers>=5, or warmup_ratio: 0.1"),
        ("a.json", {**CLEAN, "max_grad_norm": None}, "clipped at norm 1", "max_grad_norm: 0.0"),
        ("a.json", {**CLEAN, "gradient_accumulation_steps": 4}, "mean of means", "transformers>=4.46"),
        ("a.json", {**CLEAN, "average_tokens_across_devices": False}, "mean of means",
         "average_tokens_across_devices: true"),
        ("a.json", {**CLEAN, "lr_scheduler_type": "constant"}, "the warmup has no effect",
         "constant_with_warmup"),
        ("a.json", {**CLEAN, "auto_find_batch_size": True}, "may halve", "auto_find_batch_size: false"),
        ("a.yaml", "compute_environment: LOCAL_MACHINE\nnum_processes: 8\nnum_machines: 1",
         "takes 8 steps for each step", "step_scheduler_with_optimizer=False"),
        ("a.json",
         {"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
          "zero_optimization": {}}, "DeepSpeed stops", '"train_batch_size": 64'),
        ("a.json", {"train_batch_size": "auto", "zero_optimization": {}, "gradient_clipping": 1.0}, '"auto"',
         "write the numbers down"),
        ("a.json", {"train_batch_size": 64, "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}},
         "Adam is AdamW", "adam_w_mode"),
        ("a.sh", "x --global-batch-size 100 --micro-batch-size 3 --lr 1e-4 --train-iters 9 --clip-grad 1 "
         "--adam-beta2 0.95", "not a multiple of 3 × 8", "isobatch plan --from"),
        ("a.toml", "[training]\nlocal_batch_size = 1\nsteps = 10\n[optimizer]\nlr = 1e-3\n[job]\n"
         "dump_folder='x'", "one step ahead", ""),
        ("a.yaml", "trainer: {devices: 8, max_steps: 10, accumulate_grad_batches: 2}\ndata: {batch_size: 2}",
         "last step of an epoch", "drop_last=True"),
        ("a.yaml", "base_model: x\nmicro_batch_size: 2\nlearning_rate: 1e-4\nnum_epochs: 1\n"
         "max_grad_norm: 1.0", "the warmup is 3% of the steps", "warmup_steps: 0"),
        ("a.sh", MEGATRON + " --train-iters 9 --rampup-batch-size 16 16 160",
         "since core 0.18 the batch does not ramp", "--step-batch-size-schedule"),
        ("a.sh", MEGATRON + " --train-iters 9 --rampup-batch-size 16 16 160",
         "before core 0.18 the run stops", "--train-samples"),
        ("a.sh", MEGATRON + " --train-samples 900 --step-batch-size-schedule 0:32", "are both given",
         "remove --global-batch-size"),
        ("a.json",
         {"train_batch_size": 64,
          "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 30}}},
         "one step late", "leave it, or drive it by"),
    ],
)  # fmt: skip
def test_silent_changes_of_a_tool_are_findings(tmp_path, name, settings, says, change):
    diagnosis = examined(tmp_path, settings, name=name)
    (finding,) = [finding for finding in diagnosis.findings if says in finding.what]
    assert change in finding.change
    assert all(all(finding[:4]) for finding in diagnosis.findings), (
        "what, cause, source and change are all said"
    )
    assert finding.what in diagnosis.text


@pytest.mark.parametrize("source", PUBLISHED)
def test_published_configurations_have_a_batch(source, tmp_path):
    name, text, beside, fields = PUBLISHED[source]
    own = {("tuned_gpus" if key == "gpus" else key): value for key, value in beside.items()}
    gpus = beside.get("gpus") or fields.get("gpus") or 8
    assert examine(written(tmp_path, name, text), gpus, **own).batch == fields["effective_batch"]


TWO_NUMBERS = {
    "DeepSpeed, micro-batch and accumulation": '{"train_micro_batch_size_per_gpu": 2, '
    '"gradient_accumulation_steps": 8}',
    "DeepSpeed, batch and accumulation": '{"train_batch_size": 4096, "gradient_accumulation_steps": 8, '
    '"zero_optimization": {}}',
    "DeepSpeed, micro-batch alone": '{"train_micro_batch_size_per_gpu": 2}',
}


@pytest.mark.parametrize("source", [*PUBLISHED, *TWO_NUMBERS])
def test_a_typed_batch_is_the_tuned_runs_and_not_the_files(source, tmp_path):
    """An unchanged file on more GPUs is no file that trains with the tuned batch."""
    name, text, arguments, _ = PUBLISHED.get(source) or ("ds.json", TWO_NUMBERS[source], {}, {})
    file = written(tmp_path, name, text)
    beside = {field: value for field, value in arguments.items() if field not in ("gpus", "effective_batch")}
    gpus = 4 * (read_file(file).fields.get("gpus") or arguments.get("gpus") or 8)
    batch = examine(file, gpus, **beside).batch
    changed = examine(file, gpus, effective_batch=batch // 4, **beside)
    assert changed.batch == batch and not changed.healthy
    assert any(finding.what.startswith(f"a step has {batch:,} samples") for finding in changed.findings)


def test_the_command_exits_with_what_it_found(tmp_path, ran):
    path = written(tmp_path, "a.json", json.dumps(CLEAN))
    assert main(["doctor", str(path), "--gpus", "8", "--set", "gpus=8"]) == 0
    out = ran(["doctor", str(path), "--gpus", "64", "--set", "gpus=8"], 1).out
    assert "As it is, a step has 512 samples = 8 × 1 × 64 replicas.\n" in out
    with pytest.raises(ib.InputError, match="at least 1|from 1"):
        examine(path, 0)


def test_unreadable_settings_are_named_and_stop_nothing(tmp_path):
    diagnosis = examined(
        tmp_path, {**CLEAN, "learning_rate": "fast", "weight_decay": "auto"}, 64, tuned_gpus=8
    )
    assert diagnosis.batch == 512
    assert "learning_rate must be a number, got the text 'fast'" in diagnosis.text
    assert 'weight_decay: "auto" is not known before the run' in diagnosis.text
    assert "weight_decay" not in examined(tmp_path, {**CLEAN, "weight_decay": "auto"}, weight_decay=0.1).text
    unusual = examined(tmp_path, {**CLEAN, "adam_beta1": 2}, 64, tuned_gpus=8)
    assert unusual.batch == 512 and "betas" in unusual.text
    file = written(tmp_path, "b.json", json.dumps({**CLEAN, "adam_beta2": 0.95}))
    assert ib.Recipe.read(file, gpus=8).betas == (0.9, 0.95)


def test_a_global_batch_stays_where_the_tool_works_out_the_accumulation(tmp_path):
    """torchtitan divides its global batch.

    On GPUs that do not, it stops, and no batch, rate or length has moved.
    """
    settings = (
        "[training]\nlocal_batch_size = 2\nglobal_batch_size = 1024\nsteps = 120000\n[optimizer]\nlr = 3e-4\n"
    )
    stopped = examined(tmp_path, settings, 15, name="a.toml", tuned_gpus=16)
    assert stopped.batch == 1024
    whats = [finding.what.partition(":")[0] for finding in stopped.findings]
    assert whats == ["the run stops", "the warmup is one step ahead"]
    fewer = examined(tmp_path, settings, 8, name="a.toml", tuned_gpus=16)
    assert "a step has 1,024 samples = 2 × 64 × 8 replicas." in fewer.text


def test_a_warmup_that_is_a_share_of_the_run_is_no_number_of_steps_to_change(tmp_path):
    """Megatron's fraction gives 10 steps of 1,000, and is left as it is."""
    script = f"torchrun {MEGATRON} --train-iters 1000 --lr-warmup-fraction .01 --global-batch-size 64"
    diagnosis = examined(tmp_path, script, 8, "a.sh", effective_batch=32)
    assert [finding.field for finding in diagnosis.findings if finding.field in ("duration", "warmup")] == [
        "duration"
    ]
    assert "--global-batch-size 32" in [finding.change for finding in diagnosis.findings]


def test_the_doctors_steps_are_rounded_as_the_plans(tmp_path):
    """100 steps of the warmup at an eighth of the batch are 12.5: half up, as a plan rounds."""
    settings = {**CLEAN, "warmup_steps": 100, "max_steps": 1000}
    finding = next(f for f in examined(tmp_path, settings, 64, tuned_gpus=8).findings if "warmup" in f.what)
    grown = ib.plan(ib.Recipe(effective_batch=64, lr=2e-5, warmup="100st", duration="1000st"), 64, policy=512)
    assert grown.warmup_steps == 13 and finding.change.startswith("warmup_steps: 13 ")


@pytest.mark.parametrize(("steps", "named"), [(-1, []), (400, ["the run takes 4 × the samples"])])
def test_a_checkpoints_steps_are_no_setting_where_its_arguments_say_epochs(
    tmp_path, monkeypatch, steps, named
):
    """The Trainer counted them, and counts them anew when it is resumed; epochs then have an effect."""
    folder = tmp_path / "checkpoint-50"
    folder.mkdir()
    state = {"global_step": 50, "max_steps": 400, "num_train_epochs": 2, "train_batch_size": 8}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    arguments = {**CLEAN, "max_steps": steps, "num_train_epochs": 2}
    monkeypatch.setattr("isobatch.tools.checkpoint._arguments", lambda folder: arguments)
    texts = [finding.what for finding in examine(str(folder), 16, tuned_gpus=4).findings]
    assert [text[:29] for text in texts if text.startswith("the run takes")] == named
    assert not any("has no effect" in text for text in texts)


_INTERNAL = (
    "batch_per_gpu",
    "micro_batch:",
    "accumulation:",
    "effective_batch",
    "duration:",
    "warmup:",
    " lr:",
)


@pytest.mark.parametrize("tuned", [1, 2, None])
@pytest.mark.parametrize("source", PUBLISHED)
def test_no_finding_names_a_field_of_ours(source, tmp_path, tuned):
    """Whatever a file leaves out: its readers look for the line to change in their own file."""
    name, text, beside, _ = PUBLISHED[source]
    own = {key: value for key, value in beside.items() if key != "gpus"}
    own |= {"tuned_gpus": tuned} if tuned else {}
    for gpus in (1, 8, 64):
        diagnosis = examined(tmp_path, text, gpus, name, **own)
        for finding in diagnosis.findings:
            for word in _INTERNAL:
                assert word not in f" {finding.what} {finding.cause} {finding.change}", (word, str(finding))


def test_deepspeeds_own_names(tmp_path):
    params = {"total_num_steps": 94, "warmup_num_steps": 20, "warmup_type": "linear"}
    settings = {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 4}
    settings |= {"optimizer": DS["optimizer"], "scheduler": {"type": "WarmupCosineLR", "params": params}}
    first, *_ = examined(tmp_path, settings, 8, tuned_gpus=1).findings
    assert first.change == "train_micro_batch_size_per_gpu: 8; gradient_accumulation_steps: 1"
    (late,) = examined(tmp_path, settings, 8).findings
    assert late.what == "the warmup is one step late"


def test_every_tool_has_names_for_what_doctor_writes():
    fields = ("batch_per_gpu", "micro_batch", "accumulation", "effective_batch", "lr", "duration", "warmup")
    for tool in readers():
        case = Case(reader(tool), Reading(tool, "", "", {}), {}, 8, None, None, None)
        assert all(case.key(field) != field for field in fields), tool


def test_torchtitan_is_given_a_global_batch(tmp_path):
    text = "[training]\nlocal_batch_size = 8\nsteps = 1000\n[optimizer]\nlr = 3e-4\n"
    first, *_ = examined(tmp_path, text, 8, name="a.toml", tuned_gpus=1).findings
    assert first.change == "training.local_batch_size: 1; training.global_batch_size: 8"


# ---- the doctor as a gate: exit 1 for what stops the run or changes the training, 0 for a healthy file ----

DS = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": 1000, "warmup_num_steps": 10, "warmup_type": "linear"},
    },
}
HF = {
    "per_device_train_batch_size": 8, "learning_rate": 2e-5, "num_train_epochs": 3,
    "lr_scheduler_type": "cosine",
}  # fmt: skip
BEST = {**HF, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 50}
MICRO = "x --micro-batch-size 2 --lr 1e-4"
RUN = f"{MICRO} --global-batch-size 64"
HEALTHY = {
    "args.json": {
        **HF, "gradient_accumulation_steps": 4, "warmup_steps": 0.03, "bf16": True, "report_to": "wandb",
    },
    "best.json": {**BEST, "save_steps": 100},
    "epochs.json": {**BEST, "eval_strategy": "epoch", "save_strategy": "epoch"},
    "ds.json": DS,
    "auto.json": {"train_batch_size": "auto", "zero_optimization": {"stage": 2}, "gradient_clipping": 1.0},
    "run.sh": (
        f"{RUN} --train-iters 900 --lr-warmup-iters 9 --bf16 --tensor-model-parallel-size 2 --no-rope-fusion"
    ),
    "ramp.sh": f"{MICRO} --train-samples 90000 --step-batch-size-schedule 0:16 --bf16",
    "axolotl.yaml": (
        "base_model: x\nmicro_batch_size: 2\nlearning_rate: 1e-4\nnum_epochs: 1\nsample_packing: "
        "true\noptimizer: adamw_torch"
    ),
    "titan.toml": (
        "[training]\nlocal_batch_size = 1\nsteps = 1000\n[optimizer]\nlr = 1e-3\n[job]\ndump_folder='x'"
    ),
    "pl.yaml": (
        "trainer: {devices: 8, max_epochs: 9, accumulate_grad_batches: 2}\ndata: {batch_size: 2}\nmodel: "
        "{class_path: my.M}"
    ),
    "launch.yaml": (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nnum_machines: 1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_file_passes(tmp_path, capsys, name):
    settings = HEALTHY[name]
    path = written(tmp_path, name, settings if isinstance(settings, str) else json.dumps(settings))
    code = main(["doctor", str(path), "--gpus", "8", "--set", "dataset_size=52000"])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "settings", "fields", "says", "stops"),
    [
        ("a.sh", f"{RUN} --train-iters 100 --lr-warmup-iters 200", {}, "the warmup does not end", True),
        ("a.json", {**HF, "max_steps": 50, "warmup_steps": 100}, {}, "the warmup does not end", False),
        ("a.json", {**BEST, "save_steps": 120}, {},
         "save_steps 120 is not a multiple of eval_steps 50", True),
        ("a.json", {**BEST, "eval_strategy": "epoch"}, {}, "save_strategy steps, eval_strategy epoch", True),
        ("a.json", HF, {"dataset_size": 40}, "a step has 64 samples, the dataset 40", False),
        ("a.json", {**HF, "warmup_step": 9}, {}, "warmup_step has no effect", False),
        ("a.json", DS, {"duration": "2000st"}, "the schedule ends at step 1,000, the run at 2000", False),
        ("a.json", {**DS, "scheduler": {
            "type": "WarmupLR", "params": {"warmup_max_lr": 3e-4, "warmup_type": "linear"},
        }}, {}, "the learning rate is 0.0003, not 0.0001", False),
        ("a.sh", f"{RUN} --train-samples 9000 --rampup-batch-size 8 8 900", {},
         "the ramp's batch of 8 samples does not divide", True),
        ("a.sh", f"{RUN} --train-iters 9 --tensor-model-parallel-size 3", {},
         "8 GPUs are not a multiple of the 3", True),
        ("a.json", {**HF, "per_device_train_batch_size": 12, "accelerator_config": {"split_batches": True}},
         {}, "12 samples under split_batches are not a multiple of 8 processes", True),
        ("a.py", "Accelerator(split_batches=True)\nDataLoader(d, 12)", {},
         "a step has 8 × the samples of DataLoader.batch_size", False),
        ("a.py",
         "Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))\nDataLoader(d, 12)",
         {}, "12 samples under split_batches", True),
        ("a.py", "TrainingArguments('o', parallelism_config=ParallelismConfig(tp_size=3))", {},
         "8 GPUs are not a multiple of the 3", True),
    ],
)  # fmt: skip
def test_a_planted_mistake_is_found_and_weighed(tmp_path, name, settings, fields, says, stops):
    diagnosis = examined(tmp_path, settings, 8, name=name, **fields)
    (finding,) = [finding for finding in diagnosis.findings if says in finding.what]
    assert finding.weight is (Weight.STOPS if stops else Weight.CHANGES) and not diagnosis.healthy
    assert f"{finding.weight}:\n" in diagnosis.text
    weights = [list(Weight).index(finding.weight) for finding in diagnosis.findings]
    assert weights == sorted(weights), "the most expensive first"


def test_advice_that_would_not_work_is_not_given(tmp_path):
    """A batch that no accumulation makes has none offered; a split is found without the learning rate."""
    (stopped,) = [
        f for f in examined(tmp_path, {**DS, "train_batch_size": 100}).findings if "stops" in f.what
    ]
    assert stopped.change == '"train_batch_size": 64'
    (stopped,) = [
        f for f in examined(tmp_path, {**DS, "train_batch_size": 128}).findings if "stops" in f.what
    ]
    assert stopped.change.endswith('or "gradient_accumulation_steps": 2')
    without = {name: value for name, value in CLEAN.items() if name != "learning_rate"}
    first, *_ = examined(tmp_path, without, 64, tuned_gpus=8).findings
    assert first.change == "per_device_train_batch_size: 1; gradient_accumulation_steps: 1"
    ramp = (
        "x --micro-batch-size 2 --lr 1e-4 --train-samples 9000 --rampup-batch-size 32 32 900 "
        "--global-batch-size"
    )
    for batch, change in (
        (960, "--rampup-batch-size 48 48 900"),
        (1000, "--global-batch-size 1008 --rampup-batch-size 48 48 900"),
    ):
        findings = examined(tmp_path, f"{ramp} {batch}", 24, name="r.sh").findings
        (stopped,) = [finding for finding in findings if "ramp's" in finding.what]
        assert stopped.change.startswith(change)
    shrunk = examined(tmp_path, CLEAN, 2, tuned_gpus=8).findings[1]
    assert "only if the batch is to move" in shrunk.change


@pytest.mark.parametrize(
    ("settings", "gpus", "says"),
    [
        (
            {"train_batch_size": 192, "train_micro_batch_size_per_gpu": 6}, 12,
            "192 samples are not 6 × 2 × 12",
        ),
        ({"train_batch_size": 192}, 7, "192 samples are not 27 × 1 × 7"),
        ({"train_batch_size": 192, "gradient_accumulation_steps": 5}, 8, "192 samples are not 4 × 5 × 8"),
        ({"train_batch_size": 192, "train_micro_batch_size_per_gpu": 6}, 8, None),
        ({"train_batch_size": 192, "train_micro_batch_size_per_gpu": "auto"}, 7, None),
    ],
)  # fmt: skip
def test_deepspeed_stops_where_a_number_that_is_left_out_does_not_fit(tmp_path, settings, gpus, says):
    expected = [] if says is None else [f"DeepSpeed stops: {says} replicas"]
    assert stops(examined(tmp_path, settings, gpus, tool="deepspeed")) == expected


def test_a_lightning_script_is_no_cli(tmp_path):
    text = (
        "from lightning import Trainer\nopt = torch.optim.AdamW(p, "
        "lr=1e-3)\ntorch.optim.lr_scheduler.OneCycleLR(opt, 1)\n"
        "Trainer(max_steps=9)\nDataLoader(d, 4)"
    )
    diagnosis = examined(tmp_path, text, 8, name="l.py")
    assert "LightningCLI" not in diagnosis.text and "constant learning rate" not in diagnosis.text
    assert "OneCycleLR (line 3), whose steps the script decides: give schedule a value" in diagnosis.text


def test_an_accumulation_that_only_the_run_knows_is_no_1(tmp_path):
    script = (
        "from transformers import TrainingArguments\nargs = TrainingArguments('o', "
        "per_device_train_batch_size=4, {}learning_rate=1e-5)"
    )
    known = script.format("gradient_accumulation_steps=2, ")
    assert examined(tmp_path, known, 8, name="t.py").batch == 64
    open_one = script.format("gradient_accumulation_steps=int(N), ")
    diagnosis = examined(tmp_path, open_one, 8, name="u.py", tuned_gpus=8)
    assert diagnosis.batch is None and "give accumulation a value" in diagnosis.text
    assert examined(tmp_path, open_one, 8, name="u.py", accumulation=2).batch == 64


def test_megatron_lowers_a_batch_where_it_is_allowed_to(tmp_path):
    expected = "the run stops: 64 samples are not a multiple of 2 × 7 replicas"
    assert stops(examined(tmp_path, MEGATRON, 7, name="a.sh")) == [expected]
    lowered = f"{MEGATRON} --decrease-batch-size-if-needed"
    assert stops(examined(tmp_path, lowered, 7, name="b.sh")) == []


SHELL = f"set -e\ntorchrun {MEGATRON} --train-iters 1000 --lr-warmup-iters 10 --lr-decay-style cosine\n"
BOM = "\ufeff"
PLAIN = {**CLEAN, "learning_rate": 0.001}


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.sh", SHELL.replace("\n", "\r\n").encode(), "line ends are CRLF, in 2 lines"),
        ("launch", f"#!/bin/bash\r\n{SHELL}".encode(), "line ends are CRLF, in 1 line"),
        ("a.sh", f"{BOM}{SHELL}".encode(), "byte order mark"),
        ("a.json", f"{BOM}{json.dumps(CLEAN)}".encode(), "byte order mark"),
        ("a.yaml", json.dumps(PLAIN).encode("utf-16"), "UTF-16"),
        ("a.sh", SHELL.encode(), None),
        ("a.yaml", f"{BOM}{json.dumps(PLAIN, indent=1)}".replace("\n", "\r\n").encode(), None),
        ("a.json", json.dumps(CLEAN, indent=1).replace("\n", "\r\n").encode(), None),
    ],
)
def test_bytes_at_which_bash_or_the_tool_stops_stop_the_run(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    findings = examine(tmp_path / name, 8, tuned_gpus=8).findings
    stops = [finding.what for finding in findings if finding.weight is Weight.STOPS]
    assert [says in what for what in stops] == ([True] if says else [])
    if name == "a.sh":
        bash = [shutil.which("bash"), tmp_path / name]
        ran = subprocess.run(bash, capture_output=True, text=True, check=False, env={"PATH": ""})
        assert ("set" in ran.stderr) is (says is not None)


@pytest.mark.parametrize("value", [-8, 0])
@pytest.mark.parametrize("key", ["gradient_accumulation_steps", "per_device_train_batch_size"])
def test_a_number_below_1_makes_no_batch(tmp_path, key, value):
    diagnosis = examined(tmp_path, {**CLEAN, key: value}, tuned_gpus=8)
    assert diagnosis.batch is None and "samples" not in diagnosis.text.partition(":\n")[0]
    assert f"{key} must be a whole number from 1, got {value}" in diagnosis.text


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size={rollout} "
    "actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.n=5 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
    "trainer.total_training_steps=100\n"
)


@pytest.mark.parametrize(
    ("rollout", "gpus", "says"),
    [
        (1024, 5, "5 GPUs are not a multiple of rollout.tensor_model_parallel_size 2"),
        (300, 8, "a rollout has 1,500 completions, not a multiple of 8 GPUs"),
        (320, 8, "a rollout of 320 prompts is not a whole number of steps of 256"),
        (1024, 8, None),
    ],
)
def test_the_numbers_of_a_command_line_are_checked_as_those_of_a_file(tmp_path, rollout, gpus, says):
    path = tmp_path / "run.sh"
    path.write_text(VERL.format(rollout=rollout))
    issues = [issue.what for issue in examine(str(path), gpus).findings if issue.weight is not Weight.NOTE]
    assert any(issue.endswith(says) for issue in issues) if says else not issues


def test_a_script_without_the_trainer_is_not_read_as_its_arguments(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "accelerate launch --num_processes 8 run_mlm_no_trainer.py --per_device_train_batch_size 16 "
        "--gradient_accumulation_steps 2 --learning_rate 1e-4 --num_warmup_steps 100 --max_train_steps 2000\n"
    )
    with pytest.raises(ib.InputError, match=r"(?s)no tool is recognized.*--set warmup=100st"):
        examine(str(path), 8)


def test_a_setting_that_transformers_5_has_no_more_stops_the_run(tmp_path):
    (stop,) = [
        issue
        for issue in examined(tmp_path, {**CLEAN, "evaluation_strategy": "steps"}, 8).findings
        if issue.weight is Weight.STOPS
    ]
    assert "no evaluation_strategy" in stop.what and stop.change == "eval_strategy: steps"
