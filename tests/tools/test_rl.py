"""Trainers of completions: the batch holds the groups of a prompt together, and GPUs that only generate do
not train."""

import dataclasses
import json

import pytest

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools import losses
from isobatch.tools.read import read_file
from isobatch.tools.sheet import Job
from isobatch.tools.tool import Weight
from tools.test_reading import written

VERL = """
B=1024
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=$B \\
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 \\
    +actor_rollout_ref.actor.optim.lr_warmup_steps=10 \\
    actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.nnodes=3 \\
    'trainer.logger=["console","wandb"]' \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=8 trainer.nnodes=2 \\
    trainer.total_training_steps=100
"""
GRPO = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 8}
GRPO |= {"learning_rate": 1e-6, "max_steps": 100, "beta": 0.1}


@pytest.fixture
def script(tmp_path):
    return written(tmp_path, "run.sh", VERL)


def stops(examined):
    """Lists the issues of weight STOPS."""
    return [issue.what for issue in examined.findings if issue.weight is Weight.STOPS]


def test_verl_is_read_from_hydras_overrides(script):
    reading = read_file(script)
    assert (reading.tool, reading.multiple) == ("verl", 5)
    want = {"effective_batch": 1280, "micro_batch": 40, "gpus": 16, "duration": "400st", "warmup": "40st"}
    assert {name: reading.fields[name] for name in want} == want
    assert "model_parallel" not in reading.fields, "the rollout's tensors are of GPUs that generate"
    assert any("rollout.nnodes 3: these nodes only generate" in note for note in reading.notes)


def test_gpus_given_by_hand_mend_a_count_that_the_script_leaves_open(tmp_path):
    """TinyZero's script: `trainer.n_gpus_per_node=$N_GPUS`."""
    file = written(tmp_path, "run.sh", VERL.replace("n_gpus_per_node=8", "n_gpus_per_node=$N_GPUS"))
    with pytest.raises(ib.InputError, match=r"n_gpus_per_node is \$N_GPUS.*give gpus a value"):
        ib.Recipe.read(file)
    assert ib.Recipe.read(file, gpus=2).gpus == 2


def test_search_r1_takes_more_steps_of_a_rollout_with_several_agents(tmp_path):
    """Its `n_agent` repeats each prompt, and its ppo_mini_batch_size counts completions."""
    text = VERL.replace("rollout.n=5", "rollout.n_agent=5")
    reading = read_file(written(tmp_path, "run.sh", text))
    want = {"effective_batch": 256, "duration": "2000st", "warmup": "200st"}
    assert {name: reading.fields[name] for name in want} == want


@pytest.mark.parametrize("form", ["sh", "yaml"])
def test_files_for_verl_are_read_back_at_every_count(script, tmp_path, form):
    tuned, written, out = ib.Recipe.read(script), 0, tmp_path / f"out.{form}"
    for gpus in range(1, 65):
        plan = ib.plan(tuned, gpus, batch_tolerance=0.1, batch_multiple=5)
        if plan.status == "infeasible":
            continue
        out.write_text(plan.to("verl", form=form).text)
        reading = read_file(out, "verl")
        assert (reading.fields["gpus"], reading.multiple) == (gpus, 5)
        assert reading.fields["effective_batch"] == plan.effective_batch
        assert plan.effective_batch % (gpus * reading.fields["micro_batch"]) == 0
        written += 1
    assert written > 20


def test_doctor_says_at_which_count_verl_stops(script):
    assert examine(script, 16).healthy
    issues = "\n".join(issue.what for issue in examine(script, 12).findings)
    assert "the run stops: 1,280 samples are not a multiple of 40 × 12 replicas" in issues
    assert "the run stops: a rollout has 5,120 completions, not a multiple of 12 GPUs" in issues


