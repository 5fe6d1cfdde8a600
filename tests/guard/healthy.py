"""Scripts as people write them, each by its plan, and the notes of the guard: the table of docs/guard.md."""

from typing import NamedTuple

NO_IDS = "the samples: no loader over a dataset with ids was given"
ONE_MORE = "the loop takes one optimizer step more than the 9 planned"


class Healthy(NamedTuple):
    """A script, its options and its plan, and the beginnings of the guard's lists: unchecked, and notes."""

    kind: str
    script: str
    options: dict = {}
    fields: dict = {}
    unchecked: tuple = ()
    notes: tuple = ()


NANO = ("nanoGPT", "nanogpt")
LLAMA = ("transformers Trainer, llama", "hf_trainer")
BERT = ("transformers Trainer, BERT", "hf_trainer")
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
MIXED = ("the gradient's size: the loss cannot be computed from the loader's batches",)

RATHER = ("the gradient is not clipped by its norm",)
CALLED, CHANGED = ("the model is called",), ("the gradient's size: the script changes the gradients between",)
DIRECTION, PENALTY = ("the gradient is",), ("the gradient has a term along the weights",)
MOVED = ("the gradient's size: the script changes the weights",)
EPOCHS = {"dataset_size": 96, "duration": "3ep"}
AHEAD = {**EPOCHS, "accumulation": 2, "schedule": "constant", "warmup": None}
NO_LOSS = ("the gradient's size: no loss was given",)
OWN_STEPS = ("some steps train on no new batch",)
LOOPS = [
    ({"loop": "wgan", "attached": "generator"}, {}, (NO_IDS, *NO_LOSS), CALLED),
    ({"loop": "wgan", "attached": "critic"}, EPOCHS, NO_LOSS, CALLED),
    ({"loop": "gan"}, {}, NO_LOSS, OWN_STEPS),
    ({"loop": "reinforce"}, {}, (NO_IDS, *NO_LOSS), (*CALLED, "the run ends after 27 of 36")),
    ({"loop": "in_turn", "attached": True}, {}, ("the gradient's size: the loop takes",), OWN_STEPS),
    ({"loop": "in_turn"}, EPOCHS, (NO_IDS, "the gradient's size: no loader"), ("a loss was given and no",)),
    ({"loop": "zipped"}, EPOCHS, NO_LOSS, CALLED),
    ({"loop": "unfrozen"}, EPOCHS, ("whether 2 of the model's parameters", "weights that are written"), ()),
    ({"loop": "fetched_ahead", "passes": 1}, AHEAD, (), CALLED),
    ({"loop": "fetched_ahead", "passes": 2}, AHEAD, (), CALLED),
    ({"loop": "rollouts"}, AHEAD, NO_LOSS, ("the loop divides or repeats the loader's batches",)),
]
KINDS = [
    ("warmed_up", {}, (), ()),
    ("views", {"dataset_size": 100}, (), CALLED),
    ("sam", {"accumulation": 1, "clip_norm": None}, (), ()),
    ("evaluated_first", {}, (), ()),
    ("update_bn", {}, (), ()),
    ("noise", {}, CHANGED, DIRECTION),
    ("noise", {"clip_norm": 0.1}, CHANGED, DIRECTION),
    ("centralized", {}, CHANGED, DIRECTION),
    ("all_reduce", {}, (), ()),
    ("all_reduce", {"clip_norm": 0.1}, ("the gradient's size (its direction was checked)",), ()),
    (
        "sam_by_hand",
        {"accumulation": 1, "clip_norm": None},
        (*MOVED, "weights that are written"),
        DIRECTION,
    ),
    ("dp_sgd", {}, CHANGED, DIRECTION),
    ("quantized", {}, ("the gradient's size: a communication hook",), DIRECTION),
    ("l2", {}, (), PENALTY),
    ("l2", {"clip_norm": 0.1}, (), PENALTY),
    ("teacher", {}, (), ()),
    ("generator", {}, ("the gradient's size: the loss draws random numbers",), DIRECTION),
    ("weighted", {}, (), ("Own gives some samples",)),
    ("repeated", {}, (), ("Own gives some samples",)),
    ("curriculum", {}, (), ("each epoch has the same order",)),
    ("tokens", {}, ("the gradient's size: micro-batches of different sizes",), ("micro-batches of",)),
    ("objects", {}, ("whether the given loss is a sum",), ()),
    ("swa", {}, (), ("SWALR sets the learning rate from step 7 on",)),
    ("lookahead", {}, (), ()),
    ("autocast", {}, (), ()),
    ("labels", {}, (), ()),
    ("flow", {}, (), ()),
    ("compiled step", {}, (), ()),
    ("warms up", {"schedule": "constant"}, (), ()),
    ("untrained", {}, (), ("1 of the model's 4 parameters have gradients but are in no optimizer",)),
    ("augmented", {}, (), ("Own gives some samples",)),
    ("by weights", {}, (), ("WeightedRandomSampler gives some samples",)),
]

