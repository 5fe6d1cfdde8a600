"""Profiles from a model's size and a data sheet.

The arithmetic, what is refused, and published runs inside the range.
"""

import json

import pytest

import isobatch as ib
from isobatch import Reason
from isobatch.forecast.data_sheets import SHEETS
from isobatch.forecast.decoder import decoder_of
from isobatch.forecast.estimate import KEPT_GATED, KEPT_PLAIN, LINK_SHARE, estimated

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}


def llama(kind="llama", **changes):
    fields = {
        "model_type": kind,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    }
    return fields | changes


LLAMA_2 = {
    "7B": llama(),
    "13B": llama(hidden_size=5120, intermediate_size=13824, num_hidden_layers=40, num_attention_heads=40,
    num_key_value_heads=40),
    "70B": llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
    num_key_value_heads=8),
}  # fmt: skip
LLAMA_3 = llama(intermediate_size=14336, num_key_value_heads=8, vocab_size=128256)
COUNTED = {
    124_439_808: GPT2,
    6_738_415_616: LLAMA_2["7B"],
    13_015_864_320: LLAMA_2["13B"],
    68_976_648_192: LLAMA_2["70B"],
    8_030_261_248: LLAMA_3,
    7_241_732_096: llama("mistral", intermediate_size=14336, num_key_value_heads=8),
    7_615_616_512: llama("qwen2", hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
    num_attention_heads=28, num_key_value_heads=4, vocab_size=152064),
    8_190_735_360: llama("qwen3", intermediate_size=12288, num_hidden_layers=36, num_key_value_heads=8,
    head_dim=128, vocab_size=151936),
    8_537_680_896: llama("gemma", hidden_size=3072, intermediate_size=24576, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=16, head_dim=256, vocab_size=256000,
    tie_word_embeddings=True),
    20_554_567_680: llama("gpt_neox", hidden_size=6144, intermediate_size=24576, num_hidden_layers=44,
    num_attention_heads=64, vocab_size=50432, num_key_value_heads=64),
    3_821_079_552: llama("phi3", hidden_size=3072, intermediate_size=8192, vocab_size=32064),
}  # fmt: skip


