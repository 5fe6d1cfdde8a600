"""Masked images: rows with 1, 1, 1 and 12 masked patches. The right gradient is that of the mean over 15.

A report. Masked image modelling: the loss is a mean over the pass's masked patches; with masks of unequal
sizes the gradient depends on gradient_accumulation_steps: 0.1957 by hand and in one pass, 0.3250 in two,
0.3821 in four. Suggested: take `num_items_in_batch`, counted from `bool_masked_pos`.
"""

import torch
import transformers as tf

QUIET = dict.fromkeys(("save_strategy", "logging_strategy"), "no") | {
    "report_to": "none",
    "disable_tqdm": True,
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
IMAGE = {"image_size": 32, "patch_size": 8, "encoder_stride": 8, "hidden_dropout_prob": 0.0}
torch.manual_seed(0)
model = tf.ViTForMaskedImageModeling(tf.ViTConfig(**SIZES, **IMAGE))
masks = torch.stack([torch.arange(16) < count for count in (1, 1, 1, 12)])
rows = [{"pixel_values": torch.randn(3, 32, 32), "bool_masked_pos": mask} for mask in masks]


def norm():
    return torch.stack(
        [weight.grad.norm() for weight in model.parameters() if weight.grad is not None]
    ).norm()


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        print(f"{args.gradient_accumulation_steps} passes: gradient {norm():.4f}")


images = torch.stack([row["pixel_values"] for row in rows])
shown = masks.reshape(4, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
error = (model(images, bool_masked_pos=masks).reconstruction - images).abs() * shown
(error.sum() / shown.sum() / 3).backward()
print(f"by hand: gradient {norm():.4f}")
for passes in (1, 2, 4):
    split = {
        "per_device_train_batch_size": 4 // passes,
        "gradient_accumulation_steps": passes,
        "max_steps": 1,
    }
    args = tf.TrainingArguments(
        "/tmp/found", learning_rate=1e-12, max_grad_norm=0, use_cpu=True, **split, **QUIET
    )
    tf.Trainer(model, args, train_dataset=rows, callbacks=[Show()]).train()
