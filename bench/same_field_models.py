"""Makes models of two layers and their tokenizers under the names that documents of trainers use.

A folder `openai-community/gpt2` beside a script is read before a hub is asked, so that a command of a
document runs as written. The weights are random; a tokenizer is trained on random text.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from same_field_data import make_all, sentence

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template of Qwen's kind."""


def train_tokenizer(special: Sequence[str]) -> Any:
    """Returns a byte-level BPE tokenizer of 400 tokens, trained on the words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*special], initial_alphabet=alphabet)
    draw = random.Random(4)
    tokenizer.train_from_iterator([sentence(draw) for _ in range(200)], trainer)
    return tokenizer


def save_tokenizer(folder: Path, special: dict[str, str]) -> Any:
    from transformers import PreTrainedTokenizerFast

    tokens = {name: token for name, token in special.items() if name != "start"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer([*dict.fromkeys(special.values())]), model_max_length=64, **tokens
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    return tokenizer


def make_language_models(root: Path) -> None:
    """Makes a GPT-2, a Qwen2, a Llama, a BERT, a RoBERTa and a DistilBERT of two layers."""
    import torch
    import transformers as library

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    masks = {"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    masks["unk_token"] = "[UNK]"
    names: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
        (
            "openai-community/gpt2",
            "GPT2",
            {"n_embd": 32, "n_layer": 2, "n_head": 4},
            {"eos_token": "<|endoftext|>"},
        ),
        ("google-bert/bert-base-cased", "Bert", small, masks),
        ("bert-base-cased", "Bert", small, masks),
        ("FacebookAI/roberta-base", "Roberta", small | {"max_position_embeddings": 80}, masks),
        (
            "distilbert/distilbert-base-uncased",
            "DistilBert",
            {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
            masks,
        ),
        ("distilbert/distilroberta-base", "Roberta", small | {"max_position_embeddings": 80}, masks),
        (
            "NousResearch/Llama-3.2-1B",
            "Llama",
            small,
            {"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>"},
        ),
    ]
    for name in ("Qwen2-0.5B", "Qwen2-0.5B-Instruct", "Qwen2.5-0.5B", "Qwen3-4B-Instruct-2507"):
        kind = "Qwen3" if "Qwen3" in name else "Qwen2"
        names.append(
            (f"Qwen/{name}", kind, small | {"num_key_value_heads": 2}, {**ends, "start": "<|im_start|>"})
        )
    names.append(("trl-lib/qwen1.5-1.8b-sft", "Qwen2", small | {"num_key_value_heads": 2}, ends))
    heads = {
        "Bert": "ForMaskedLM",
        "Roberta": "ForMaskedLM",
        "DistilBert": "ForMaskedLM",
        "GPT2": "LMHeadModel",
    }
    for name, kind, sizes, special in names:
        tokenizer = save_tokenizer(root / name, special)
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
        pad = tokenizer.pad_token_id
        config = getattr(library, f"{kind}Config")(
            vocab_size=len(tokenizer),
            pad_token_id=pad,
            eos_token_id=end,
            bos_token_id=tokenizer.bos_token_id,
            **sizes,
        )
        torch.manual_seed(0)
        model = getattr(library, f"{kind}{heads.get(kind, 'ForCausalLM')}")(config)
        model.save_pretrained(root / name)


def make_diffusion(root: Path) -> None:
    """Makes the parts of a Stable Diffusion pipeline, and the configuration of a UNet alone."""
    import diffusers
    import torch
    import transformers as library

    folder = root / "CompVis/stable-diffusion-v1-4"
    torch.manual_seed(0)
    tokenizer = train_tokenizer(["<|startoftext|>", "<|endoftext|>"])
    place = folder / "tokenizer"
    place.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(place))
    library.CLIPTokenizer(
        str(place / "vocab.json"), str(place / "merges.txt"), model_max_length=16
    ).save_pretrained(place)
    config = library.CLIPTextConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
    )
    library.CLIPTextModel(config).save_pretrained(folder / "text_encoder")
    channels = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=64,
        **channels,
    ).save_pretrained(folder / "vae")
    diffusers.UNet2DConditionModel(
        sample_size=32,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **channels,
    ).save_pretrained(folder / "unet")
    diffusers.DDPMScheduler(num_train_timesteps=1000).save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "StableDiffusionPipeline",
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    diffusers.UNet2DModel(
        sample_size=64, down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, **channels
    ).save_config(root / "small_unet")


def make_checkpoints(root: Path) -> None:
    """Makes litgpt's Pythia, and a Llama with a tokenizer's file as torchtune reads them."""
    import base64
    import dataclasses

    import torch
    import yaml
    from litgpt import GPT, Config
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = root / "checkpoints/EleutherAI/pythia-14m"
    save_tokenizer(folder, {"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"})
    torch.manual_seed(0)
    config = Config.from_name("pythia-14m")
    torch.save(GPT(config).state_dict(), folder / "lit_model.pth")
    (folder / "model_config.yaml").write_text(
        yaml.safe_dump(json.loads(json.dumps(dataclasses.asdict(config))))
    )

    folder = root / "Llama-3.2-1B-Instruct"
    small = LlamaConfig(
        vocab_size=128_256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(small).save_pretrained(folder)
    (folder / "original").mkdir(exist_ok=True)
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    (folder / "original/tokenizer.model").write_text("\n".join(lines))


if __name__ == "__main__":
    make_all(Path(sys.argv[1]), make_language_models, make_diffusion, make_checkpoints)