@pytest.mark.parametrize(
    ("beside", "gpus", "says"),
    [
        ({}, 3, None),
        ({"per_device_train_batch_size": 3}, 3, "18 completions on 3 GPUs are not a multiple of "
            "num_generations 8"),
        ({"steps_per_generation": 1, "per_device_train_batch_size": 4}, 7, "28 completions on 7 GPUs"),
        ({"generation_batch_size": 128}, 8, None),
        ({"generation_batch_size": 128}, 7, "generation_batch_size 128 is not a multiple of 8 × 7 GPUs"),
        ({"generation_batch_size": 112, "num_generations": None}, 7, None),
        ({"generation_batch_size": 56, "num_generations": 16}, 7,
         "56 completions on 7 GPUs are not a multiple"),
        ({"generation_batch_size": 128, "steps_per_generation": 2}, 8, "are both given"),
        ({"num_generations": 1}, 8, "num_generations is 1"),
        ({"auto_find_batch_size": True}, 8, "auto_find_batch_size is on"),
        ({"eval_strategy": "epoch", "per_device_eval_batch_size": 3}, 4,
         "an evaluation of 3 × 4 completions"),
        ({"per_device_eval_batch_size": 3}, 4, None),
    ],
)  # fmt: skip
def test_doctor_names_the_count_at_which_trls_groups_do_not_divide(beside, gpus, says):
    reading = stops(examine({**GRPO, **beside}, gpus))
    assert [bool(reading), says is None or says in reading[0]] == [says is not None, True], reading


@pytest.mark.parametrize(
    ("beside", "gpus", "options", "written"),
    [
        ({"steps_per_generation": 8}, 4, {}, {"gradient_accumulation_steps": 4, "steps_per_generation": 16}),
        ({"steps_per_generation": 1}, 4, {}, {"gradient_accumulation_steps": 4, "steps_per_generation": 2}),
        ({"generation_batch_size": 256}, 7, {"batch_multiple": 8}, {"generation_batch_size": 224}),
        ({"eval_strategy": "steps", "per_device_eval_batch_size": 3}, 4, {},
         {"per_device_eval_batch_size": 2}),
        ({"steps_per_generation": 1}, 16, {}, "has 0.5 at gradient_accumulation_steps 1: plan with "
            "--accumulation-multiple 2"),
        ({}, 7, {}, "126 completions on 7 GPUs are not a multiple of num_generations 8"),
    ],
)  # fmt: skip
def test_a_rollout_is_written_of_as_many_steps_as_it_was_or_refused(beside, gpus, options, written):
    own = {**GRPO, **beside}
    plan = ib.plan(ib.Recipe.read(own, gpus=8), gpus, batch_tolerance=0.2, **options)
    if isinstance(written, str):
        with pytest.raises(ib.InputError, match=written):
            plan.to("trl", job=Job(own=own))
    else:
        assert {key: plan.to("trl", job=Job(own=own)).settings.get(key) for key in written} == written


def test_the_command_takes_groups_and_rollouts_from_the_file(tmp_path, ran):
    path = written(tmp_path, "grpo.json", json.dumps({**GRPO, "steps_per_generation": 1, "use_vllm": True}))
    command = f"plan --from {path} --set gpus=8 --batch-tolerance 0.2 --to trl".split()
    out, messages = ran([*command, "--gpus", "7"])  # 112, of 16 a group and rollout
    assert "\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n" in out
    assert "steps_per_generation: 1\n" in out and "vllm_mode server, the default before TRL 1.0" in messages
    assert "plan with --accumulation-multiple 2" in ran([*command, "--gpus", "16"], 2).err


def test_a_rollout_of_several_steps_follows_the_accumulation():
    assert read_file(GRPO).multiple == 8
    reading = read_file({**GRPO, "steps_per_generation": 8})
    says = "steps_per_generation 8: set it to 4 × the gradient_accumulation_steps that is written"
    assert says in reading.notes
    assert reading.multiple == 2, "4 steps make a rollout, and 8 completions a group"


def test_counts_hold_the_groups_of_a_file_together(tmp_path, ran):
    groups = {**GRPO, "per_device_train_batch_size": 7, "num_generations": 14}
    path = written(tmp_path, "grpo.json", json.dumps(groups))
    line = "counts --set gpus=8 --gpus 1..8 --batch-tolerance 0.1 --json --from"
    rows = [json.loads(line) for line in ran([*line.split(), str(path)]).out.splitlines()]
    working = [row for row in rows if row["status"] != "infeasible"]
    assert len(working) > 3 and all(row["effective_batch"] % 14 == 0 for row in working)


