"""Published runs: what their papers and configurations give, and what comes out, to the last step."""

from dataclasses import dataclass, field
from typing import Any

import pytest

import isobatch as ib

IMAGENET = 1_281_167


@dataclass(frozen=True)
class Run:
    """A recipe, its target, and the expected plan."""

    name: str
    source: str
    recipe: dict[str, Any]
    gpus: int
    comes_out: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)


GOYAL = {
    "gpus": 8, "batch_per_gpu": 32, "lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4,
    "dataset_size": IMAGENET, "duration": "90ep", "warmup": "5ep", "batch_norm": True,
}  # fmt: skip
BLOOM = {
    "effective_batch": 2048, "lr": 6e-5, "betas": (0.9, 0.95), "weight_decay": 0.1, "gpus": 384,
        "model_parallel": 48,
    "micro_batch": 2, "accumulation": 128, "seq_len": 2048, "duration": "220000000sp", "warmup": "183105sp",
    "ramp": "192 16 9765625", "convention": "megatron",
}  # fmt: skip
DETECTRON = {
    "gpus": 8, "batch_per_gpu": 2, "lr": 0.02, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-4,
        "duration": "7500st",
    "schedule": "multistep(3750st, 5000st, gamma=0.1)",
}  # fmt: skip
LAMB = {
    "effective_batch": 512, "lr": 5 / (2**3.0 * 1e3), "optimizer": "lamb", "weight_decay": 0.01, "gpus": 16,
    "duration": "1000000st", "warmup": "0.3125%",
}  # fmt: skip
LLAMA_405B = {
    "effective_batch": 1152, "lr": 8e-5, "optimizer": "adamw", "betas": (0.9, 0.95), "weight_decay": 0.1,
        "seq_len": 8192,
    "duration": "313344sp", "warmup": "8000st",
}  # fmt: skip
STRONG_COMPUTE = (
    "Strong Compute, Data Parallel Scaling (two ways: hold the batch, or grow it and scale the rate)"
)

