"""TRL's GOLDTrainer under accumulation: eight equal rows, so that every split must give the same gradient.

A report. GOLDTrainer: the gradient is divided by gradient_accumulation_steps.
`RepeatSampler(repeat_count=gradient_accumulation_steps)` yields each generation batch once per pass, so that
`num_items_in_batch` counts its labels that many times, and `generalized_jsd_loss` divides by it: gradients of
0.0101, 0.0051 and 0.0025 in 1, 2 and 4 passes. Suggested: count the labels of the slices, as trl #6478 does
for DistillationTrainer.
"""

import torch
import transformers as tf
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl.experimental.gold import GOLDConfig, GOLDTrainer

IDS, ONES = torch.arange(5, 25), torch.ones(20, dtype=torch.long)
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
OFF = {"max_grad_norm": 0, "report_to": "none", "save_strategy": "no", "logging_strategy": "no"}
words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>"))
tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        norm = model.lm_head.weight.grad.norm().item()
        print(f"accumulation {args.gradient_accumulation_steps}: {norm:.4f}")


def collate(rows):
    columns = {"input_ids": IDS, "labels": IDS, "attention_mask": ONES, "prompts": IDS[:2]}
    return {name: value.repeat(len(rows), 1) for name, value in columns.items()}


for micro_batch, accumulation in ((8, 1), (4, 2), (2, 4)):
    torch.manual_seed(0)
    student, teacher = (tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=50, **SIZES)) for _ in range(2))
    split = {"per_device_train_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    args = GOLDConfig(
        "/tmp/found", max_steps=1, lmbda=0.0, remove_unused_columns=False, use_cpu=True, bf16=False,
        disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True}, **split, **OFF,
    )  # fmt: skip
    rows = Dataset.from_list([{"messages": []}] * 8)
    GOLDTrainer(student, teacher, args, collate, rows, processing_class=tokenizer, callbacks=[Show()]).train()
