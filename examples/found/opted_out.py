"""Qwen3-VL with images; rows have 1, 1, 1 and 12 labels. The right gradient is that of the mean over 15.

A report. `accepts_loss_kwargs = False` on heads whose forward passes `**kwargs` to `self.loss_function`: the
gradient depends on gradient_accumulation_steps. With it the Trainer neither hands `num_items_in_batch` over
nor sums: it averages the passes' means. The gradient's norm is 2.485 by hand and in one pass, 3.333 in two,
3.898 in four. Suggested: drop the attribute where `loss_function` gets the kwargs.
"""

import sys

import torch
import transformers as tf

QUIET = dict.fromkeys(("save_strategy", "logging_strategy"), "no") | {"report_to": "none"}
SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "depth": 1, "patch_size": 4}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "num_heads": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
SIGHT = {"out_hidden_size": 32, "deepstack_visual_indexes": [0]}
IMAGE = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
torch.manual_seed(0)
parts = {"text_config": SIZES | HEADS | ROPE | {"vocab_size": 64}, "vision_config": SIZES | HEADS | SIGHT}
model = tf.Qwen3VLForConditionalGeneration(tf.Qwen3VLConfig(**parts, **IMAGE))
tf.Qwen3VLForConditionalGeneration.accepts_loss_kwargs = "--counted" in sys.argv
start = torch.tensor([[62, 60]] * 4)  # an image's start, and its one token, of 2 x 2 patches
rows = []
for number, ids in enumerate(torch.cat([start, torch.randint(5, 60, (4, 14))], 1)):
    labels = torch.where(torch.arange(16) < (4 if number == 3 else 15), -100, ids)
    image = {"pixel_values": torch.randn(4, 96), "image_grid_thw": torch.tensor([1, 2, 2])}
    rows.append({"input_ids": ids, "labels": labels, "mm_token_type_ids": (ids == 60).int(), **image})


def collate(rows):
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return batch | {"pixel_values": batch["pixel_values"].flatten(0, 1)}


def norm():
    return torch.stack(
        [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    ).norm()


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        print(f"{args.gradient_accumulation_steps} passes: gradient {norm():.4f}")


batch = collate(rows)
logits, labels = model(**{name: batch[name] for name in batch if name != "labels"}).logits, batch["labels"]
torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
print(f"by hand: gradient {norm():.4f}")
for passes in (1, 2, 4):
    split = {
        "per_device_train_batch_size": 4 // passes,
        "gradient_accumulation_steps": passes,
        "max_steps": 1,
    }
    args = tf.TrainingArguments("/tmp/found", learning_rate=1e-12, max_grad_norm=0, use_cpu=True,
                                disable_tqdm=True, remove_unused_columns=False, **split, **QUIET)  # fmt: skip
    tf.Trainer(model, args, collate, rows, callbacks=[Show()]).train()
