"""Other tools' files: published configurations, and what files may not do. Values of published files are
facts, cited by place."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import isobatch as ib
from isobatch.tools.detect import reader, readers
from isobatch.tools.page import Reading, SettingsPage
from isobatch.tools.parse import without_comments
from isobatch.tools.read import read_file

FIELDS = Path(__file__).parent / "fields"
ARGUMENTS = {"per_device_train_batch_size": 8, "learning_rate": 1e-4, "max_steps": 100}

# (file name, text, what is given beside it, fields of the recipe). Only the settings that a plan is made of.
PUBLISHED = {
    "LLaMA-Factory: examples/train_full/llama3_full_sft.yaml": ("llama3.yaml", """
--- {model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct, stage: sft, finetuning_type: full,
 cutoff_len: 2048, max_samples: 1000, per_device_train_batch_size: 1, gradient_accumulation_steps: 2,
 learning_rate: 1.0e-5, num_train_epochs: 3.0, lr_scheduler_type: cosine, warmup_ratio: 0.1, bf16: true}
""", {"gpus": 8, "dataset_size": 1091},
     {"effective_batch": 16, "lr": 1e-5, "duration": "3ep", "warmup": "10%", "seq_len": 2048,
      "precision": "bf16"}),
    "axolotl: examples/llama-3/fft-8b.yaml": ("fft-8b.yaml", """
--- {base_model: meta-llama/Meta-Llama-3-8B, sequence_len: 8192, sample_packing: true, micro_batch_size: 1,
 gradient_accumulation_steps: 8, num_epochs: 1, optimizer: paged_adamw_8bit, lr_scheduler: cosine,
 learning_rate: 2e-5, bf16: auto, fp16: , warmup_steps: 100, weight_decay: 0.0}
""", {"gpus": 8, "dataset_size": 20_000},
     {"effective_batch": 64, "lr": 2e-5, "optimizer": "adamw", "duration": "19968sp", "warmup": "100st",
      "seq_len": 8192}),
    "torchtitan before 0.1: degrees and warmup among the training's, in eminorhan/frontier-torchtitan": (
        "llama3_8b_n64.toml", """
job = {dump_folder = "./outputs"}
model = {name = "llama3", flavor = "8B"}
optimizer = {name = "AdamW", lr = 3e-5}
training = {batch_size = 21, seq_len = 8192, warmup_steps = 500, max_norm = 1.0, steps = 500000, \
data_parallel_replicate_degree = 2, data_parallel_shard_degree = 32, tensor_parallel_degree = 4}
experimental = {pipeline_parallel_degree = 2}
""".replace("\\\n", ""), {},
     {"effective_batch": 1344, "gpus": 512, "model_parallel": 8, "lr": 3e-5, "warmup": "500st"}),
    "torchtitan: train_configs/llama3_8b.toml, a preset for 64 GPUs": ("llama3_8b.toml", """
job = {dump_folder = "./outputs"}
model = {name = "llama3", flavor = "8B"}
optimizer = {name = "AdamW", lr = 3e-4, eps = 1e-8}
lr_scheduler = {warmup_steps = 200}
training = {batch_size = 1, seq_len = 8192, max_norm = 1.0, steps = 1000}
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
""", {"gpus": 64},
     {"effective_batch": 64, "lr": 3e-4, "duration": "1000st", "warmup": "200st", "clip_norm": 1.0,
      "schedule": "linear"}),
    "Megatron-LM at core_v0.16.0: examples/gpt3/train_gpt3_175b_distributed.sh, on its model's nodes": (
     "train.sh", """
GPUS_PER_NODE=8
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes 128)
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 1536 --rampup-batch-size 16 16 5859375 --train-iters 500000
    --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 --fp16 --lr 6.0e-5
    --lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000
)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16)
ARGUMENTS=(${TRAINING_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} --seq-length 2048)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${ARGUMENTS[@]}
""", {}, {"effective_batch": 1536, "gpus": 1024, "model_parallel": 128, "micro_batch": 1,
      "accumulation": 192, "lr": 6e-5, "betas": (0.9, 0.95), "duration": "500000st", "warmup": "430st",
      "precision": "fp16", "schedule": "cosine(until=430000st)", "ramp": "16 16 5859375",
      "convention": "megatron"}),
    "Megatron-LM at d98e8a64dd: examples/llama/train_llama3_8b_h100_fp8.sh": ("llama3.sh", """