# ---- ms-swift: TRL's names, other defaults, and processes by variables ----

SWIFT = """
export NNODES=2
PER=4
CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=$PER \\
swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B --tuner_type lora --dataset 'AI-MO/NuminaMath-TIR#5000' \\
    --num_train_epochs 1 --per_device_train_batch_size 4 --gradient_accumulation_steps $(expr 16 / $PER) \\
    --max_completion_length 2048
"""


def swift(tmp_path, text, name="run.sh"):
    return read_file(written(tmp_path, name, text))


def test_ms_swifts_script_is_its_own(tmp_path):
    reading = swift(tmp_path, SWIFT)
    assert (reading.tool, reading.multiple, reading.faults) == ("ms_swift", 8, [])
    want = {"gpus": 8, "batch_per_gpu": 4, "accumulation": 4, "lr": 1e-4}
    want |= {"schedule": "cosine", "weight_decay": 0.1, "betas": (0.9, 0.95)}
    assert {name: reading.fields[name] for name in want} == want
    note = "not in the file, ms-swift's own defaults: learning_rate 0.0001, num_generations 8"
    assert note in reading.notes, reading.notes


def test_ms_swifts_yaml_has_its_processes_under_env(tmp_path):
    text = "ENV: {NPROC_PER_NODE: 4}\ntuner_type: full\nper_device_train_batch_size: 2\nmodel: m\n"
    reading = swift(tmp_path, text, "sft.yaml")
    assert (reading.tool, reading.fields["gpus"], reading.fields["lr"]) == ("ms_swift", 4, 1e-5)
    assert reading.fields["accumulation"] == 2, "16 samples over 4 processes of 2"


def test_ms_swifts_accumulation_by_processes_is_asked_for(tmp_path):
    reading = swift(tmp_path, "swift sft --model m --per_device_train_batch_size 2 --num_train_epochs 1")
    assert "gpus" not in reading.fields
    assert [field for field, _ in reading.faults] == ["accumulation"]
    assert any("one process, unless the environment has them" in note for note in reading.notes)


def test_ms_swifts_megatron_is_refused(tmp_path):
    says = "`megatron sft` of ms-swift, whose defaults are not Megatron-LM's"
    with pytest.raises(ib.InputError, match=says):
        swift(tmp_path, "NPROC_PER_NODE=8 megatron sft --micro_batch_size 1 --lr 1e-5 --train_iters 100")


@pytest.mark.parametrize(
    "words", ["--config {} --learning_rate 1e-4", "{} --learning_rate 1e-4 --max_length 2048"]
)
def test_a_script_of_ms_swift_that_names_its_settings_is_refused_with_that_file(tmp_path, words):
    message = (
        r"line 1 runs `swift sft` with the settings of sft.yaml: name that file instead; add lr "
        r"\(learning_rate\) from the command by --set"
    )
    with pytest.raises(ib.InputError, match=message):
        swift(tmp_path, f"NPROC_PER_NODE=4 swift sft {words.format('sft.yaml')}")


def test_doctor_names_the_count_at_which_ms_swifts_group_does_not_divide(tmp_path):
    swift(tmp_path, SWIFT.replace("$(expr 16 / $PER)", "1"))
    reading = stops(examine(tmp_path / "run.sh", 3))
    assert any("not a multiple of num_generations 8" in text for text in reading), reading


@pytest.mark.parametrize(
    ("settings", "adapter"),
    [
        ({"finetuning_type": "lora", "cutoff_len": 128}, "lora"),
        ({"finetuning_type": "full", "cutoff_len": 128}, None),
        ({"num_generations": 8, "use_peft": True}, "lora"),
        ({"num_generations": 8}, None),
        ({"tuner_type": "full", "add_version": True}, None),
        ({"train_type": "lora", "add_version": True}, "lora"),
        ({"base_model": "m", "adapter": "qlora", "micro_batch_size": 2}, "lora"),
    ],
)
def test_an_adapter_of_low_rank_is_read(settings, adapter):
    trainer = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "learning_rate": 1e-4}
    reading = read_file(settings if "base_model" in settings else {**trainer, **settings})
    assert reading.fields.get("adapter") == adapter


