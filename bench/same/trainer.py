"""transformers' Trainer on random rows of unequal length: trainer.py MODEL [options]."""

import argparse
import inspect
import os
import tempfile

import torch
import transformers

PAD, IGNORED = 0, -100
MODELS = {  # the configuration's and the model's class, and what the family names in its own way
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {}),
    "bert-classes": ("BertConfig", "BertForSequenceClassification", {"num_labels": 3}),
}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--per_device_train_batch_size", type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--deepspeed", type=int, help="ZeRO's stage, in a configuration of auto")
    parser.add_argument("--average-tokens", action="store_true", help="average over all ranks' tokens")
    parser.add_argument("--refuse-loss-kwargs", action="store_true", help="the workaround of an open issue")
    return parser.parse_args()


def build_model(name: str) -> torch.nn.Module:
    configuration, model, more = MODELS[name]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}  # GPT-2 maps these names
    if name != "gpt2":
        sizes["intermediate_size"] = 64
    settings = {"vocab_size": 100, "pad_token_id": PAD, "max_position_embeddings": 64, **sizes, **more}
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, configuration)(**settings))


def make_rows(count: int, classes: bool) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number in range(count):
        length = int(torch.randint(4, 30, (1,), generator=generator))
        tokens = torch.randint(5, 90, (length,), generator=generator).tolist()
        prompt = length // 2
        labels = number % 3 if classes else [IGNORED] * prompt + tokens[prompt:]
        rows.append({"input_ids": tokens, "attention_mask": [1] * length, "labels": labels})
    return rows


def collate_rows(rows: list[dict]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)

    def pad(key: str, filler: int) -> torch.Tensor:
        return torch.tensor([row[key] + [filler] * (width - len(row[key])) for row in rows])

    labels = [row["labels"] for row in rows]
    return {
        "input_ids": pad("input_ids", PAD),
        "attention_mask": pad("attention_mask", 0),
        "labels": pad("labels", IGNORED) if isinstance(labels[0], list) else torch.tensor(labels),
    }


def main() -> None:
    options = parse_options()
    model = build_model(options.model)
    if options.refuse_loss_kwargs:
        model.accepts_loss_kwargs = False
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": options.per_device_train_batch_size,
        "gradient_accumulation_steps": options.gradient_accumulation_steps,
        "label_smoothing_factor": options.label_smoothing,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "use_cpu": not torch.cuda.is_available(),
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if options.deepspeed is not None:
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
            os.environ.setdefault(name, value)  # without a launcher
        numbers = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
        zero = {"stage": options.deepspeed, "overlap_comm": False}
        settings["deepspeed"] = dict.fromkeys(numbers, "auto") | {"zero_optimization": zero}
    if options.average_tokens:
        known = inspect.signature(transformers.TrainingArguments).parameters
        if "average_tokens_across_devices" in known:
            settings["average_tokens_across_devices"] = True
    trainer = transformers.Trainer(
        model,
        transformers.TrainingArguments(**settings),
        train_dataset=make_rows(options.rows, options.model.endswith("classes")),
        data_collator=collate_rows,
    )
    trainer.train()


main()
