"""Full sets of experts, losses over a micro-batch, and refusals of Megatron and slime."""

import json

import pytest

import isobatch as ib
from isobatch.doctor.examine import examine
from isobatch.tools.read import read_file
from tools.test_reading import written
from tools.test_rl import stops

MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes {} pretrain_gpt.py --micro-batch-size 1 --global-batch-size 96 "
    "--lr 1e-3 --seq-length 1024 {}"
)
ITERATIONS = "--train-iters 1000 --lr-warmup-iters 50"
TITAN = {"optimizer": {"lr": 1e-4}, "training": {"local_batch_size": 4, "global_batch_size": 96, "steps": 9}}
AXOLOTL = {"base_model": "m", "micro_batch_size": 1, "learning_rate": 1e-4, "max_steps": 9}
VERL = {
    "ppo_mini_batch_size": 64,
    "megatron": {"expert_model_parallel_size": 4, "pipeline_model_parallel_size": 2},
}


def script(tmp_path, flags, nodes=2):
    return written(tmp_path, "run.sh", MEGATRON.format(nodes, flags))


def titan(**degrees):
    return {**TITAN, "parallelism": {f"{name}_parallel_degree": size for name, size in degrees.items()}}


def megatron(**sizes):
    return {f"{name}_parallel_size": size for name, size in sizes.items()}


def autoep(enabled):
    return {"train_batch_size": 64, "expert_parallel": {"enabled": enabled, "autoep_size": 8}}


@pytest.mark.parametrize(
    ("tool", "settings", "gpus"),
    [
        ("torchtitan", titan(expert=8), 8),
        ("torchtitan", titan(expert=8, pipeline=2), 16),
        ("torchtitan", {**TITAN, "parallelism": {"expert_parallel_degree": 4,
         "data_parallel_replicate_degree": 2}}, 8),
        ("torchtitan", titan(expert=8, tensor=2), 8),
        ("torchtitan", titan(expert=4, tensor=2, expert_tensor=2), 8),
        ("axolotl", {**AXOLOTL, "expert_parallel_size": 4, "context_parallel_size": 2}, 8),
        ("deepspeed", autoep(True), 8),
        ("deepspeed", autoep(False), None),
        ("verl", {"actor_rollout_ref": {"actor": VERL}}, 8),
        ("megatron", megatron(expert_model=8, tensor_model=2), 16),
        ("megatron", megatron(expert_model=8, tensor_model=2, expert_tensor=1), 8),
        ("megatron", megatron(expert_model=8, pipeline_model=2), 16),
        ("megatron", {**megatron(tensor_model=2), "num_experts": 8}, None),
    ],
)  # fmt: skip
def test_the_gpus_of_one_set_of_experts_are_read(tool, settings, gpus):
    """As torchtitan's mesh, axolotl's plugin and Megatron's parallel_state divide the GPUs."""
    assert read_file(settings, tool).fields.get("expert_parallel") == gpus


def test_only_whole_sets_of_experts_are_planned(tmp_path, ran):
    path = script(tmp_path, f"{ITERATIONS} --num-experts 8 --expert-model-parallel-size 8")
    refused = ran(["plan", "--from", str(path), "--gpus", "12"], 1).out
    assert "12 GPUs are not a multiple of 8 (expert parallel)" in refused
    says = "the run stops: 12 GPUs are not a multiple of the 8 that hold one set of experts"
    assert stops(examine(path, 12)) == [says]
    assert stops(examine(path, 24)) == []
    rows = map(json.loads, ran(["counts", "--from", str(path), "--gpus", "1..24", "--json"]).out.splitlines())
    assert [row["gpus"] for row in rows if row["status"] != "infeasible"] == [8, 16, 24]
    note = "experts stay split as the script has it: the GPUs must be a multiple of 8"
    flags = "--num-experts 8 --expert-model-parallel-size 4 --pipeline-model-parallel-size 2"
    split = script(tmp_path, f"{ITERATIONS} {flags}")
    assert note in ib.plan(ib.Recipe.read(split), 16).to("megatron").text
    with pytest.raises(ib.InputError, match="gpus 12 is not a multiple of expert_parallel 8"):
        ib.Recipe.read(path, gpus=12)


@pytest.mark.parametrize(
    ("flags", "coupled"),
    [
        ("--num-experts 8 --moe-aux-loss-coeff 1e-2", "experts"),
        ("--num-experts 8 --moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type seq_aux_loss", None),
        ("--num-experts 8 --moe-router-load-balancing-type sinkhorn", "experts"),
        ("--num-experts 8 --moe-router-load-balancing-type none --moe-expert-capacity-factor 1.5", "experts"),
        ("--num-experts 8", None),
        ("--moe-aux-loss-coeff 1e-2", None),
    ],
)
def test_a_loss_that_balances_the_experts_of_a_micro_batch_is_read(tmp_path, flags, coupled):
    assert read_file(script(tmp_path, f"{ITERATIONS} {flags}")).fields.get("coupled") == coupled