CHECKPOINT_PATH=${1:-"checkpoints/llama3_8b_fp8"}
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TRAINING_ARGS=(
    --micro-batch-size 1 --global-batch-size 128 --train-samples 1953125000 --lr-decay-samples 1949218748
    --lr-warmup-samples 3906252 --lr 0.00015 --min-lr 0.00001
    --decoupled-lr 5.0e-4      # Specific to decoupled AdamW, ensure optimizer is compatible
    --lr-decay-style cosine --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16
)
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=("--fp8-format hybrid")
fi
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES "$PRETRAIN_SCRIPT_PATH" --seq-length 8192 \\
    ${TRAINING_ARGS[@]} --tensor-model-parallel-size 1 --context-parallel-size 1
""", {}, {"effective_batch": 128, "gpus": 8, "accumulation": 16, "lr": 1.5e-4, "min_lr": 1e-5,
      "duration": "1953125000sp", "warmup": "3906252sp", "schedule": "cosine(until=1949218748sp)",
      "seq_len": 8192, "precision": "bf16"}),
    "Megatron-LM at d98e8a64dd: examples/mixtral/train_mixtral_8x7b_distributed.sh, on 4 nodes": (
     "mixtral.sh", """
NNODES=${SLURM_NNODES:-"1"}
DISTRIBUTED_ARGS=(--nproc_per_node 8 --nnodes $NNODES)
TRAINING_ARGS=(
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000
    --lr-decay-iters 320000 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 0.1 --lr-warmup-iters 500
    --clip-grad 1.0 --bf16 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
)
""", {"gpus": 32}, {"effective_batch": 256, "model_parallel": 4, "accumulation": 32, "lr": 1e-4,
      "min_lr": 1e-5, "betas": (0.9, 0.999), "duration": "500000st", "warmup": "500st",
      "schedule": "cosine(until=320000st)"}),
    "stanford_alpaca: README.md, torchrun --nproc_per_node=4 train.py": ("train.sh", """
torchrun --nproc_per_node=4 --master_port=<your_random_port> train.py \\
    --model_name_or_path <your_path_to_hf_converted_llama_ckpt_and_tokenizer> --bf16 True \\
    --data_path ./alpaca_data.json --output_dir <your_output_dir> --num_train_epochs 3 \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --learning_rate 2e-5 --weight_decay 0. \\
    --warmup_ratio 0.03 --lr_scheduler_type "cosine" --tf32 True
""", {"dataset_size": 52_002}, {"effective_batch": 128, "gpus": 4, "micro_batch": 4, "accumulation": 8,
      "lr": 2e-5, "weight_decay": 0.0, "duration": "3ep", "warmup": "3%", "schedule": "cosine",
      "precision": "bf16"}),
    "DeepSpeed: the documents' example of a configuration": ("ds.json", """
{"train_batch_size": 8, "gradient_accumulation_steps": 1, "fp16": {"enabled": true},
 "zero_optimization": true, "optimizer": {"type": "Adam", "params": {"lr": 0.00015}}}
""", {"gpus": 4}, {"effective_batch": 8, "micro_batch": 2, "accumulation": 1, "lr": 0.00015,
      "optimizer": "adamw", "precision": "fp16"}),
    "Lightning: a configuration of LightningCLI": ("config.yaml", """
seed_everything: 0
trainer: {devices: 4, num_nodes: 2, accumulate_grad_batches: 2, max_epochs: 10, precision: bf16-mixed,
          gradient_clip_val: 0.5}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 3e-4, betas: [0.9, 0.98]}}
data: {class_path: my.Data, init_args: {batch_size: 16}}
""", {"dataset_size": 10_000}, {"effective_batch": 256, "gpus": 8, "lr": 3e-4, "betas": (0.9, 0.98),
      "clip_norm": 0.5, "duration": "10ep", "precision": "bf16", "convention": "lightning"}),
}  # fmt: skip


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def has(recipe, fields):
    assert {field: getattr(recipe, field) for field in fields} == fields


@pytest.mark.parametrize("source", PUBLISHED)
def test_published(source, tmp_path):
    name, text, arguments, fields = PUBLISHED[source]
    recipe = ib.Recipe.read(written(tmp_path, name, text), **arguments)
    has(recipe, fields)
    planned = ib.plan(recipe, recipe.gpus or 8)
    assert planned.status != "infeasible" and planned.effective_batch == recipe.effective_batch


TITAN = """\
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
import os
os.system("touch hacked")

