"""TRL's GKDTrainer on several ranks: eight equal rows, so that every count must give the same gradient."""

import os

import torch
import transformers as tf
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl.experimental.gkd import GKDConfig, GKDTrainer

TOKENS = list(range(5, 25))
CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>"))
ranks = int(os.environ.get("WORLD_SIZE", "1"))


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        if args.process_index == 0:
            print(f"{ranks} ranks: gradient {model.lm_head.weight.grad.norm().item():.4f}")


def collate(rows):
    ids = torch.tensor([TOKENS] * len(rows))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


torch.manual_seed(0)
student, teacher = (tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG)) for _ in range(2))
args = GKDConfig(
    "/tmp/found",
    per_device_train_batch_size=8 // ranks,
    max_steps=1,
    max_grad_norm=0,
    lmbda=0.0,  # the rows' own completions: nothing is generated
    dataset_kwargs={"skip_prepare_dataset": True},
    remove_unused_columns=False,
    report_to="none",
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
    bf16=False,
    use_cpu=True,
)
GKDTrainer(
    student,
    teacher,
    args,
    collate,
    Dataset.from_list([{"messages": []}] * 8),
    processing_class=tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    ),
    callbacks=[Show()],
).train()