def written(folder, fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("parameters", COUNTED)
def test_parameters_are_those_of_the_published_models(parameters):
    assert decoder_of(COUNTED[parameters]).parameters == parameters


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("parameters", COUNTED)
def test_and_those_that_transformers_makes(parameters):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    fields = dict(COUNTED[parameters])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_time_is_operations_over_the_share_of_the_peak(tmp_path):
    estimate = ib.estimate(written(tmp_path, LLAMA_2["7B"]), gpu="A100-80", seq_len=4096)
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    operations = 4096 * (6 * matrices + 12 * 32 * 4096 * 4096)
    sample = estimate.compute_per_sample
    assert sample.value - sample.error == pytest.approx(operations / 312e12 / 0.5)
    assert sample.value + sample.error == pytest.approx(operations / 312e12 / 0.3)
    assert estimate.compute_constant.value == 0 and estimate.update is None
    memory = estimate.memory_fixed_gib
    assert (memory.value - memory.error) * 2**30 == pytest.approx(16 * 6_738_415_616)
    assert (memory.value + memory.error) * 2**30 == pytest.approx(18 * 6_738_415_616)


def test_every_constant_is_marked_and_a_plan_says_so(tmp_path):
    estimate = ib.estimate(written(tmp_path, LLAMA_3), gpu="H100-80", seq_len=8192, shards=8, inter_gb_s=400)
    assert all(constant.estimated for constant in estimate.constants().values())
    recipe = ib.Recipe(effective_batch=128, lr=3e-4, duration="1000st", seq_len=8192)
    node = ib.Cluster(nodes=2, gpu="H100-80", memory_gib=76, price_per_gpu_hour=2.0)
    plan = ib.plan(recipe, node, profile=estimate)
    assert Reason.FORECAST_ESTIMATED in plan.reasons and plan.cap_source == "memory"
    assert 0 < plan.step_error < plan.step_seconds and plan.cost > 0
    swept = ib.counts(recipe, [8, 16, 32], profile=estimate, cluster=node)
    assert swept.fastest == 32
    path = tmp_path / "profile.json"
    estimate.save(path)
    assert ib.Profile.load(path) == estimate


@pytest.mark.parametrize(
    ("model", "gpu_hours"), [("7B", 184_320), ("13B", 368_640), ("70B", 1_720_320)], ids=str
)
def test_the_gpu_hours_of_llama_2_are_inside_the_range(model, gpu_hours, tmp_path):
    """2e12 tokens of 4,096 on A100-80 (Touvron et al. 2023, arXiv 2307.09288, table 2)."""
    estimate = ib.estimate(written(tmp_path, LLAMA_2[model]), gpu="A100-80", seq_len=4096).compute_per_sample
    hours = [
        end * 2e12 / 4096 / 3600 for end in (estimate.value - estimate.error, estimate.value + estimate.error)
    ]
    assert hours[0] < gpu_hours < hours[1]


def test_tensor_and_pipeline_parallel_are_in_it(tmp_path):
    model = written(tmp_path, LLAMA_2["70B"])
    plain = ib.estimate(model, gpu="A100-80", seq_len=4096)
    tensor = ib.estimate(model, gpu="A100-80", seq_len=4096, tensor_parallel=8)
    traffic = 80 * 4 * 2 * 7 / 8 * 4096 * 8192 * 2 / 300e9
    least = (plain.compute_per_sample.value - plain.compute_per_sample.error) / 8
    constant = tensor.compute_per_sample
    assert constant.value - constant.error == pytest.approx(least + traffic / LINK_SHARE[1])
    assert tensor.compute_constant.value == pytest.approx(80 * 4 * 2 * 7 * 1e-5)
    both = ib.estimate(
        model, gpu="A100-80", seq_len=4096, tensor_parallel=8, pipeline_parallel=4, micro_batch=2
    )
    stage = both.compute_constant.value + 2 * both.compute_per_sample.value
    assert both.compute_per_sample.value == pytest.approx(constant.value / 4)
    assert both.update.value == pytest.approx(3 * stage)
    assert both.memory_fixed_gib.value == pytest.approx(plain.memory_fixed_gib.value / 32)


def test_recomputing_costs_time_and_saves_memory(tmp_path):
    model = written(tmp_path, LLAMA_3)
    none, attention, full = (
        ib.estimate(model, gpu="H100-80", seq_len=8192, recompute=recomputed)
        for recomputed in ("none", "attention", "full")
    )
    assert full.compute_per_sample.value == pytest.approx(4 / 3 * none.compute_per_sample.value)
    memories = [profile.memory_per_sample_gib.value for profile in (full, attention, none)]
    assert memories == sorted(memories) and memories[0] < memories[1] / 2 and memories[2] > 3 * memories[1]


def test_missing_figures_are_named(tmp_path):
    by_count = estimated(parameters=7 * 10**9, gpu="L40S-48", seq_len=2048)
    assert by_count.profile.memory_per_sample_gib is None
    assert any("operations of attention" in line for line in by_count.missing)
    model = written(tmp_path, LLAMA_3)
    split = estimated(model, gpu="H100-80", seq_len=8192, tensor_parallel=2, pipeline_parallel=2, shards=2)
    for words in (
        "sequence parallelism",
        "stages send",
        "gathers of sharded weights",
        "the network between nodes",
    ):
        assert any(words in line for line in split.missing), words
    assert not any("gathers" in line for line in by_count.missing)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', estimates know gpt2, gpt_neox, llama"),
        ({}, "model_type is None"),
        ([], "must be a table"),
        (llama(num_local_experts=8), "num_local_experts: mixtures of experts"),
        (llama(quantization_config={"bits": 4}), "quantized weights"),
        (llama(attention_bias=True), "attention_bias is true"),
        (llama(num_attention_heads=33), "a divisor of the width 4096"),
        (llama(hidden_size="4096"), "hidden_size must be a whole number"),
        ({key: value for key, value in llama().items() if key != "vocab_size"}, "vocab_size is missing"),
    ],
)
def test_other_models_are_refused_by_name(fields, says, tmp_path):
    with pytest.raises(ib.InputError, match="config.json") as caught:
        ib.estimate(written(tmp_path, fields), gpu="H100-80", seq_len=128)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpu": "H100-8"}, "unknown gpu 'H100-8'"),
        ({"gpu": "T4-16"}, "T4-16 has no peak for precision 'bf16'"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"optimizer": "adamx"}, "unknown optimizer"),
        ({"recompute": "some"}, "unknown recompute"),
        ({"utilization": (0.5, 0.3)}, "utilization must be"),
        ({"utilization": 1.5}, "utilization must be"),
        ({"tensor_parallel": 3}, "a divisor of the model's 32 heads"),
        ({"pipeline_parallel": 5}, "a divisor of the model's 32 layers"),
        ({"parameters": 10**9}, "either its config.json or its parameters"),
        ({"seq_len": 0}, "seq_len must be"),
        ({"inter_gb_s": 0.0}, "inter_gb_s must be"),
    ],
)
def test_wrong_arguments_are_named(arguments, says, tmp_path):
    usual = {"gpu": "H100-80", "seq_len": 128}
    with pytest.raises(ib.InputError) as caught:
        ib.estimate(written(tmp_path, LLAMA_3), **usual | arguments)
    assert says in str(caught.value)


