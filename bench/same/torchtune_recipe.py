"""torchtune's recipes on a tiny Llama: torchtune_recipe.py RECIPE, such as full_finetune_distributed."""

import argparse
import os
import runpy
import sys
import tempfile
from pathlib import Path

import torch
import torchtune
from omegaconf import OmegaConf
from torchtune import training
from torchtune.models.llama3 import llama3

IGNORED = -100
HERE = "torchtune_recipe"  # a configuration names its pieces by dotted path


def tiny_llama() -> torch.nn.Module:
    return llama3(
        vocab_size=100,
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        embed_dim=32,
        max_seq_len=64,
        intermediate_dim=64,
    )


class Tokenizer:
    pad_id = 0
    max_seq_len = 64


class Rows(torch.utils.data.Dataset):
    """Rows of unequal length; the prompt, and with it the first label, is masked."""

    def __init__(self, tokenizer: Tokenizer | None = None, **settings: object):
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(4, 30, (64,), generator=generator).tolist()
        self.rows = [torch.randint(5, 90, (length,), generator=generator).tolist() for length in lengths]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict:
        tokens = self.rows[number]
        prompt = len(tokens) // 2
        return {"tokens": tokens, "labels": [IGNORED] * prompt + tokens[prompt:]}


class Checkpointer:
    """Weights from a seed, and no file."""

    def __init__(self, **settings: object):
        pass

    def load_checkpoint(self, **settings: object) -> dict:
        generator = torch.Generator().manual_seed(5)
        weights = {
            name: torch.randn(weight.shape, generator=generator) * 0.1
            if weight.dim() > 1
            else torch.ones_like(weight)
            for name, weight in tiny_llama().state_dict().items()
        }
        return {"model": weights}

    def save_checkpoint(self, *parts: object, **settings: object) -> None:
        pass


def keep_off_cuda() -> None:
    """Old recipes ask CUDA for its memory, whatever the device."""
    training.get_memory_stats = lambda **settings: {}
    training.log_memory_stats = lambda *parts, **settings: None
    torch.cuda.reset_peak_memory_stats = lambda *parts: None
    torch.cpu.reset_peak_memory_stats = lambda *parts: None
    torch.cpu.empty_cache = lambda: None


def write_configuration(options: argparse.Namespace) -> OmegaConf:
    off = (
        "resume_from_checkpoint save_adapter_weights_only optimizer_in_bwd compile shuffle "
        "enable_activation_checkpointing enable_activation_offloading memory_efficient_fsdp_wrap "
        "fsdp_cpu_offload log_peak_memory_stats"
    )
    return OmegaConf.create(
        {
            **dict.fromkeys(off.split(), False),
            "output_dir": tempfile.mkdtemp(),
            "device": "cpu",
            "dtype": "fp32",
            "seed": 1,
            "epochs": 1,
            "max_steps_per_epoch": 4,
            "log_every_n_steps": 1,
            "clip_grad_norm": None,
            "profiler": None,
            "batch_size": options.per_device_train_batch_size,
            "gradient_accumulation_steps": options.gradient_accumulation_steps,
            "model": {"_component_": f"{HERE}.tiny_llama"},
            "tokenizer": {"_component_": f"{HERE}.Tokenizer"},
            "dataset": {"_component_": f"{HERE}.Rows", "packed": False},
            "checkpointer": {"_component_": f"{HERE}.Checkpointer"},
            "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3},
            "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
            "metric_logger": {"_component_": "torchtune.training.metric_logging.StdoutLogger"},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", choices=("full_finetune_single_device", "full_finetune_distributed"))
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    options = parser.parse_args()
    keep_off_cuda()
    for name, alone in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": 29477}.items():
        os.environ.setdefault(name, str(alone))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    # the recipe is a script beside the package, and reads its file from the command line
    path = Path(tempfile.mkdtemp(), "recipe.yaml")
    OmegaConf.save(write_configuration(options), path)
    sys.argv = [options.recipe, "--config", str(path)]
    recipes = Path(torchtune.__file__).parent.parent / "recipes"
    runpy.run_path(str(recipes / f"{options.recipe}.py"), run_name=options.recipe)["recipe_main"]()


if __name__ == "__main__":
    main()
