"""Schedules with ends of their own, parallelism over replicas, batches with other counts: the numbers of the
tools' own classes, at the versions of docs/tools.md."""

import pytest

from isobatch.tools.read import read_file


def fields(settings, tool, **names):
    reading = read_file(settings, tool)
    assert not reading.faults, reading.faults
    return {name: reading.fields.get(name) for name in names} == names or reading.fields


def refused(settings, tool, field):
    return any(to == field for to, _ in read_file(settings, tool).faults)


ADAM = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-4}}
LIGHTNING = {"trainer": {"max_epochs": 100, "devices": 8}, "data": {"batch_size": 8}, "optimizer": ADAM}


def scheduled(name, **arguments):
    scheduler = {"class_path": f"torch.optim.lr_scheduler.{name}", "init_args": arguments}
    return {**LIGHTNING, "lr_scheduler": scheduler}


def test_a_cosine_of_another_length_than_lightnings_run_is_refused():
    """torch's CosineAnnealingLR rises again behind T_max; ConstantLR is a level at `factor` and then a
    jump."""
    assert fields(scheduled("CosineAnnealingLR", T_max=100), "lightning", schedule="cosine") is True
    assert refused(scheduled("CosineAnnealingLR", T_max=20), "lightning", "schedule")
    for level in ({}, {"factor": 0.5}):
        assert refused(scheduled("ConstantLR", **level), "lightning", "schedule")
    assert fields(scheduled("ConstantLR", factor=1), "lightning", schedule="constant") is True
    early = {"max_epochs": 9, "limit_train_batches": 0.5}
    assert refused({**LIGHTNING, "trainer": early}, "lightning", "duration")


AXOLOTL = {"base_model": "x", "micro_batch_size": 4, "learning_rate": 1e-4}
AXOLOTL |= {"max_steps": 1001, "warmup_steps": 5}


def test_axolotls_cosines_and_its_batch_without_an_accumulation():
    ends = {"lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}
    assert fields({**AXOLOTL, **ends}, "axolotl", schedule="cosine", min_lr=1e-5) is True
    level = {**AXOLOTL, **ends, "cosine_constant_lr_ratio": 0.8}
    assert fields(level, "axolotl", schedule="cosine(until=800st)", min_lr=1e-5) is True
    assert fields({**AXOLOTL, "batch_size": 32}, "axolotl", accumulation=8, batch_per_gpu=4) is True
    assert fields({**AXOLOTL, "warmup_steps": None}, "axolotl", warmup="30st") is True
    often = {**AXOLOTL, "evals_per_epoch": 4, "saves_per_epoch": 1, "optimizer": "adamw_bnb_8bit"}
    assert fields(often, "axolotl", eval_every="0.25ep", save_every="1ep") is True


HF = {"per_device_train_batch_size": 8, "learning_rate": 1e-4, "max_steps": 10}
STRATEGY = {"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"}


@pytest.mark.parametrize(
    ("tool", "settings", "parallel"),
    [
        ("axolotl", {**AXOLOTL, "sequence_parallel_degree": 2}, 2),
        ("axolotl", {**AXOLOTL, "context_parallel_size": 2, "tensor_parallel_size": 2}, 4),
        ("transformers", {**HF, "parallelism_config": {"tp_size": 2, "cp_size": 2, "dp_shard_size": 2}}, 4),
        ("transformers", {**HF, "deepspeed": {"tensor_parallel": {"autotp_size": 4}}}, 4),
        ("accelerate", {"num_processes": 8, "parallelism_config": {"parallelism_config_tp_size": 4}}, 4),
        ("accelerate", {"num_processes": 8, "megatron_lm_config": {"megatron_lm_tp_degree": 2,
         "megatron_lm_pp_degree": 2}}, 4),
        ("deepspeed", {"train_batch_size": 8, "tensor_parallel": {"autotp_size": 2}}, 2),
        ("lightning", {**LIGHTNING, "trainer": {"max_epochs": 1, "devices": 8, "strategy": STRATEGY}}, 8),
        ("lightning", {**LIGHTNING, "trainer": {"max_epochs": 1, "strategy": {**STRATEGY,
         "init_args": {"tensor_parallel_size": 4}}}}, 4),
        ("llama_factory", {**HF, "cutoff_len": 9, "sequence_parallel_size": 2}, 2),
    ],
)  # fmt: skip
def test_parallelism_divides_the_replicas(tool, settings, parallel):
    assert fields(settings, tool, model_parallel=parallel) is True


def test_accelerates_micro_batches_and_other_switches_of_the_optimizer():
    megatron = {"num_processes": 8, "megatron_lm_config": {"megatron_lm_num_micro_batches": 4}}
    assert fields(megatron, "accelerate", accumulation=4) is True
    assert fields({**HF, "adafactor": True}, "transformers", optimizer="adafactor") is True
    assert fields({**HF, "cutoff_len": 9, "use_muon": True}, "llama_factory", optimizer="muon") is True
