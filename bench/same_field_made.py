"""Makes tiny models and data of a few kilobytes under the names that documents of trainers use.

A folder `openai-community/gpt2` beside a script is read before a hub is asked, so that a command of a
document runs as written. All is random; a tokenizer is trained on the text.
"""

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORDS = [
    "the",
    "a",
    "red",
    "blue",
    "old",
    "small",
    "cat",
    "dog",
    "tree",
    "house",
    "river",
    "runs",
    "sees",
    "likes",
    "paints",
    "near",
    "under",
    "over",
    "and",
    "but",
]
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A template of Qwen's kind."""
DATA = Path("data")
GLUE = """dataset_info:
- config_name: mrpc
  features:
  - {name: sentence1, dtype: string}
  - {name: sentence2, dtype: string}
  - {name: label, dtype: {class_label: {names: {'0': not_equivalent, '1': equivalent}}}}
  - {name: idx, dtype: int64}
"""
"""The classes of a data set's card."""


def sentence(draw: random.Random, least: int = 3, most: int = 16) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most))) + "."


def turns(draw: random.Random, *roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": sentence(draw)} for role in roles]


def write_rows(
    folder: Path, rows: Sequence[dict[str, Any]], *splits: str, name: str = "default", features: str = ""
) -> None:
    """Writes a dataset of a hub: files of JSON lines, and the card that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in splits:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{split}.jsonl").write_text(lines)
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in splits)
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{files}{features}---\n"
    )


def make_datasets(root: Path) -> None:
    """Makes text, pairs, preferences and prompts, by the names of hubs."""
    draw = random.Random(0)
    both = ("train", "validation")
    write_rows(
        root / "wikitext", [{"text": sentence(draw)} for _ in range(900)], *both, name="wikitext-2-raw-v1"
    )
    pairs = [
        {"sentence1": sentence(draw), "sentence2": sentence(draw), "label": at % 2, "idx": at}
        for at in range(256)
    ]
    write_rows(root / "nyu-mll/glue", pairs, *both, name="mrpc", features=GLUE)
    scored = [
        {"sentence1": row["sentence1"], "sentence2": row["sentence2"], "score": at % 11 / 10}
        for at, row in enumerate(pairs)
    ]
    write_rows(root / "sentence-transformers/stsb", scored, *both, "test")
    triples = [
        {"anchor": sentence(draw), "positive": sentence(draw), "negative": sentence(draw)}
        for _ in range(10_000)
    ]
    write_rows(root / "sentence-transformers/all-nli", triples, "train", "dev", "test", name="triplet")
    write_rows(
        root / "stanfordnlp/imdb",
        [{"text": sentence(draw, 2, 40), "label": at % 2} for at in range(256)],
        "train",
    )
    chats = [{"messages": turns(draw, "user", "assistant")} for _ in pairs]
    write_rows(root / "trl-lib/Capybara", chats, "train", "test")
    preferences = [
        {
            "chosen": [*(asked := turns(draw, "user")), *turns(draw, "assistant")],
            "rejected": [*asked, *turns(draw, "assistant")],
        }
        for _ in pairs
    ]
    for name in ("trl-lib/ultrafeedback_binarized", "anthropic/hh-rlhf"):
        write_rows(root / name, preferences, "train", "test")
    judged = [
        {"prompt": turns(draw, "user"), "completion": turns(draw, "assistant"), "label": at % 3 > 0}
        for at in range(256)
    ]
    write_rows(root / "trl-lib/kto-mix-14k", judged, "train", "test")
    tasks = [{"prompt": turns(draw, "user"), "solution": f"${at}$"} for at in range(256)]
    write_rows(root / "HuggingFaceH4/Polaris-Dataset-53K", tasks, "train")
    told = [{"instruction": sentence(draw), "input": "", "output": sentence(draw, 3, 30)} for _ in range(256)]
    for name in ("teknium/GPT4-LLM-Cleaned", "yahma/alpaca-cleaned"):
        write_rows(root / name, told, "train")
    (root / "my_custom_dataset.json").write_text(json.dumps(told))


def make_texts(root: Path) -> None:
    """Makes nanoGPT's and nanochat's texts."""
    import numpy

    draw = random.Random(1)
    text = "\n".join(sentence(draw) for _ in range(4000))
    (root / "custom_texts").mkdir(parents=True, exist_ok=True)
    for name in ("one.txt", "two.txt", "three.txt"):
        (root / "custom_texts" / name).write_text(text)
    letters = sorted({*text})
    codes = numpy.array([letters.index(letter) for letter in text], dtype=numpy.uint16)
    for name in ("shakespeare_char", "openwebtext"):
        folder = root / DATA / name
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "val"):
            codes.tofile(folder / f"{split}.bin")


def make_images(root: Path) -> None:
    """Makes folders of images by class, images with captions, and a table of files and captions."""
    import numpy
    from PIL import Image

    noise, draw = numpy.random.default_rng(0), random.Random(2)
    captions: dict[str, str] = {}
    for split in ("train", "val"):
        for at in range(96):
            place = root / "imagenet" / split / f"class{at % 2}" / f"{at:03}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            shade = noise.integers(0, 200, 3)
            pixels = (shade + noise.integers(0, 55, (64, 64, 3))).astype(numpy.uint8)
            Image.fromarray(pixels).save(place)
            captions[str(place.relative_to(root))] = sentence(draw)
    for name in ("huggan/flowers-102-categories", "lambdalabs/naruto-blip-captions"):
        folder = root / name / "train"
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for at, (place, caption) in enumerate(list(captions.items())[:96]):
            (folder / f"{at:03}.png").write_bytes((root / place).read_bytes())
            rows.append(json.dumps({"file_name": f"{at:03}.png", "text": caption}))
        (folder / "metadata.jsonl").write_text("\n".join(rows))
    with (root / "train_data.csv").open("w") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerows([("filepath", "title"), *captions.items()])
    make_boxes(root, captions)


def make_boxes(root: Path, captions: dict[str, str]) -> None:
    """Makes a data set of ultralytics' kind: one or two boxes an image, none on some."""
    draw = random.Random(3)
    for at, place in enumerate(captions):
        split = Path(place).parts[1]
        image = root / "coco8" / "images" / split / f"{at:03}.png"
        label = root / "coco8" / "labels" / split / f"{at:03}.txt"
        for path in (image, label):
            path.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes((root / place).read_bytes())
        boxes = [f"{draw.randrange(2)} {draw.uniform(0.3, 0.7):.3f} 0.5 0.4 0.3\n" for _ in range(at % 3)]
        label.write_text("".join(boxes))
    names = "names:\n  0: cat\n  1: dog\n"
    (root / "coco8.yaml").write_text(f"path: {root / 'coco8'}\ntrain: images/train\nval: images/val\n{names}")


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


def make_nanochat(root: Path) -> None:
    """Makes nanochat's files of documents, and its tokenizer as its scripts/tok_train.py writes it."""
    import pyarrow
    from pyarrow import parquet

    draw = random.Random(5)
    folder = root / "nanochat_base/base_data_climbmix"
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(2):
        texts = [" ".join(sentence(draw) for _ in range(draw.randint(1, 20))) for _ in range(2000)]
        place = folder / f"shard_{at:05}.parquet"
        parquet.write_table(pyarrow.table({"text": texts}), place, row_group_size=100)


METRIC = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        features = {name: datasets.Value("int64") for name in ("predictions", "references")}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(features))

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


def make_metrics(root: Path) -> None:
    """Makes the modules of GLUE's metric and of accuracy: the share that is right."""
    for name in ("glue", "accuracy"):
        (root / name).mkdir(exist_ok=True)
        (root / name / f"{name}.py").write_text(METRIC)


def make_all(root: Path) -> None:
    """Makes what is not there yet; a mark is left at the end of each part."""
    root.mkdir(parents=True, exist_ok=True)
    parts: list[Callable[[Path], None]] = [
        make_datasets,
        make_texts,
        make_images,
        make_language_models,
        make_diffusion,
        make_metrics,
        make_checkpoints,
        make_nanochat,
    ]
    for make in parts:
        mark = root / f".{make.__name__}"
        if not mark.exists():
            make(root)
            mark.touch()


if __name__ == "__main__":
    import sys

    make_all(Path(sys.argv[1]))