@pytest.mark.parametrize(
    ("settings", "default"),
    [
        ({"trl_config": "SFTConfig"}, "SFTConfig's own default is 2e-5"),
        ({"trl_config": "RewardConfig"}, "RewardConfig's own default is 1e-4"),
        ({"trl_config": "OnlineDPOConfig"}, "OnlineDPOConfig's own default is 5e-7"),
        ({"trl_config": "BCOConfig"}, "TRL's own default is 2e-5 (SFT), 1e-4 (Reward)"),
        ({"num_generations": 8}, "GRPOConfig's own default is 1e-6"),
        ({"completion_only_loss": True}, "SFTConfig's own default is 2e-5"),
        ({"precompute_ref_log_probs": True}, "DPOConfig's own default is 1e-6"),
        ({"max_prompt_length": 64}, "TRL's own default is 2e-5 (SFT), 1e-4 (Reward)"),
    ],
)
def test_each_of_trls_trainers_has_a_learning_rate_of_its_own(settings, default):
    trainer = {"per_device_train_batch_size": 4, "num_train_epochs": 1, "gradient_accumulation_steps": 2}
    (note,) = [note for note in read_file({**trainer, **settings}, "trl").notes if "learning_rate" in note]
    assert note.startswith(f"learning_rate is not in the file; {default}")


def test_a_scripts_class_tells_trls_trainer(tmp_path):
    text = (
        "from trl import DPOConfig\nargs = DPOConfig('o', per_device_train_batch_size=4, "
        "num_train_epochs=1)\n"
    )
    notes = read_file(written(tmp_path, "train.py", text)).notes
    assert any("DPOConfig's own default is 1e-6" in note for note in notes)


def test_the_rates_of_the_installed_trl():
    trl = pytest.importorskip("trl")
    from isobatch.tools.trl import _RATES

    for name, rate in _RATES.items():
        known = getattr(trl, f"{name}Config", None)
        defaults = {field.name: field.default for field in dataclasses.fields(known)} if known else {}
        assert defaults.get("learning_rate", float(rate)) == float(rate), name


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "bnpo"}, ("loss_type bnpo", "(own_units)", "use loss_type dapo")),
        ({"entropy_coef": 0.1}, ("entropy_coef adds", "(loss_term)", "use entropy_coef 0")),
        ({"loss_type": "dapo", "entropy_coef": 0}, ()),
        ({}, ()),
    ],
)
def test_a_loss_that_another_split_changes_is_said_with_the_one_that_stays(tmp_path, settings, words):
    file = written(tmp_path, "grpo.json", json.dumps(GRPO | settings))
    notes = [note for note in read_file(file, "trl").notes if "another split" in note]
    assert len(notes) == bool(words)
    assert all(word in note for note in notes for word in words)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("", ("loss_agg_mode token-mean", "(own_units)", "seq-mean-token-mean")),
        ("token-mean", ("loss_agg_mode token-mean", "before verl 0.8")),
        ("seq-mean-token-sum-norm", ("(divided_by_ranks)", "seq-mean-token-sum")),
        ("seq-mean-token-mean", ()),
    ],
)
def test_an_aggregation_of_verl_that_another_split_changes_is_said(tmp_path, mode, words):
    setting = f" actor_rollout_ref.actor.loss_agg_mode={mode}" if mode else ""
    file = written(tmp_path, "run.sh", VERL.rstrip() + setting + "\n")
    notes = [note for note in read_file(file).notes if "another split" in note]
    assert len(notes) == bool(words)
    assert all(word in note for note in notes for word in words)
    record = examine(file, gpus=16).to_json()
    assert [note for note in record["notes"] if "another split" in note] == notes


def test_each_mode_names_a_law_of_the_table():
    laws = pytest.importorskip("isobatch.equivalence.laws").LAWS
    assert {loss.law for loss in (losses.ENTROPY, *losses.TRL.values(), *losses.VERL.values())} <= {*laws}
