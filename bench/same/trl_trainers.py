"""TRL's trainers on a 2-layer Llama and a tokenizer of words: trl_trainers.py sft|dpo|kto|… [options]."""

import argparse
import copy
import inspect
import tempfile
from importlib import import_module

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIAL = ["<pad>", "<eos>", "<unk>"]
WORDS = [f"w{number}" for number in range(97)]
PAIRS = {"dpo": "DPO", "cpo": "CPO", "orpo": "ORPO"}
SINGLES = {"sft": "SFT", "kto": "KTO"}
PREFERENCE_ONLY = {"cpo": {"cpo_alpha": 0.0}, "kto": {"loss_type": "apo_zero_unpaired"}}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=[*PAIRS, *SINGLES])
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument(
        "--preference-only", action="store_true", help="no term that couples the rows of a pass"
    )
    parser.add_argument(
        "--equal-lengths", action="store_true", help="so that a mean over tokens is one over rows"
    )
    return parser.parse_args()


def build_tokenizer() -> transformers.PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def build_model() -> torch.nn.Module:
    configuration = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(configuration)


def make_rows(trainer: str, equal: bool) -> Dataset:
    generator = torch.Generator().manual_seed(1)

    def draw_text(least: int, most: int) -> str:
        length = most if equal else int(torch.randint(least, most, (1,), generator=generator))
        return " ".join(WORDS[int(word)] for word in torch.randint(0, 97, (length,), generator=generator))

    rows = []
    for number in range(64):
        row = {"prompt": draw_text(3, 9)}
        if trainer in PAIRS:
            row.update(chosen=" " + draw_text(2, 30), rejected=" " + draw_text(2, 30))
        else:
            row.update(completion=" " + draw_text(2, 30))
        if trainer == "kto":
            row["label"] = number % 2 == 0
        rows.append(row)
    return Dataset.from_list(rows)


def find_classes(name: str) -> tuple[type, type]:
    module = trl if hasattr(trl, f"{name}Trainer") else import_module(f"trl.experimental.{name.lower()}")
    return getattr(module, f"{name}Config"), getattr(module, f"{name}Trainer")


def main() -> None:
    options = parse_options()
    config_class, trainer_class = find_classes((PAIRS | SINGLES)[options.trainer])
    model = build_model()
    arguments = config_class(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=options.per_device_train_batch_size,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        max_steps=8,
        learning_rate=1e-3,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **(PREFERENCE_ONLY[options.trainer] if options.preference_only else {}),
    )
    known = inspect.signature(trainer_class.__init__).parameters
    pieces = {"processing_class" if "processing_class" in known else "tokenizer": build_tokenizer()}
    if "ref_model" in known:
        pieces["ref_model"] = copy.deepcopy(model)
    rows = make_rows(options.trainer, options.equal_lengths)
    trainer_class(model, args=arguments, train_dataset=rows, **pieces).train()


main()