def test_a_micro_batch_that_holds_the_negatives_is_no_matter_of_the_split(tmp_path, ran):
    text = """
from sentence_transformers import SentenceTransformerTrainingArguments
loss = losses.MultipleNegativesRankingLoss(model)
batch = {"per_device_train_batch_size": 64}
args = SentenceTransformerTrainingArguments("o", num_train_epochs=2, learning_rate=3e-5, **batch)
"""
    path = written(tmp_path, "train.py", text)
    out = ran(f"plan --from {path} --set gpus=4 --gpus 8 --set dataset_size=10000".split()).out
    assert "the negatives of a sample are the rest of its micro-batch: 32 samples, 64 when tuned" in out
    text = text.replace("MultipleNegativesRankingLoss", "CosineSimilarityLoss")
    assert "coupled" not in read_file(written(tmp_path, "alone.py", text)).fields


@pytest.mark.parametrize(
    ("flags", "pair", "field"),
    [
        ("--train-iters 1000 --train-samples 48000", "--train-iters and --train-samples", "duration"),
        ("--train-iters 1000 --lr-warmup-samples 480", "--train-iters and --lr-warmup-samples", "warmup"),
        ("--train-iters 1000 --lr-decay-samples 48000", "--train-iters and --lr-decay-samples", "schedule"),
        ("--train-samples 48000 --lr-decay-iters 500", "--train-samples and --lr-decay-iters", "schedule"),
        ("--train-samples 48000 --lr-warmup-iters 5", "--train-samples and --lr-warmup-iters", "warmup"),
        ("--train-iters 1000 --lr-warmup-fraction 0.1 --lr-warmup-iters 5",
         "--lr-warmup-fraction and --lr-warmup-iters", "warmup"),
    ],
)  # fmt: skip
def test_arguments_that_megatron_refuses_together_stop_the_run(tmp_path, flags, pair, field):
    path = script(tmp_path, flags)
    assert f"the run stops: {pair} are both given" in stops(examine(path, 16))
    says = f"{pair} are both given, and Megatron takes one of them: give {field} a value"
    with pytest.raises(ib.InputError, match=says):
        ib.Recipe.read(path)
    value = {"duration": "1000st", "warmup": "5st", "schedule": "cosine"}[field]
    assert getattr(ib.Recipe.read(path, **{field: value}), field) == value


def test_an_interleaved_pipeline_takes_whole_groups_of_micro_batches(tmp_path, ran):
    flags = (
        f"{ITERATIONS} --num-layers 32 --pipeline-model-parallel-size 4 "
        "--num-layers-per-virtual-pipeline-stage 2"
    )
    path = script(tmp_path, flags, nodes=8)
    assert stops(examine(path, 64)) == [
        "the run stops: 6 micro-batches are not a multiple of the pipeline's 4 stages"
    ]
    assert stops(examine(path, 32)) == []
    refused = ran(["plan", "--from", str(path), "--gpus", "64"], 1).out
    assert "cannot be split into micro-batches whose number is a multiple of 4" in refused
    assert "× accumulation 12 ×" in ran(["plan", "--from", str(path), "--gpus", "32"]).out


def test_slimes_scripts_are_no_megatrons(tmp_path, ran):
    text = (
        "ray job submit -- python3 train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --num-rollout "
        "400 --rollout-batch-size 64 --n-samples-per-prompt 16 --global-batch-size 256 --save-interval 20 "
        "--lr 1e-6 --lr-decay-style constant --tensor-model-parallel-size 2"
    )
    path = written(tmp_path, "run.sh", text)
    for words in ([], ["--tool", "megatron"]):
        message = ran(["plan", "--from", str(path), "--gpus", "24", *words], 2).err
        assert (
            "is a script of slime (or miles), which is not read" in message
            and "(= 1,024) must be a multiple of it" in message
        )
    command = message.strip().splitlines()[-1].strip()
    assert (
        command == "isobatch plan --set effective_batch=256 --set lr=1e-6 --set model_parallel=2 --gpus N "
        "--batch-multiple 16"
    )
    assert "256 samples per step" in ran(command.replace("N", "16").split()[1:]).out
    sft = (
        "python3 train_async.py --rollout-batch-size $SIZE --num-epoch 3 --global-batch-size 128 "
        "--lr-decay-style cosine --lr 1e-5"
    )
    with pytest.raises(ib.InputError, match=r"\(= that\) must be a multiple"):
        read_file(written(tmp_path, "sft.sh", sft))