RUNS = [
    Run(
        "ResNet-50, one hour", "Goyal et al. 2017, arXiv 1706.02677, sections 2.1, 2.2 and 5.1", GOYAL, 256,
        {
            "effective_batch": 8192, "lr": 3.2, "rule": "linear", "micro_batch": 32, "accumulation": 1,
                "steps_per_epoch": 157,
            "total_steps": 14_130, "warmup_steps": 785, "weight_decay": 1e-4, "warmup_lr": 0.1,
        },
        {"policy": "grow"},
    ),
    Run(
        "ResNet-50, one hour, drop_last", "as before; a whole epoch has 156 full batches",
            GOYAL | {"drop_last": True}, 256,
        {"steps_per_epoch": 156, "total_steps": 14_040, "dropped_samples": IMAGENET - 156 * 8192},
        {"policy": "grow"},
    ),
    Run(
        "BLOOM", "BigScience 2022, arXiv 2211.05100, table 3; bigscience/train/tr11-176B-ml", BLOOM, 384,
        {
            "data_parallel": 8, "micro_batch": 2, "accumulation": 128, "effective_batch": 2048,
                "total_steps": 115_311,
            "lr": 6e-5, "steps_per_epoch": None,
        },
    ),
    Run(
        "BLOOM, the end not floored", "as before, counted as torch counts", BLOOM | {"convention": "torch"},
            384, {"total_steps": 115_312},
    ),
    Run(
        "Pythia-12B", "Biderman et al. 2023, arXiv 2304.01373; EleutherAI/pythia, models/12B/pythia-12b.yml",
        {
            "gpus": 256, "model_parallel": 4, "batch_per_gpu": 8, "accumulation": 2, "lr": 1.2e-4,
                "betas": (0.9, 0.95), "eps": 1e-8,
            "weight_decay": 0.1, "seq_len": 2048, "duration": "299892736000tok", "warmup": "1%",
                "convention": "megatron",
        },
        256,
        {"data_parallel": 64, "effective_batch": 1024, "total_steps": 143_000, "warmup_steps": 1430,
            "betas": (0.9, 0.95)},
    ),
    Run(
        "nanoGPT 124M", "karpathy/nanoGPT, config/train_gpt2.py: 12 × 1024 × 5 × 8 = 491520 tokens",
        {"effective_batch": 480, "lr": 6e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "seq_len": 1024,
            "duration": "294912000000tok"},
        8,
        {"micro_batch": 12, "accumulation": 5, "total_steps": 600_000},
        {"max_micro_batch": 12},
    ),
    Run(
        "BERT-large phase 1", "NVIDIA DeepLearningExamples, PyTorch/LanguageModeling/BERT, phase 1",
        {
            "gpus": 8, "batch_per_gpu": 64, "accumulation": 128, "lr": 6e-3, "optimizer": "lamb",
                "weight_decay": 0.01, "seq_len": 128,
            "duration": "7038st", "warmup": "28.43%",
        },
        8,
        {"effective_batch": 65_536, "micro_batch": 64, "accumulation": 128, "warmup_steps": 2000,
            "total_steps": 7038, "eps": 1e-6},
    ),
    Run(
        "PaLM",
        "Chowdhery et al. 2022, arXiv 2204.02311, section 5: 512 to step 50k, 1024 to 115k, 2048 to 255k",
        {
            "effective_batch": 2048, "lr": 0.01, "optimizer": "adafactor", "seq_len": 2048,
                "duration": "775946240000tok",
            "ramp": "0:512 52428800000:1024 188743680000:2048", "convention": "megatron",
        },
        512,
        {"total_steps": 255_000},
    ),
    Run(
        "OPT-175B on the 992 GPUs that were there",
            "Zhang et al. 2022, arXiv 2205.01068: 2 M tokens = 1024 × 2048, MP 8",
        {"effective_batch": 1024, "lr": 1.2e-4, "model_parallel": 8, "seq_len": 2048, "duration": "300e9tok"},
        992,
        # Integer division would shrink it to 8 × 124 = 992 in silence: by 3.1 %.
        {"status": "infeasible", "nearest_world_size": 1024, "nearest_batch": 992, "data_parallel": 124},
    ),
    # Recipes that users are taught.
    Run(
        "32 to 64 GPUs halve the batch of each", STRONG_COMPUTE, {"gpus": 32, "batch_per_gpu": 8, "lr": 1e-3},
            64,
        {"micro_batch": 4, "accumulation": 1, "effective_batch": 256, "lr": 1e-3},
    ),
    Run(
        "32 to 128 GPUs by the root", STRONG_COMPUTE, {"gpus": 32, "batch_per_gpu": 8, "lr": 1e-3}, 128,
        {"lr": 2e-3, "lr_scale": 2.0, "effective_batch": 1024}, {"policy": "grow", "rule": "sqrt"},
    ),
    # Further published runs.
    Run(
        "Faster R-CNN, 8 to 1 GPU",
            "facebookresearch/Detectron, "
            "configs/getting_started/tutorial_{1,8}gpu_e2e_faster_rcnn_R-50-FPN.yaml",
        DETECTRON, 1, {"lr": 0.0025, "total_steps": 60_000, "effective_batch": 2}, {"policy": "grow"},
    ),
    *(
        Run(
            f"BERT-large, LAMB at {512 * 2**n}",
                "You et al. 2019 (LAMB), arXiv 1904.00962, table 4 of the appendix", LAMB, 16 * 2**n,
            {
                "effective_batch": 512 * 2**n, "lr": 5 / (2 ** (3 - n / 2) * 1e3), "rule": "sqrt",
                    "warmup_steps": 3125,
                "total_steps": 1_000_000 // 2**n, "weight_decay": 0.01,
            },
            {"policy": "grow"},
        )
        for n in range(7)
    ),
    *(
        Run(
            f"Llama-3.1-405B at {1152 * k}", "MLPerf Training reference convergence points, llama31_405b",
                LLAMA_405B, 576,
            {"lr": 8e-5 * k, "warmup_steps": 8000 // k},
            {"policy": 1152 * k, "rule": "linear"},
        )
        for k in (1, 2, 4)
    ),
    Run(
        "GPT-NeoX-20B",
            "Black et al. 2022, arXiv 2204.06745; EleutherAI/gpt-neox, configs/20B.yml: 96 A100, 2 × 4, 4 × "
            "32",
        {
            "gpus": 96, "model_parallel": 8, "batch_per_gpu": 4, "accumulation": 32, "lr": 0.97e-4,
                "betas": (0.9, 0.95), "eps": 1e-8,
            "weight_decay": 0.01, "seq_len": 2048, "duration": "150000st", "warmup": "1%",
                "convention": "megatron",
        },
        96,
        {"data_parallel": 12, "effective_batch": 1536, "micro_batch": 4, "accumulation": 32,
            "warmup_steps": 1500},
    ),
    Run(
        "StarCoder",
            "Li et al. 2023, arXiv 2305.06161, sections 5.4 to 5.6: 512 A100, 4 × 4, 32 replicas of 1 × 16",
        {
            "effective_batch": 512, "lr": 3e-4, "model_parallel": 16, "betas": (0.9, 0.95), "eps": 1e-8,
                "weight_decay": 0.1,
            "seq_len": 8192, "duration": "250000st", "warmup": "2000st", "convention": "megatron",
        },
        512,
        {"data_parallel": 32, "micro_batch": 1, "accumulation": 16, "total_steps": 250_000,
            "warmup_steps": 2000},
        {"max_micro_batch": 1},
    ),
    Run(
        "MT-NLG 530B",
            "Smith et al. 2022, arXiv 2201.11990, sections 2.3 and 3.2: 280 DGX A100, 8 × 35; 32 to 1920 by "
            "32 over 12 B tokens",
        {
            "effective_batch": 1920, "lr": 5e-5, "model_parallel": 280, "betas": (0.9, 0.95), "eps": 1e-8,
                "weight_decay": 0.1,
            "seq_len": 2048, "ramp": "32 32 5859375", "duration": "270e9tok", "warmup": "1e9tok",
                "convention": "megatron",
        },
        2240,
        {"data_parallel": 8, "micro_batch": 1, "accumulation": 240, "effective_batch": 1920, "lr": 5e-5},
        {"max_micro_batch": 1},
    ),
    Run(
        "MT-NLG 530B on 420 DGX A100, from the start",
            "as before: 1920 divides over 12 replicas, the ramp's first 32 does not",
        {"effective_batch": 1920, "lr": 5e-5, "model_parallel": 280, "ramp": "32 32 5859375",
            "duration": "270e9tok", "seq_len": 2048},
        3360,
        {"status": "infeasible", "reasons": ("ramp_not_divisible",)},
    ),
    Run(
        "Stable Diffusion v1",
            "CompVis/stable-diffusion, Stable_Diffusion_v1_Model_Card.md: 32 × 8 × 2 × 4 = 2048",
        {
            "gpus": 256, "batch_per_gpu": 4, "accumulation": 2, "lr": 1e-4, "duration": "515000st",
                "warmup": "10000st",
            "schedule": "constant",
        },
        64,
        {"effective_batch": 2048, "micro_batch": 4, "accumulation": 8, "warmup_steps": 10_000, "lr": 1e-4},
    ),
    Run(
        "ConvNeXt-T on one machine",
            "facebookresearch/ConvNeXt, TRAINING.md: 4 × 8 × 128 becomes 8 × 128 × update_freq 4",
        {
            "gpus": 32, "batch_per_gpu": 128, "lr": 4e-3, "weight_decay": 0.05, "ema_decay": 0.9999,
                "dataset_size": IMAGENET,
            "duration": "300ep", "warmup": "20ep", "drop_last": "loader",
        },
        8,
        {"micro_batch": 128, "accumulation": 4, "effective_batch": 4096, "lr": 4e-3, "ema_decay": 0.9999,
            "weight_decay": 0.05},
    ),
    Run(
        "DeiT from its base rate",
            "Touvron et al. 2021, arXiv 2012.12877, table 9: lr = 0.0005 × batch/512, batch 1024",
        {"effective_batch": 512, "lr": 5e-4, "weight_decay": 0.05, "dataset_size": IMAGENET,
            "duration": "300ep", "warmup": "5ep"}, 8,
        {"lr": 1e-3, "micro_batch": 128, "steps_per_epoch": 1252, "total_steps": 375_600,
            "warmup_steps": 6260},
        {"policy": 1024, "rule": "linear"},
    ),
    Run(
        "SimCLR from its base rate",
            "Chen et al. 2020, arXiv 2002.05709, section 2.2: lr = 0.3 × batch/256 = 4.8 at 4096",
        {"effective_batch": 256, "lr": 0.3, "optimizer": "lars", "weight_decay": 1e-6,
            "dataset_size": IMAGENET, "duration": "100ep"}, 128,
        {"lr": 4.8, "micro_batch": 32, "weight_decay": 1e-6, "steps_per_epoch": 313},
        {"policy": 4096, "rule": "linear"},
    ),
    Run(
        "OpenCLIP ViT-B/32, LAION-400M",
            "mlfoundations/open_clip, docs/PRETRAINED.md: 128 A100 × 256 = 32768 (no rate is given there)",
        {"gpus": 128, "batch_per_gpu": 256, "lr": 5e-4, "dataset_size": 400_000_000, "duration": "32ep",
            "warmup": "2000st"}, 128,
        {"effective_batch": 32_768, "steps_per_epoch": 12_208},
    ),
    Run(
        "GPT-3's warmup",
            "Brown et al. 2020, arXiv 2005.14165, appendix B: 375 M tokens of warmup, 300 B in all",
        {"effective_batch": 1536, "lr": 6e-5, "betas": (0.9, 0.95), "seq_len": 2048, "duration": "300e9tok",
            "warmup": "375e6tok"}, 1536,
        {"warmup_steps": 120, "total_steps": 95_368},
    ),
    Run(
        "Llama 2 70B",
            "Touvron et al. 2023, arXiv 2307.09288, section 2.2: 4 M tokens, 2 T in all, 2000 steps of "
            "warmup",
        {"effective_batch": 1024, "lr": 1.5e-4, "seq_len": 4096, "duration": "2e12tok", "warmup": "2000st"},
            1024,
        {"total_steps": 476_838, "warmup_steps": 2000},
    ),
]  # fmt: skip


def made(fields):
    return ib.Recipe.from_gpus(**fields) if "batch_per_gpu" in fields else ib.Recipe(**fields)


@pytest.mark.parametrize("run", RUNS, ids=[run.name for run in RUNS])
def test_a_published_run_comes_out(run):
    plan = ib.plan(made(run.recipe), run.gpus, **run.options)
    for name, want in run.comes_out.items():
        value = getattr(plan, name)
        if isinstance(want, float):
            assert value == pytest.approx(want, rel=4e-16 * 4, abs=0), name
        else:
            assert value == want, name


def test_every_run_has_a_source_and_a_name_of_its_own():
    assert len({run.name for run in RUNS}) == len(RUNS) > 30
    assert all(run.source and run.comes_out for run in RUNS)


@pytest.mark.parametrize(
    ("gpus", "milestones"), [(1, (30_000, 40_000)), (2, (15_000, 20_000)), (4, (7500, 10_000))]
)
def test_detectrons_milestones(gpus, milestones):
    plan = ib.plan(made(DETECTRON), gpus, policy="grow")
    for milestone in milestones:
        assert plan.lr_at(milestone) == pytest.approx(plan.lr_at(milestone - 1) / 10, rel=1e-12)


def test_the_tokens_of_pythia_and_palm():
    pythia = next(run for run in RUNS if run.name == "Pythia-12B")
    plan = ib.plan(made(pythia.recipe), 256)
    assert plan.total_steps * plan.effective_batch * 2048 == 299_892_736_000
    assert (50_000 * 512 + 65_000 * 1024 + 140_000 * 2048) * 2048 == 775_946_240_000
