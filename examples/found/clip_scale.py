"""open_clip's `--accum-freq`: the same 8 pairs in 1, 2 and 4 passes, which may change no gradient.

A report. `--accum-freq k` multiplies the gradient of `logit_scale` by k: the towers' gradient has norm
60.1634 each time, that of `logit_scale` is 1.9820, 3.9640 and 7.9280 (by `train_one_epoch` itself).
Suggested: divide the gradients of `logit_scale` and `logit_bias` by `accum_freq` before the step.
"""

from argparse import Namespace
from types import SimpleNamespace

import open_clip
import torch
from open_clip_train.train import train_one_epoch

IMAGE = {"image_size": 8, "layers": 1, "width": 64, "patch_size": 4}
TEXT = {"context_length": 6, "vocab_size": 20, "width": 64, "heads": 1, "layers": 1}
OFF = dict.fromkeys(("distill", "horovod", "wandb", "distributed", "grad_clip_norm", "rank", "local_rank"))
RUN = {"device": "cpu", "precision": "fp32", "skip_scheduler": True, "log_every_n_steps": 1, "world_size": 1}
torch.manual_seed(0)
pixels, tokens = torch.randn(8, 3, 8, 8), torch.randint(1, 19, (8, 6))
model = open_clip.CLIP(embed_dim=16, vision_cfg=IMAGE, text_cfg=TEXT, output_dict=True)


class Batches(list):
    num_batches = num_samples = 8


def show(*_):
    others = [weight.grad.norm() for name, weight in model.named_parameters() if name != "logit_scale"]
    print(f"logit_scale {model.logit_scale.grad:.4f}, all others {torch.stack(others).norm():.4f}")


optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
optimizer.register_step_pre_hook(show)
for passes in (1, 2, 4):
    batches = Batches(zip(pixels.chunk(passes), tokens.chunk(passes), strict=True))
    batches.num_batches = passes
    data = {"train": SimpleNamespace(dataloader=batches, set_epoch=lambda epoch: None)}
    args = Namespace(accum_freq=passes, batch_size=8 // passes, **RUN, **OFF)
    train_one_epoch(model, data, open_clip.ClipLoss(), 0, optimizer, None, None, None, args)
