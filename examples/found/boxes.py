"""DETR on several ranks: the box loss, averaged over them.

Every rank has the same image, so that all counts must give the same.
"""

import os

import accelerate
import torch
from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

accelerate.PartialState(cpu=True)  # what a Trainer and an Accelerator do
loss = ImageLoss(HungarianMatcher(), num_classes=1, eos_coef=0.1, losses=["boxes"])
outputs = {"logits": torch.zeros(1, 4, 2), "pred_boxes": torch.full((1, 4, 4), 0.5)}
targets = [{"class_labels": torch.zeros(4, dtype=torch.long), "boxes": torch.full((4, 4), 0.25)}]
if os.environ.get("RANK", "0") == "0":
    print(
        f"{os.environ.get('WORLD_SIZE', '1')} ranks: loss_bbox "
        f"{loss(outputs, targets)['loss_bbox'].item():.4f}"
    )
else:
    loss(outputs, targets)
