"""Trainings with defaults or numerics of a release: python against_scripts.py NAME."""

import sys
import tempfile
import zlib

import torch

VOCABULARY = 64


def filled(model):
    """Fills each weight by its place in its layer: releases initialize in other orders."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            seed = zlib.crc32(".".join(name.split(".")[-3:]).encode())
            tensor.normal_(0, 0.1, generator=torch.Generator().manual_seed(seed))
    return model


class Rows(torch.utils.data.Dataset):
    """Rows of unequal length, padded to twelve tokens."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(3, VOCABULARY, (12,), generator=generator)
        mask = (torch.arange(12) < 4 + index % 8).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def llama(**settings):
    """Makes a Llama of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return filled(LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes, **settings)))


def head(name):
    """Makes a small model of a class of transformers."""
    import transformers

    sizes = {
        "BertForMaskedLM": {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        },
        "BartForConditionalGeneration": {
            "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
            "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        },
        "T5ForConditionalGeneration": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 4},
        "Qwen2ForCausalLM": {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
    }[name]  # fmt: skip
    kind = getattr(transformers, name)
    extra = {"decoder_start_token_id": 0} if "Conditional" in name else {}
    return filled(kind(kind.config_class(vocab_size=VOCABULARY, **sizes, **extra)))


def train(model, **settings):
    """Trains with the Trainer, as a user who sets little."""
    from transformers import Trainer, TrainingArguments

    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(
        output_dir=folder, report_to="none", save_strategy="no", max_steps=6, **settings
    )
    Trainer(model, arguments, train_dataset=Rows()).train()


def half_checkpoint():
    """Loads a checkpoint in bfloat16 without naming a dtype."""
    from transformers import AutoModelForCausalLM

    folder = tempfile.mkdtemp()
    llama().to(torch.bfloat16).save_pretrained(folder)
    train(AutoModelForCausalLM.from_pretrained(folder))


def tokenizer():
    """Makes a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(3, VOCABULARY)} | {"<pad>": 0, "<eos>": 1, "<unk>": 2}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def words(seed, count):
    """Draws a text."""
    numbers = torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
    return " ".join(f"w{number}" for number in numbers.tolist())


def trl(kind, columns, **settings):
    """Trains with a trainer of TRL."""
    import trl as library
    from datasets import Dataset

    rows = [
        {name: words(1000 * at + row, length) for at, (name, length) in enumerate(columns.items())}
        for row in range(32)
    ]
    config = getattr(library, f"{kind}Config")(
        output_dir=tempfile.mkdtemp(),
        report_to="none",
        save_strategy="no",
        max_steps=6,
        use_cpu=True,
        **settings,
    )
    trainer = getattr(library, f"{kind}Trainer")(
        llama(), args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
    )
    trainer.train()


def accelerate(**settings):
    """Trains by a loop with Accelerate."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(1)
    accelerator = Accelerator(**settings)
    model = filled(torch.nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    data = torch.utils.data.TensorDataset(
        torch.randn(32, 12, generator=torch.Generator().manual_seed(2)), torch.arange(32) % 4
    )
    loader = torch.utils.data.DataLoader(data, 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def adapter(kind, **settings):
    """Trains an adapter of PEFT."""
    import peft

    config = getattr(peft, f"{kind}Config")(target_modules=["q_proj", "v_proj"], **settings)
    train(filled(peft.get_peft_model(llama(), config)))


def lightning(**settings):
    """Trains with Lightning."""
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = filled(torch.nn.Linear(12, 4))

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    pl.seed_everything(1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 12), torch.arange(32) % 4)
    trainer = pl.Trainer(
        max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tempfile.mkdtemp(), **settings,
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(data, 4, shuffle=True))


ACCUMULATED = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
SCRIPTS = {
    "llama accumulated": lambda: train(llama(), **ACCUMULATED),
    "llama": lambda: train(llama()),
    "llama cosine": lambda: train(llama(), lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.1),
    "gpt2": lambda: train(head("GPT2LMHeadModel")),
    "gpt2 accumulated": lambda: train(head("GPT2LMHeadModel"), **ACCUMULATED),
    "qwen2": lambda: train(head("Qwen2ForCausalLM")),
    "qwen2 accumulated": lambda: train(head("Qwen2ForCausalLM"), **ACCUMULATED),
    "bert": lambda: train(head("BertForMaskedLM")),
    "bert accumulated": lambda: train(head("BertForMaskedLM"), **ACCUMULATED),
    "bart accumulated": lambda: train(head("BartForConditionalGeneration"), **ACCUMULATED),
    "t5 accumulated": lambda: train(head("T5ForConditionalGeneration"), **ACCUMULATED),
    "t5": lambda: train(head("T5ForConditionalGeneration")),
    "half checkpoint": half_checkpoint,
    "sft": lambda: trl("SFT", {"text": 9}),
    "sft completion": lambda: trl("SFT", {"prompt": 5, "completion": 4}),
    "dpo": lambda: trl("DPO", {"prompt": 5, "chosen": 4, "rejected": 6}),
    "dpo long": lambda: trl("DPO", {"prompt": 9, "chosen": 9, "rejected": 7}, max_length=12),
    "kto": lambda: trl("KTO", {"prompt": 5, "completion": 4}),
    "reward": lambda: trl("Reward", {"chosen": 6, "rejected": 5}),
    "accelerate": accelerate,
    "accelerate accumulated": lambda: accelerate(gradient_accumulation_steps=2),
    "lora": lambda: adapter("Lora", r=4),
    "oft": lambda: adapter("OFT"),
    "ia3": lambda: adapter("IA3", feedforward_modules=[]),
    "lightning": lightning,
    "lightning accumulated": lambda: lightning(accumulate_grad_batches=2, gradient_clip_val=0.5),
}

if __name__ == "__main__":
    SCRIPTS[sys.argv[1]]()