def llama3_debugmodel() -> Trainer.Config:
    model_spec = model_registry("debugmodel")
    return Trainer.Config(
        model_spec=model_spec,
        optimizer=default_adamw(lr=8e-4),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps=2, decay_ratio=0.8, decay_type="linear", min_lr_factor=0.0
        ),
        training=TrainingConfig(local_batch_size=8, seq_len=2048, steps=10),
        parallelism=ParallelismConfig(pipeline_parallel_schedule="Interleaved1F1B"),
    )

def llama3_8b() -> Trainer.Config:
    return Trainer.Config(
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=8192, steps=1000),
    )

def llama3_8b_long() -> Trainer.Config:
    config = llama3_8b()
    config.training.steps = 4 * 1000
    config.parallelism.tensor_parallel_degree = 2
    if os.environ.get("FAST"):
        config.optimizer.lr = 1.0
    return config
"""


class TestTorchtitanInPython:
    """torchtitan 0.3.0: torchtitan/models/llama3/config_registry.py, and a function that changes
    another's."""

    def test_a_function_of_a_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        path = written(tmp_path, "registry.py", TITAN)
        recipe = ib.Recipe.read(f"{path}:llama3_8b", gpus=64)
        batch = {"effective_batch": 64, "lr": 3e-4, "duration": "1000st", "warmup": "200st"}
        has(recipe, batch | {"betas": (0.9, 0.95), "weight_decay": 0.1, "seq_len": 8192})
        assert ib.Recipe.read(f"{path}:llama3_debugmodel", gpus=1).schedule == "wsd(decay=8st, shape=linear)"
        assert not (tmp_path / "hacked").exists()

    def test_one_that_changes_another_is_refused(self, tmp_path):
        path = written(tmp_path, "registry.py", TITAN)
        with pytest.raises(ib.InputError, match="llama3_8b_long computes its configuration: give the run"):
            ib.Recipe.read(f"{path}:llama3_8b_long", gpus=64)

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            ("", r"has 3 configurations: llama3_debugmodel, llama3_8b, llama3_8b_long\. Name one after a "
                r"colon"),
            (":llama3_8bb", "did you mean 'llama3_8b'"),
        ],
    )  # fmt: skip
    def test_the_configuration_is_asked_for(self, tmp_path, name, says):
        with pytest.raises(ib.InputError, match=says):
            read_file(f"{written(tmp_path, 'registry.py', TITAN)}{name}")

    def test_batches_in_tokens(self, tmp_path):
        """As its main branch counts after 0.3."""
        text = (
            "def a() -> Trainer.Config:\n    return Trainer.Config(optimizer=default_adamw(3e-4), "
            "training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank={}, max_context_length=8192, "
            "steps=10))\n"
        )
        recipe = ib.Recipe.read(written(tmp_path, "a.py", text.format("2 * 8192")), gpus=8)
        assert (recipe.micro_batch, recipe.effective_batch, recipe.seq_len) == (2, 16, 8192)
        with pytest.raises(ib.InputError, match="a multiple of max_context_length 8192"):
            ib.Recipe.read(written(tmp_path, "a.py", text.format(9000)), gpus=8)


def test_two_files_of_one_run(tmp_path):
    text = '{"per_device_train_batch_size": 4, "learning_rate": 1e-4, "max_steps": 10}'
    arguments = written(tmp_path, "a.json", text)
    text = "compute_environment: LOCAL_MACHINE\nnum_machines: 2\nnum_processes: 16\n"
    assert ib.Recipe.read([arguments, written(tmp_path, "b.yaml", text)]).effective_batch == 64
    text = "num_processes: 8\ndistributed_type: DEEPSPEED\ndeepspeed_config: {gradient_accumulation_steps: 4}"
    second = written(tmp_path, "c.yaml", text)
    with pytest.raises(ib.InputError, match="accumulation_steps is 1 in .*: give accumulation a value"):
        ib.Recipe.read([arguments, second])