def test_the_command_prints_ranges_and_writes_a_profile(tmp_path, ran):
    out = str(tmp_path / "profile.json")
    model = str(written(tmp_path, LLAMA_3))
    printed = ran(
        ["estimate", model, "--gpu", "h100-80", "--seq-len", "8192", "--tensor-parallel", "8", "-o", out]
    )
    for words in ("8.03e9", "0.3 to 0.5", "16 to 18 B a parameter", "arXiv 2205.05198"):
        assert words in printed.out
    assert "plan with --model-parallel 8 --gpu H100-80 --memory-gib 74.5" in printed.err
    assert "not in it: the network" in printed.err and "do not fit" not in printed.err
    assert ib.Profile.load(out).gpu == "H100-80"
    printed = ran(["estimate", "--parameters", "7e9", "--seq-len", "2048", "--gpu", "L4-24", "--json"])
    assert json.loads(printed.out)["memory_per_sample_gib"] is None
    # 7e9 parameters x 16 B = 104 GiB, on a GPU of 24 GB = 22.4 GiB
    assert "104 to 117 GiB do not fit L4-24, which has 22.4 GiB: share them by --shards" in printed.err
    assert all(name in ran(["estimate", "--gpu", "list"]).out for name in list(SHEETS)[-1:])
    error = ran(["estimate", "--parameters", "7e9"], 2).err
    assert "--gpu is missing: a data sheet" in error and "--seq-len is missing: tokens" in error


@pytest.mark.slow
@pytest.mark.peers
def test_peaks_are_those_of_lightnings_table():
    throughput = pytest.importorskip("lightning.fabric.utilities.throughput")
    torch = pytest.importorskip("torch")
    names = {"A10-24": "a10g", "A100-40": "a100", "A100-80": "a100", "L4-24": "l4", "H100-80": "h100 sxm",
    "H100-PCIe-80": "h100 pcie"}  # fmt: skip
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": "tfloat32", "fp32": torch.float32}
    for name, peer in names.items():
        for precision, key in formats.items():
            peak = throughput._CUDA_FLOPS[peer][key] / 1e12
            assert SHEETS[name].tflops[precision] == pytest.approx(peak, rel=0.005), (name, precision)


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_activations_of_transformers_are_inside_the_range(kind):
    """The difference of two depths and two batches, so only layers count."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    seq = 256
    if kind == "gpt2":
        fields = {"n_embd": 256, "n_head": 4, "vocab_size": 1000, "n_positions": seq, "resid_pdrop": 0.0,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
        depth = "n_layer"
    else:
        fields = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": seq}  # fmt: skip
        depth = "num_hidden_layers"

    def kept(layers, batch):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **fields, **{depth: layers})
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        sizes = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                sizes[storage.data_ptr()] = (storage.nbytes(), tensor)
            return tensor

        ids = torch.zeros((batch, seq), dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model.train()(input_ids=ids, labels=ids, use_cache=False)
        return sum(nbytes for nbytes, _ in sizes.values())

    layer = (kept(4, 3) - kept(4, 1) - kept(2, 3) + kept(2, 1)) / 4
    least = decoder_of({"model_type": kind, depth: 1, **fields}).layer_bytes(seq, 2, keep_scores=False)
    assert 0.95 * least < layer < (KEPT_PLAIN if kind == "gpt2" else KEPT_GATED) * least, layer / least


RECOMPUTING = {
    "args.json": '{"per_device_train_batch_size": 2, "learning_rate": 1e-4, "max_steps": 9, %s}',
    "run.sh": "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2 --global-batch-size 64 "
    "--lr 1e-4 --train-iters 9 %s",
    "titan.toml": '[activation_checkpoint]\nmode = "%s"\n[training]\nlocal_batch_size = 2\n'
    "global_batch_size = 64\nseq_len = 512\nsteps = 9\n[optimizer]\nlr = 1e-4\n",
}


@pytest.mark.parametrize("command", ["plan", "counts"])
@pytest.mark.parametrize(
    ("file", "on", "off", "name"),
    [
        (
            "args.json",
            '"gradient_checkpointing": true',
            '"gradient_checkpointing": false',
            "gradient_checkpointing",
        ),
        ("run.sh", "--recompute-granularity full", "--recompute-activations", "recompute_granularity"),
        ("titan.toml", "full", "none", "activation_checkpoint.mode"),
    ],
)
def test_a_file_that_recomputes_is_not_forecast_without_that_in_silence(
    command, file, on, off, name, tmp_path, monkeypatch, ran
):
    monkeypatch.chdir(tmp_path)
    sizes = {"parameters": 10**9, "seq_len": 512, "gpu": "H100-80"}
    for recompute in ("attention", "full"):
        estimated(**sizes, recompute=recompute).profile.save(f"{recompute}.json")
    note = (
        f"{file}: {name} recomputes activations; the profile is estimated without: a step takes about a third"
    )
    typed = [command, "--from", file, "--set", "gpus=8", "--gpus", "8", "--profile"]
    (tmp_path / file).write_text(RECOMPUTING[file] % on)
    assert note in ran([*typed, "attention.json"]).err
    assert "recomputes activations" not in ran([*typed, "full.json"]).err
    (tmp_path / file).write_text(RECOMPUTING[file] % off)
    assert "recomputes activations" not in ran([*typed, "attention.json"]).err
