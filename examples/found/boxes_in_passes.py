"""DETR under accumulation: two images, with 1 and 7 boxes, in one pass and in two."""

import torch
from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

loss = ImageLoss(HungarianMatcher(), num_classes=1, eos_coef=0.1, losses=["boxes"])
counts = (1, 7)
targets = [
    {"class_labels": torch.zeros(count, dtype=torch.long), "boxes": torch.full((count, 4), 0.25)}
    for count in counts
]
for passes in (1, 2):
    boxes = torch.full((2, 8, 4), 0.5, requires_grad=True)
    for rows in torch.arange(2).chunk(passes):
        outputs = {"logits": torch.zeros(len(rows), 8, 2), "pred_boxes": boxes[rows]}
        losses = loss(outputs, [targets[row] for row in rows])
        (losses["loss_bbox"] / passes).backward()
    sizes = boxes.grad.abs().sum((1, 2)).tolist()
    print(
        f"{passes} passes: gradient of one box {sizes[0] / counts[0]:.3f}, "
        f"of each of seven {sizes[1] / counts[1]:.3f}"
    )