def test_all_that_is_missing_is_asked_for_at_once(tmp_path):
    path = written(tmp_path, "a.json", '{"per_device_train_batch_size": 8, "num_train_epochs": 3}')
    with pytest.raises(ib.InputError) as caught:
        ib.Recipe.read(path)
    assert caught.value.fields == ("lr", "gpus", "dataset_size")
    assert all(f"--set {field}=" in str(caught.value) for field in caught.value.fields)
    assert ib.Recipe.read(path, gpus=2, lr=1e-4, dataset_size=100).effective_batch == 16


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json",
         '{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, '
         '"optimizer": {"params": {"lr": 1}, "type": "AdamW"}}',
         "100, but train_micro_batch_size_per_gpu 8 × gradient_accumulation_steps 2 × 8 replicas is 128"),
        ("a.json",
         '{"train_batch_size": "auto", "gradient_clipping": "auto", "optimizer": {"type": "AdamW", '
         '"params": {"lr": "auto"}}}',
         "--set effective_batch="),
        ("a.json", '{"per_device_train_batch_size": "auto", "learning_rate": 1e-4, "max_steps": 5}',
         '"auto" is not known before the run'),
        ("a.json", '{"learning_rate": "fast", "per_device_train_batch_size": 8.5, "max_steps": 5}',
         "2 faults"),
        ("a.json", '{"learning_rate": 1, "learning_rate": 2}', "listed twice"),
        ("a.json", '{"learning_rate": NaN, "per_device_train_batch_size": 8}',
            "learning_rate must be a number"),
        ("a.json", '{"a": ' + "[" * 100_000, "nested deeper"),
        ("a.json", '{"lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 1e-4, "max_steps": 5}',
         "cannot be planned"),
        ("a.json", '{"colour": "red"}', "no tool is recognized by these settings"),
        ("a.yaml", "learning_rate: &a [*a]\nnum_train_epochs: 3", "cannot be read|nested deeper"),
        ("a.yaml",
         "x: &a {y: 1}\n" + "".join(
             f"x{i}: &a{i} [*a{i - 1 if i else ''}, *a{i - 1 if i else ''}]\n" for i in range(60)),
         "more than 200,000 values|nested deeper"),
        ("a.yaml",
         "per_device_train_batch_size: 4\nnum_train_epochs: 1\nlearning_rate: "
         "!!python/object/apply:os.system ['touch hacked']",
         "learning_rate is computed, and nothing here is executed"),
        ("a.yaml", "learning_rate: !unknown 3", "cannot be read"),
        ("a.yaml", "[" * 1000, "nested deeper"),
        ("a.toml", "[training]\nlocal_batch_size = 'auto'\nsteps = 10\n[optimizer]\nlr = 1e-3",
         "not known before the run"),
        ("a.sh", "python t.py --global-batch-size $BATCH --lr 1e-4 --train-iters 5",
         r"is \$BATCH, which is not set in this file"),
        ("a.sh",
         "python t.py --global-batch-size 8 --lr 1e-4 --train-iters 5 --rampup-batch-size 1 1 9 "
         "--step-batch-size-schedule 0:8",
         "contradict"),
    ],
)  # fmt: skip
def test_unusable_settings_are_named(tmp_path, monkeypatch, name, text, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ib.InputError, match=says) as caught:
        ib.Recipe.read(written(tmp_path, name, text), gpus=8)
    assert name in str(caught.value)
    assert not (tmp_path / "hacked").exists()


def test_a_pickle_of_a_checkpoint_runs_nothing(tmp_path, monkeypatch):
    import os
    import pickle

    class Hostile:
        def __reduce__(self):
            return os.system, ("touch hacked",)

    monkeypatch.chdir(tmp_path)
    state = {"global_step": 5, "max_steps": 20, "train_batch_size": 4, "log_history": []}
    written(tmp_path, "trainer_state.json", json.dumps(state))
    arguments = tmp_path / "training_args.bin"
    for pickled in (pickle.dumps(Hostile()), pickle.dumps([Hostile()] * 3) + b"." * 10):
        arguments.write_bytes(pickled)
        reading = read_file(tmp_path)
        assert (reading.step, reading.fields["duration"], reading.fields["batch_per_gpu"]) == (5, "20st", 4)
    arguments.write_bytes(b"\x80\x04\x95nonsense")
    with pytest.raises(ib.InputError, match="cannot be read"):
        read_file(tmp_path)
    assert not (tmp_path / "hacked").exists()


