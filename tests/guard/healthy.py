"""Scripts as people write them, each by the plan, and what the guard may say of them: the table of docs/guard.md."""

from __future__ import annotations

from typing import NamedTuple

NO_IDS = "the samples: no loader over a dataset with ids was given"
ONE_MORE = "the loop takes one optimizer step more than the 9 planned"


class Healthy(NamedTuple):
    """A script, how it is run, and by what plan; the beginnings of what is left unchecked, and of what is noted."""

    kind: str
    script: str
    options: dict = {}
    fields: dict = {}
    unchecked: tuple = ()
    notes: tuple = ()


NANO = ("nanoGPT", "nanogpt")
LLAMA = ("transformers Trainer, llama", "hf_trainer")
GPT2 = ("transformers Trainer, GPT-2", "hf_trainer")
ACCELERATE = ("Accelerate", "accelerated")
LIGHTNING = ("Lightning", "lit")
TIMM = ("timm's train.py", "timm_train")
VISION = ("torchvision's reference", "vision_reference")
TITAN = ("FSDP2 in torchtitan's form", "titan")
STREAM = ("iterable data", "iterable")
PLAIN = ("plain DDP", "plain")

VALUE = {"clip": "value"}
SHARDED = (NO_IDS, "equal weights and gradients on all ranks")
DEALT = ("the samples: rank 0 reads and deals out",)
FIRST_LABEL = ("the Trainer counts each row's first label",)
MIXED = ("the gradient's size: the loss cannot be computed of the loader's batches",)

CALLED, CHANGED = ("the model is called",), ("the gradient's size: the script changes the gradients between",)
DIRECTION = ("the gradient is",)
KINDS = [
    ("warmed_up", {}, (), CALLED),
    ("views", {}, (), CALLED),
    ("sam", {"accumulation": 1, "clip_norm": None}, (), CALLED),
    ("evaluated_first", {}, (), ()),
    ("update_bn", {}, (), ()),
    ("noise", {}, CHANGED, DIRECTION),
    ("noise", {"clip_norm": 0.1}, CHANGED, DIRECTION),
    ("centralized", {}, CHANGED, DIRECTION),
    ("all_reduce", {}, (), ()),
    ("all_reduce", {"clip_norm": 0.1}, (), ()),
    ("weighted", {}, (), ("Weighted gives some samples",)),
    ("autocast", {}, (), ()),
]

SCRIPTS = [
    Healthy(*NANO, unchecked=(NO_IDS, "the gradient's size: no loss was given"), notes=(ONE_MORE,)),
    Healthy(*NANO, VALUE, unchecked=(NO_IDS, "the gradient's size: no loss was given"), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True, **VALUE}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True, "compiled": "aot_eager"}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True, "compiled": "eager", **VALUE}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(*LLAMA),
    Healthy(*LLAMA, {"padded": True, **VALUE}),
    Healthy(
        *LLAMA,
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ),
    Healthy(
        *LLAMA,
        {"label_smoothing_factor": 0.1},
        unchecked=("the gradient's size: the trainer's loss is not the model's own",),
        notes=("the gradient is",),
    ),
    Healthy(*GPT2, {"model": "gpt2"}, notes=FIRST_LABEL),
    Healthy(*GPT2, {"model": "gpt2", "neftune_noise_alpha": 5.0, **VALUE}, notes=FIRST_LABEL),
    Healthy("transformers Trainer, BERT", "hf_trainer", {"model": "bert"}),
    Healthy(*ACCELERATE),
    Healthy(*ACCELERATE, {"schedule": "prepared", **VALUE}),
    Healthy(*ACCELERATE, {"split_batches": True, "schedule": "prepared"}),
    Healthy(*ACCELERATE, {"dispatch_batches": True}, unchecked=DEALT),
    Healthy(*ACCELERATE, {"dispatch_batches": True, "split_batches": True, **VALUE}, unchecked=DEALT),
    Healthy(*ACCELERATE, {"even_batches": False}, {"dataset_size": 96}),
    Healthy(*LIGHTNING),
    Healthy(*LIGHTNING, VALUE),
    Healthy(*TIMM, unchecked=MIXED),
    Healthy(*TIMM, {"clip": "agc", "mixup": None}),
    Healthy(*TIMM, {"mixup": "collate", "prefetcher": True, "layer_decay": 0.75, **VALUE}),
    Healthy(*VISION),
    Healthy(*VISION, {"mixed": False, **VALUE}),
    Healthy(*TITAN, unchecked=SHARDED),
    Healthy(*TITAN, {"by_tokens": True, **VALUE}, unchecked=SHARDED),
    Healthy(*TITAN, {"contained": False, "ac": False}, unchecked=SHARDED),
    Healthy(*STREAM, unchecked=(NO_IDS,)),
    Healthy(*STREAM, VALUE, unchecked=(NO_IDS,)),
    *(
        Healthy("other kinds of loops", "kinds", {"kind": kind}, fields, unchecked, notes)
        for kind, fields, unchecked, notes in KINDS
    ),
    Healthy(*PLAIN),
    Healthy(*PLAIN, VALUE),
    Healthy(*PLAIN, {"precision": "bf16"}, {"precision": "bf16", "momentum": 0.9, "weight_decay": 1e-4}),
    Healthy(
        *PLAIN,
        {"find_unused_parameters": True, "gradient_as_bucket_view": True, "clip": "none"},
        {"drop_last": True, "clip_norm": None},
    ),
    Healthy(*PLAIN, {"averaged": True}),
    Healthy(*PLAIN, {"static_graph": True}, {"accumulation": 1}),
]
