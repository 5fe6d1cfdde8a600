"""The gradient of transformers' stock Trainer beside that of one batch, with and without the mend that isobatch names.

    python bench/trainer_gradient.py

Tiny models with random weights, on gloo; isobatch is not asked. The norm before the first step of the optimizer, over that of the
same samples in one process and one micro-batch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import torch
import torch.multiprocessing as mp
import transformers as hf

SAMPLES, LENGTH, WORDS = 16, 8, 64
SIZE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SEQ2SEQ = {"vocab_size": WORDS, "d_model": 16, "decoder_start_token_id": 0, "pad_token_id": 0}
BART = {
    f"{side}_{what}": n
    for side in ("encoder", "decoder")
    for what, n in (("layers", 1), ("attention_heads", 2))
}
MODELS = {
    "BERT, classifier": lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZE, **QUIET)),
    "BERT, tokens": lambda: hf.BertForTokenClassification(hf.BertConfig(**SIZE, **QUIET)),
    "BERT, masked": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZE, **QUIET)),
    "T5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(**SEQ2SEQ, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0)
    ),
    "BART": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(
            **SEQ2SEQ, **BART, encoder_ffn_dim=32, decoder_ffn_dim=32, dropout=0.0, attention_dropout=0.0
        )
    ),
    "GPT-2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
        )
    ),
    "Llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE, num_key_value_heads=2)),
}
CASES = (2, 1), (1, 4), (2, 4)  # processes, accumulation


def norm(name: str, processes: int, accumulation: int, mended: bool) -> float:
    """Returns the norm of the gradient at the first step, of this process's Trainer."""
    torch.manual_seed(0)
    model = MODELS[name]()
    if mended:
        model.accepts_loss_kwargs = False
    words = torch.randint(2, WORDS, (SAMPLES, LENGTH))
    labels = torch.arange(SAMPLES) % 2 if "classifier" in name else words % 2 if "tokens" in name else words
    found: list[float] = []

    class Norm(hf.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found.append(
                float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())
            )

    with tempfile.TemporaryDirectory() as folder:
        arguments = hf.TrainingArguments(
            folder,
            per_device_train_batch_size=SAMPLES // (processes * accumulation),
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            max_grad_norm=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        rows = [{"input_ids": word, "labels": label} for word, label in zip(words, labels, strict=True)]
        hf.Trainer(model, arguments, train_dataset=rows, callbacks=[Norm()]).train()
    return found[0]


def process(rank: int, processes: int, port: int, asked: list[tuple[str, int, bool]], found: Any) -> None:
    """Measures every model, as one process of several."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - the Trainer prints its losses
    norms = [norm(name, processes, accumulation, mended) for name, accumulation, mended in asked]
    if rank == 0:
        found.put(norms)


def measure(processes: int, asked: list[tuple[str, int, bool]], port: int) -> list[float]:
    """Returns the norms of rank 0."""
    found = mp.get_context("spawn").SimpleQueue()
    mp.spawn(process, (processes, port, asked, found), processes)
    norms: list[float] = found.get()
    return norms


def main() -> None:
    """Prints the table."""
    whole = dict(zip(MODELS, measure(1, [(name, 1, False) for name in MODELS], 29711), strict=True))
    print("| model | " + " | ".join(f"{p} × {a}" for p, a in CASES) + " | mended, 2 × 4 |")
    print("|---|" + "---|" * (len(CASES) + 1))
    columns = [
        measure(p, [(name, a, False) for name in MODELS], 29712 + 2 * i) for i, (p, a) in enumerate(CASES)
    ]
    columns.append(measure(2, [(name, 4, True) for name in MODELS], 29731))
    for name, *norms in zip(MODELS, *columns, strict=True):
        print(f"| {name} | " + " | ".join(f"{found / whole[name]:.3f}" for found in norms) + " |")
    print(f"\ntransformers {hf.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