def test_auto_is_filled_in_by_the_file_that_fills_it_in(tmp_path, ran):
    auto = dict.fromkeys(("train_batch_size", "gradient_accumulation_steps"), "auto")
    auto |= {"zero_optimization": {}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
    config = written(tmp_path, "ds.json", json.dumps(auto))
    output = ran(["plan", "--from", str(config), "--gpus", "16", "--to", "deepspeed"], 2).err
    assert all(f"--set {name}=" in output for name in ("lr", "effective_batch", "duration"))
    assert "isobatch plan reads the file that fills it in" in output
    filling = written(tmp_path, "args.json", json.dumps({**ARGUMENTS, "gradient_accumulation_steps": 2}))
    line = f"plan --set gpus=8 --gpus 16 --to deepspeed --from {filling} --from {config}"
    assert '"train_batch_size": 128' in ran(line.split()).out


def test_yaml_has_the_numbers_of_yaml_1_2(tmp_path):
    text = "learning_rate: 2e-5\nper_device_train_batch_size: 8\nmax_steps: 1e3\n"
    has(ib.Recipe.read(written(tmp_path, "a.yaml", text), gpus=1), {"lr": 2e-5, "duration": "1000st"})


def test_a_ratio_keeps_its_steps():
    """The Trainer takes ceil(1,000,000 / 3) steps."""
    arguments = {**ARGUMENTS, "max_steps": 10**6, "warmup_ratio": 1 / 3}
    assert ib.plan(ib.Recipe.read(arguments, gpus=8), 8).warmup_steps == 333_334


def test_our_own_files_know_the_same_names(tmp_path):
    own = {**ARGUMENTS, "gpus": 8, "gradient_accumulation_steps": 2, "warmup_ratio": 0.03}
    recipe = ib.Recipe.load(written(tmp_path, "job.json", json.dumps(own)))
    has(recipe, {"effective_batch": 128, "lr": 1e-4, "duration": "100st", "warmup": "3%"})
    both = written(tmp_path, "both.yaml", "effective_batch: 8\nlr: 1.0\nlearning_rate: 2.0\n")
    with pytest.raises(ib.InputError, match="lr and learning_rate are the same field"):
        ib.Recipe.load(both)


def test_missing_settings_have_the_optimizers_own_default():
    optimizer = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-3}}
    settings = {"trainer": {"devices": 1, "max_steps": 9}, "optimizer": optimizer, "data": {"batch_size": 4}}
    has(ib.Recipe.read(settings, gpus=1), {"weight_decay": 0.01, "betas": None})


def test_accelerates_ways_of_dealing_are_read():
    """`split_batches` counts a batch over all processes; `even_batches: false` fills nothing up."""

    def read(**config):
        own = {"per_device_train_batch_size": 64, "gradient_accumulation_steps": 2}
        return ib.Recipe.read(ARGUMENTS | own | {"accelerator_config": config}, gpus=8)

    has(read(), {"effective_batch": 1024, "micro_batch": 64, "even_batches": True})
    split = read(split_batches=True)
    has(split, {"effective_batch": 128, "micro_batch": 8, "accumulation": 2})
    assert any("set it to false" in note for note in split.notes)
    has(read(even_batches=True), {"even_batches": True})
    assert "even_batches: false" in ib.plan(read(even_batches=False), 16).to("transformers").text


def test_megatrons_lowered_batch_is_named(tmp_path, ran):
    text = (
        "torchrun --nproc_per_node 8 train.py --micro-batch-size 4 --global-batch-size 256 --lr 1e-4 "
        "--train-iters 100 --decrease-batch-size-if-needed"
    )
    line = "plan --gpus 7 --split smaller --min-micro-batch 4 --max-micro-batch 4 --from"
    output = ran([*line.split(), str(written(tmp_path, "run.sh", text))])
    assert "4 × accumulation 9 × 7 replicas = 252" in output.out
    assert "--split smaller --min-micro-batch N --max-micro-batch N" in output.err + output.out


# ---- DeepSpeed's JSON with comments and trailing commas; others' is refused by name ----

DS = """{
  // our configuration
  "train_micro_batch_size_per_gpu": 16, # a GPU's
  "gradient_accumulation_steps": 4, /* micro-
  batches */
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95,],}},
  "tensorboard": {"output_path": "http://a//b, } # c"},
}
"""


def test_deepspeeds_comments_are_read(tmp_path):
    recipe = ib.Recipe.read(written(tmp_path, "ds.json", DS), gpus=1)
    has(recipe, {"effective_batch": 64, "lr": 3e-3, "betas": (0.9, 0.95)})
    assert json.loads(without_comments(DS))["tensorboard"]["output_path"] == "http://a//b, } # c"


