"""Makes data of a few kilobytes under the names that documents of trainers use.

A folder `stanfordnlp/imdb` beside a script is read before a hub is asked, so that a command of a document
runs as written. All is random.
"""

import csv
import json
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WORDS = "the a red blue old small cat dog tree house river runs sees likes paints near under over and but"


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
    return " ".join(draw.choices(WORDS.split(), k=draw.randint(least, most))) + "."


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
    write_rows(root / "nyu-mll/glue", pairs, *both, "test", name="mrpc", features=GLUE)
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
            "chosen": [*(prompt := turns(draw, "user")), *turns(draw, "assistant")],
            "rejected": [*prompt, *turns(draw, "assistant")],
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
    instructions = [
        {"instruction": sentence(draw), "input": "", "output": sentence(draw, 3, 30)} for _ in range(256)
    ]
    for name in ("teknium/GPT4-LLM-Cleaned", "yahma/alpaca-cleaned"):
        write_rows(root / name, instructions, "train")
    (root / "my_custom_dataset.json").write_text(json.dumps(instructions))


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


SPECIAL = """
bos user_start user_end assistant_start assistant_end python_start python_end output_start output_end
"""
"""Names of nanochat's special tokens."""


def make_nanochat(root: Path) -> None:
    """Makes nanochat's files of documents, and its tokenizer as its scripts/tok_train.py writes it."""
    import pyarrow
    import tiktoken
    import torch
    from pyarrow import parquet

    draw = random.Random(5)
    folder, place = root / "nanochat_base/base_data_climbmix", root / "nanochat_base/tokenizer"
    folder.mkdir(parents=True, exist_ok=True)
    place.mkdir(exist_ok=True)
    special = {f"<|{name}|>": 256 + at for at, name in enumerate(SPECIAL.split())}
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special)
    (place / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    sizes = [1] * len(ranks) + [0] * len(special)
    torch.save(torch.tensor(sizes, dtype=torch.int32), place / "token_bytes.pt")
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


def make_all(root: Path, *parts: Callable[[Path], None]) -> None:
    """Makes what is not there yet; a mark is left at the end of each part."""
    root.mkdir(parents=True, exist_ok=True)
    for make in parts:
        mark = root / f".{make.__name__}"
        if not mark.exists():
            make(root)
            mark.touch()


if __name__ == "__main__":
    make_all(Path(sys.argv[1]), make_datasets, make_texts, make_images, make_nanochat, make_metrics)