WHOLE = {"accumulation": 5, "drop_last": True, "convention": "exact"}
BETWEEN = [
    ({"loop": "whole_steps_alone", "how": "ended"}, WHOLE, (), ()),
    ({"loop": "whole_steps_alone", "how": "cleared"}, WHOLE, (), ()),
    ({"loop": "looked_at", "when": "first"}, {}, (), ()),
    ({"loop": "looked_at", "when": "between"}, {}, (), ()),
    ({"loop": "looked_at", "when": "amid"}, {}, (), ()),
    ({"loop": "looked_at_by_rank_0", "when": "between"}, {}, (), ()),
    ({"loop": "looked_at_by_rank_0", "when": "amid"}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "between", "grad": False, "train": False}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "between", "grad": False, "train": True}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "between", "grad": True, "train": False}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "between", "grad": True, "train": True}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "amid", "grad": False, "train": False}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "amid", "grad": False, "train": True}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "amid", "grad": True, "train": False}, {}, (), ()),
    ({"loop": "measured_on_training_data", "when": "amid", "grad": True, "train": True}, {}, (), ()),
    ({"loop": "measured_on_some", "grad": False, "train": False}, {}, (), ()),
    ({"loop": "measured_on_some", "grad": False, "train": True}, {}, (), ()),
    ({"loop": "measured_on_some", "grad": True, "train": False}, {}, (), ()),
    ({"loop": "measured_on_some", "grad": True, "train": True}, {}, (), ("the model is called",)),
    ({"loop": "measured_on_other_data", "grad": False, "train": False}, {}, (), ()),
    ({"loop": "measured_on_other_data", "grad": False, "train": True}, {}, (), ()),
    ({"loop": "measured_on_other_data", "grad": True, "train": False}, {}, (), ()),
    ({"loop": "measured_on_other_data", "grad": True, "train": True}, {}, (), ()),
    ({"loop": "statistics_first"}, {}, (), ()),
    ({"loop": "listed"}, {}, (), ()),
    (
        {"loop": "made_anew"},
        {},
        ("the samples: no pass over", "the gradient's size: the loop takes batches"),
        ("all ranks draw the same random numbers",),
    ),
    ({"loop": "iterated_by_hand"}, {}, (), ("set_epoch was not called",)),
    ({"loop": "counted_iterator"}, {}, (), ()),
    ({"loop": "fetched_ahead"}, {}, (), ()),
    ({"loop": "stepped_late"}, {}, (), ()),
    ({"loop": "cleared_late"}, {}, (), ()),
    ({"loop": "summed_by_hand"}, {}, (), ()),
    ({"loop": "short_ones_left_out"}, {"dataset_size": 96, "drop_last": True}, (), ()),
    ({"loop": "cleared_late", "to_none": False}, {}, (), ()),
    ({"loop": "measured_before", "grad": False, "train": False}, {}, (), ()),
    ({"loop": "measured_before", "grad": False, "train": True}, {}, (), ()),
    ({"loop": "measured_before", "grad": True, "train": False}, {}, (), ()),
    ({"loop": "measured_before", "grad": True, "train": True}, {}, (), ()),
    (
        {"loop": "cut"},
        {},
        ("the gradient's size: the script changes the batches",),
        ("the loop divides or repeats",),
    ),
    ({"loop": "counted_batches"}, {}, (), ()),
    ({"loop": "stepped_first"}, {}, (), ()),
    ({"loop": "cleared_by_hand", "how": "none"}, {}, (), ()),
    ({"loop": "cleared_by_hand", "how": "zeros"}, {}, (), ()),
]
BESIDE = [
    ({"loop": "fisher"}, {}, (), ()),
    ({"loop": "fisher_first"}, {}, (), ("40 micro-batches and more",)),
    ({"loop": "adversarial"}, {}, ("the gradient's size: the script changes the batches",), ()),
    ({"loop": "accuracy_in_train_mode"}, {}, (), ("the model is called",)),
    ({"loop": "accuracy_before"}, {}, (), ("the model is called",)),
    ({"loop": "penalized"}, {}, (), ()),
    ({"loop": "restored"}, {}, ("weights that are written between",), ()),
    ({"loop": "copy_trained"}, {}, (), ()),
    (
        {"loop": "linear_probe"},
        {},
        ("whether 2 of the model's parameters",),
        ("the model trains in eval mode",),
    ),
    ({"loop": "undistinguished"}, {}, (), ("the model trains in eval mode",)),
    ({"loop": "backward_to_inputs", "when": "between"}, {}, (), ()),
    ({"loop": "backward_to_inputs", "when": "amid"}, {}, (), ()),
    ({"loop": "saved", "how": "save"}, {}, (), ()),
    ({"loop": "saved", "how": "script"}, {}, (), ()),
    ({"loop": "saved", "how": "trace"}, {}, (), ()),
    ({"loop": "saved", "how": "export"}, {}, (), ()),
    ({"loop": "saved", "how": "copy"}, {}, (), ()),
    ({"loop": "saved", "how": "pickle"}, {}, (), ()),
    ({"loop": "saved", "how": "trainer"}, {}, (), ()),
    ({"loop": "compiled_later", "how": "in place"}, {}, (), ()),
    ({"loop": "compiled_later", "how": "wrapped"}, {}, (), ()),
    ({"loop": "two_passes"}, {}, (), ()),
    ({"loop": "fisher_zeroed"}, {}, (), ()),
    ({"loop": "fisher_here"}, {}, (), ()),
    ({"loop": "scaled_by_hand"}, {}, (), ()),
    ({"loop": "checkpointed"}, {}, (), ("the model is called",)),
    ({"loop": "own_buffers", "how": "spectral"}, {}, (), ()),
    (
        {"loop": "own_buffers", "how": "queue"},
        {},
        ("the gradient's size: the model changes its buffers",),
        ("the gradient is",),
    ),
    (
        {"loop": "dcgan", "attached": "critic"},
        {},
        ("the gradient's size: the script calls the model",),
        ("the model is called", "the gradient is"),
    ),
    (
        {"loop": "dcgan", "attached": "generator"},
        {},
        ("the gradient's size: the loss cannot be computed",),
        (),
    ),
]
APART = ("the gradient of some steps is not of calls",)
WITHIN = [
    ({"loop": "averages_itself"}, {}, ("equal gradients on all ranks, and their size: the optimizer",), ()),
    ({"loop": "sharp"}, {}, (*MOVED, "weights that are written"), DIRECTION),
    ({"loop": "last_layer_held"}, {}, CHANGED, DIRECTION),
    ({"loop": "tasks"}, {}, ("the gradient's size: the attached model",), APART),
    ({"loop": "rescaled"}, {"clip_norm": 9.0}, (), ()),
    ({"loop": "rescaled"}, {"clip_norm": 0.01}, ("the gradient's size (its direction was checked)",), ()),
    ({"loop": "cut_into_passes"}, {"accumulation": 2}, (), ("the loop divides or repeats",)),
    (
        {"loop": "features_kept"},
        {"accumulation": 2},
        ("the gradient's size: the model is called",),
        DIRECTION,
    ),
    ({"loop": "iterator_first"}, {}, ("the samples: no pass over", "the gradient's size: the loop"), ()),
    ({"loop": "forward_by_name"}, {}, ("the gradient's size: the attached model",), APART),
    (
        {"loop": "uneven"},
        {"dataset_size": None, "duration": None},
        ("the samples: no loader", "the learning rate: the recipe", "the gradient's size: no loader"),
        ("a loss was given and no",),
    ),
    ({"loop": "grows"}, {"clip_norm": 9.0, "lr": 1e-3}, (), ("the gradient's norm is",)),
]