def test_others_are_told_the_cause(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"per_device_train_batch_size": 8, // ours\n "learning_rate": 0.1, "max_steps": 5}')
    with pytest.raises(ib.InputError, match="has comments or trailing commas, which JSON does not have"):
        ib.Recipe.read(path, gpus=1)
    path.write_text('{"train_batch_size": 8, // ours\n "a": }')
    with pytest.raises(ib.InputError, match="cannot be read: Expecting property name"):
        ib.Recipe.read(path, gpus=1)


_JSON = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(_JSON)
def test_plain_json_stays(data):
    assert json.loads(without_comments(json.dumps(data, indent=1))) == data


# ---- several files, notes, and hostile values ----

COSINE = {**ARGUMENTS, "lr_scheduler_type": "cosine", "bf16": True}
ENGINE = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {}, "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 0}}},
         "schedule"),
        ({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 50}}}, "duration"),
        ({"fp16": {"enabled": True}}, "precision"),
        ({"gradient_clipping": 0.5}, "clip_norm"),
    ],
)  # fmt: skip
def test_two_files_that_disagree_are_refused_with_both_values(settings, field):
    arguments = {**COSINE, "max_grad_norm": 1.0}
    for files in ([arguments, {**ENGINE, **settings}], [{**ENGINE, **settings}, arguments]):
        with pytest.raises(ib.InputError, match=f"but .* in the settings: give {field} a value"):
            ib.Recipe.read(files, gpus=1)


def test_settings_win_over_another_files_defaults_in_any_order():
    for files in ([COSINE, ENGINE], [ENGINE, COSINE]):
        recipe = ib.Recipe.read(files, gpus=1)
        has(recipe, {"schedule": "cosine", "duration": "100st", "precision": "bf16"})


def test_a_recipe_keeps_the_notes_of_its_files():
    recipe = ib.Recipe.read({**ARGUMENTS, "zebra": 1}, gpus=1)
    assert "the settings: not understood, may change the batch: zebra (--set overrides)" in recipe.notes
    assert ib.Recipe(effective_batch=8, lr=0.1).notes == ()


def test_a_file_without_an_end_is_read_no_further_than_a_configuration_may_go():
    with pytest.raises(ib.InputError, match=r"zero: has more than the [\d,]+ bytes"):
        read_file("/dev/zero", "transformers")


HOSTILE = (10**400, -(10**30), 1e308, "1e999", "9" * 500, -1, 0, True, "x", "", "auto", [], [1], {})
HOSTILE += ({"a": 1}, [[1]], None, 0.5)


@pytest.mark.parametrize("tool", [name for name in readers() if name != "checkpoint"])
def test_no_value_of_a_setting_is_a_fault_of_the_reader(tool):
    """Each setting of a reader, with values refused by every tool: an InputError, or a note, and
    nothing else."""
    settings, probe = probed(tool, (FIELDS / f"{tool}.txt").read_text().split("\n")[1:])
    for name in sorted(probe.used):
        for value in HOSTILE:
            changed = json.loads(json.dumps(settings))
            put(changed, name, value)
            with contextlib.suppress(ib.InputError):
                read_file(changed, tool)


def probed(tool, lines):
    """Returns settings of these names, and the tool's reading of them; a line may give its own a value
    (`optimizer="SGD"`)."""
    settings, probe = {}, Reading(tool, "", "", {})
    for line in filter(None, lines):
        name, _, value = line.partition("=")
        put(settings, name, json.loads(value) if value else None)
    reader(tool).reader.read(SettingsPage(settings, probe))
    return settings, probe


def put(settings, name, value):
    *path, last = name.split(".")
    for part in path:
        inner = settings.get(part)
        settings[part] = inner if isinstance(inner, dict) else {}
        settings = settings[part]
    settings[last] = value


def test_megatrons_share_of_a_warmup_is_of_the_decays_samples(tmp_path):
    line = (
        "x --micro-batch-size 1 --global-batch-size 480 --train-samples 5000000 --lr 3e-4 "
        "--lr-warmup-fraction 0.01 {}"
    )
    for more, warmup in (
        ("--rampup-batch-size 80 80 500000", "50000sp"),
        ("--lr-decay-samples 4000000", "40000sp"),
    ):
        assert ib.Recipe.read(written(tmp_path, "a.sh", line.format(more)), gpus=16).warmup == warmup


def test_megatrons_wsd_with_an_end_of_its_own_is_refused(tmp_path):
    line = (
        "x --micro-batch-size 1 --global-batch-size 8 --train-iters 1000 --lr 3e-4 --lr-decay-style WSD "
        "--lr-wsd-decay-iters 100 --lr-wsd-decay-style linear --lr-decay-iters {}"
    )
    with pytest.raises(ib.InputError, match="lr-decay-iters: WSD that ends before the run cannot be planned"):
        ib.Recipe.read(written(tmp_path, "a.sh", line.format(900)), gpus=8)
    assert ib.Recipe.read(written(tmp_path, "b.sh", line.format(1000)), gpus=8).schedule.startswith("wsd(")