SCRIPTS = [
    Healthy(*NANO, unchecked=(NO_IDS, "the gradient's size: no loss was given"), notes=(ONE_MORE,)),
    Healthy(*NANO, VALUE, unchecked=(NO_IDS, "the gradient's size: no loss was given"), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(*NANO, {"loader": True, **VALUE}, unchecked=(NO_IDS,), notes=(*RATHER, ONE_MORE)),
    Healthy(*NANO, {"loader": True, "compiled": "aot_eager"}, unchecked=(NO_IDS,), notes=(ONE_MORE,)),
    Healthy(
        *NANO, {"loader": True, "compiled": "eager", **VALUE}, unchecked=(NO_IDS,), notes=(*RATHER, ONE_MORE)
    ),
    Healthy(*LLAMA),
    Healthy(*LLAMA, {"padded": True, **VALUE}, notes=RATHER),
    Healthy(
        *LLAMA, {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}
    ),
    Healthy(
        *LLAMA,
        {"label_smoothing_factor": 0.1},
        unchecked=("the gradient's size: the trainer's loss is not the model's own",),
        notes=("the gradient is",),
    ),
    Healthy(*GPT2, {"model": "gpt2"}, notes=FIRST_LABEL),
    Healthy(*GPT2, {"model": "gpt2", "neftune_noise_alpha": 5.0, **VALUE}, notes=FIRST_LABEL),
    Healthy(*BERT, {"model": "bert"}),
    Healthy(
        *BERT,
        {"model": "bert", "kind": "Focal"},
        unchecked=("the gradient's size: the trainer's loss is not the model's own",),
        notes=("the gradient is",),
    ),
    Healthy(*LLAMA, {"padded": True}, {"dataset_size": 250, "duration": "2ep", "accumulation": 4}),
    Healthy(*LLAMA, {"per_device": 2, "accelerator_config": {"split_batches": True}}),
    Healthy(*ACCELERATE),
    Healthy(*ACCELERATE, {"schedule": "prepared", **VALUE}, notes=RATHER),
    Healthy(*ACCELERATE, {"split_batches": True, "schedule": "prepared"}),
    Healthy(*ACCELERATE, {"dispatch_batches": True}, unchecked=DEALT),
    Healthy(
        *ACCELERATE, {"dispatch_batches": True, "split_batches": True, **VALUE}, unchecked=DEALT, notes=RATHER
    ),
    Healthy(*ACCELERATE, {"even_batches": False}, {"dataset_size": 96}),
    Healthy(*LIGHTNING),
    Healthy(*LIGHTNING, VALUE, notes=RATHER),
    Healthy(*LIGHTNING, {"limit_train_batches": 7, "size": 100}, {"dataset_size": 56}),
    Healthy(*LIGHTNING, {"overfit_batches": 6, "size": 100}, {"dataset_size": 48}),
    Healthy(*LIGHTNING, {"by_hand": True}, {"dataset_size": 96}),
    Healthy(
        *LIGHTNING,
        {"swa_from": 2},
        unchecked=("weights that are written between",),
        notes=("SWALR sets", "the loop takes one optimizer step more"),
    ),
    Healthy(*TIMM, unchecked=MIXED),
    Healthy(*TIMM, {"clip": "agc", "mixup": None}, notes=RATHER),
    Healthy(*TIMM, {"mixup": "collate", "prefetcher": True, "layer_decay": 0.75, **VALUE}, notes=RATHER),
    Healthy(*VISION),
    Healthy(*VISION, {"mixed": False, **VALUE}, notes=RATHER),
    Healthy(*TITAN, unchecked=SHARDED),
    Healthy(*TITAN, {"by_tokens": True, **VALUE}, unchecked=SHARDED, notes=RATHER),
    Healthy(*TITAN, {"contained": False, "ac": False}, unchecked=SHARDED),
    Healthy(*STREAM, unchecked=(NO_IDS,)),
    Healthy(*STREAM, VALUE, unchecked=(NO_IDS,), notes=RATHER),
    *(Healthy("other loops", "loops", *row) for row in LOOPS),
    *(Healthy("a loader looked at between the steps", "between", *row) for row in BETWEEN),
    *(Healthy("other gradients and steps", "within", *row) for row in WITHIN),
    *(Healthy("a model used beside the steps", "beside", *row) for row in BESIDE),
    *(
        Healthy("other kinds of loops", "loop", {"kind": kind}, fields, unchecked, notes)
        for kind, fields, unchecked, notes in KINDS
    ),
    Healthy(*PLAIN),
    Healthy(*PLAIN, VALUE, notes=RATHER),
    Healthy(
        *PLAIN,
        {"kind": "autocast"},
        {"precision": "bf16", "momentum": 0.9, "weight_decay": 1e-4},
        unchecked=("which parameters decay",),
    ),
    Healthy(
        *PLAIN,
        {"wrapping": {"find_unused_parameters": True, "gradient_as_bucket_view": True}},
        {"drop_last": True, "clip_norm": None},
    ),
    Healthy(*PLAIN, {"averaged": True}),
    Healthy(*PLAIN, {"wrapping": {"static_graph": True}}, {"accumulation": 1}),
]
