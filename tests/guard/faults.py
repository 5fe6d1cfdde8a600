"""The table of faults: a kind of fault in a kind of script, and the cause that the guard must name."""

from typing import NamedTuple

from isobatch.guard import Cause


class Fault(NamedTuple):
    """A fault of `injected.py` in a script of `scripts/`, with a `detail` of its diagnosis, and the `ranks`
    named by the error.
    """

    script: str
    name: str
    cause: Cause
    detail: str = ""
    options: dict = {}
    fields: dict = {}
    ranks: tuple = ()

    def named_by(self, errors):
        """Whether all ranks with an error name this fault first, and the right ranks."""
        raised = [error for error in errors if error is not None]
        good = all(error.cause is self.cause and self.detail in error.diagnosis for error in raised)
        return bool(raised) and good and {error.ranks for error in raised} == {self.ranks}


THREE = {"accumulation": 3}  # another number than that of ranks: factors then tell what they are of
FLAT = {**THREE, "schedule": "constant", "warmup": None}
DROPPED = {**THREE, "drop_last": True}
TUNED = {**THREE, "momentum": 0.9, "weight_decay": 0.1}
TIGHT = {**THREE, "clip_norm": 0.01}
LOADER = {"loader": True}
BERT = {"options": {"model": "bert"}}


def rows(script, table, options=None, fields=THREE):
    """Lines of a script: name, cause, detail, and what is unlike the script's other lines."""
    for name, cause, detail, *more in table:
        extra = more[0] if more else {}
        yield Fault(
            script,
            name,
            cause,
            detail,
            {**(options or {}), **extra.get("options", {})},
            extra.get("fields", fields),
            extra.get("ranks", ()),
        )


PLAIN = [
    ("summed loss", Cause.SUMMED_LOSS, "4×"),
    ("summed reference", Cause.SUMMED_LOSS, ""),
    ("no division", Cause.NOT_DIVIDED, "3×"),
    ("divided twice", Cause.DIVIDED_TWICE, "0.3333×"),
    ("divided by ranks", Cause.DIVIDED_BY_RANKS, "0.5×"),
    ("a factor on the loss", Cause.GRADIENT_FACTOR, "1.7×"),
    ("own labels only", Cause.ANOTHER_LOSS, ""),
    ("nan on a rank", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("nan later", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("summed over ranks", Cause.SUMMED_OVER_RANKS, "2×"),
    ("backward outside", Cause.NEVER_AVERAGED, "not averaged"),
    ("not wrapped", Cause.NEVER_AVERAGED, "not averaged"),
    ("wrapper bypassed", Cause.WRAPPER_BYPASSED, ""),
    ("no zero grad", Cause.GRADIENTS_KEPT, ""),
    ("zero grad in each micro batch", Cause.GRADIENTS_CLEARED, ""),
    ("zero grad before the step", Cause.NO_GRADIENT, ""),
    ("stepped twice", Cause.STEPPED_TWICE, ""),
    ("a skipped step", Cause.SKIPPED_STEPS, ""),
    ("eval mode kept", Cause.EVAL_MODE, ""),
    ("not clipped", Cause.CLIPPED_OTHERWISE, "", {"fields": TIGHT}),
    ("clipped to another norm", Cause.CLIPPED_OTHERWISE, "", {"fields": TIGHT}),
    ("clipped in each pass", Cause.CLIPPED_OTHERWISE, "in each pass", {"fields": TIGHT}),
    ("clipped before the averaging", Cause.CLIPPED_OTHERWISE, "before the averaging", {"fields": TIGHT}),
    ("other weights", Cause.OTHER_WEIGHTS, "they differ"),
    ("other weights of rank 0", Cause.OTHER_WEIGHTS, "they differ"),
    ("weights part later", Cause.OTHER_WEIGHTS, "they differ"),
    ("optimizer of another model", Cause.OPTIMIZER_PARAMETERS, ""),
    ("another lr", Cause.ANOTHER_LR, "1.5× the plan's"),
    ("another warmup", Cause.ANOTHER_LR, ""),
    ("another schedule", Cause.ANOTHER_LR, ""),
    ("another end", Cause.ANOTHER_LR, ""),
    ("scheduler per process", Cause.SCHEDULER_PER_PROCESS, "2× too fast"),
    ("scheduler per micro batch", Cause.SCHEDULER_PER_MICRO_BATCH, "3× too fast"),
    ("scheduler never", Cause.SCHEDULER_NEVER, ""),
    ("scheduler too early", Cause.SCHEDULER_TOO_EARLY, ""),
    ("lengths in micro batches", Cause.SCHEDULER_TOO_SLOW, "3× too slow"),
    ("another momentum", Cause.ANOTHER_SETTING, "momentum", {"fields": TUNED}),
    ("another weight decay", Cause.ANOTHER_SETTING, "weight_decay", {"fields": TUNED}),
    ("another micro batch", Cause.ANOTHER_MICRO_BATCH, ""),
    ("every micro batch a step", Cause.ANOTHER_ACCUMULATION, ""),
    ("one micro batch more", Cause.ANOTHER_ACCUMULATION, ""),
    ("drop last", Cause.SAMPLES_DROPPED, "drop_last is set where the plan pads"),
    ("padded", Cause.SAMPLES_PADDED, "", {"fields": DROPPED}),
    ("another dataset", Cause.ANOTHER_DATASET, ""),
    ("missing set epoch", Cause.MISSING_SET_EPOCH, ""),
    ("num replicas 1", Cause.SAMPLER_REPLICAS, "num_replicas=1"),
    ("another seed", Cause.SAMPLER_SEEDS, ""),
    ("not distributed", Cause.NOT_DISTRIBUTED, "all ranks see the same data"),
    ("samples repeated", Cause.SAMPLES_REPEATED, ""),
    ("an epoch ends early", Cause.ANOTHER_SAMPLES, "left before its end", {"fields": {"accumulation": 1}}),
    ("the tail is carried", Cause.ANOTHER_ACCUMULATION, ""),
    ("a longer run", Cause.ANOTHER_LENGTH, "", {"fields": {**FLAT, "duration": "5st"}}),
]
NANOGPT = [
    ("the same seed", Cause.SAME_DATA, "", {"options": {"loader": False, "evaluated": False}}),
    ("never synchronized", Cause.NEVER_AVERAGED, ""),
    ("no division", Cause.NOT_DIVIDED, "3×"),
    ("no zero grad", Cause.GRADIENTS_KEPT, "", {"options": {"loader": False}}),
    ("another lr", Cause.ANOTHER_LR, "1.5× the plan's"),
    ("a group strays", Cause.GROUP_STRAYS, "group 1"),
    ("summed over ranks", Cause.SUMMED_OVER_RANKS, "2×", {"options": {"compiled": "eager"}}),
]
TRAINER = [
    ("summed loss", Cause.SUMMED_LOSS, ""),
    ("no division", Cause.NOT_DIVIDED, "3×"),
    ("each rank its own tokens", Cause.RANKS_OWN_UNITS, "", {"options": {"padded": True}}),
    ("not distributed", Cause.NOT_DISTRIBUTED, ""),
    ("another micro batch", Cause.ANOTHER_MICRO_BATCH, ""),
    ("every micro batch a step", Cause.ANOTHER_ACCUMULATION, ""),
    (
        "drop last",
        Cause.SAMPLES_DROPPED,
        "drop_last is set where the plan pads",
        {"options": {"dataloader_drop_last": True}},
    ),
    ("other weights", Cause.OTHER_WEIGHTS, "they differ"),
    ("nan on a rank", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("lr times ranks", Cause.ANOTHER_LR, "2× the plan's"),
    ("a run of another length", Cause.ANOTHER_LENGTH, ""),
    ("nan later", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("the trainer multiplies", Cause.TRAINER_MULTIPLIES, "(6×)", BERT),
    ("no division beside the trainers factor", Cause.TRAINER_MULTIPLIES, "(6×), and × accumulation", BERT),
    ("summed loss beside the trainers factor", Cause.TRAINER_MULTIPLIES, "(6×), and summed loss", BERT),
]
ACCELERATE = [
    (
        "no scaling of a scheduler",
        Cause.SCHEDULER_PER_PROCESS,
        "2× too fast",
        {"options": {"schedule": "prepared"}},
    ),
    ("divided twice", Cause.DIVIDED_TWICE, "0.3333×"),
    ("not distributed", Cause.NOT_DISTRIBUTED, ""),
    ("loader not split", Cause.ANOTHER_MICRO_BATCH, "", {"options": {"split_batches": True}}),
    ("every micro batch a step", Cause.ANOTHER_ACCUMULATION, ""),
]
LIGHTNING = [
    ("summed loss", Cause.SUMMED_LOSS, "4×"),
    ("another lr", Cause.ANOTHER_LR, "1.5× the plan's"),
    ("another micro batch", Cause.ANOTHER_MICRO_BATCH, ""),
    ("every micro batch a step", Cause.ANOTHER_ACCUMULATION, ""),
    ("a run of another length", Cause.ANOTHER_LENGTH, ""),
    ("other weights", Cause.OTHER_WEIGHTS, "they differ"),
    ("nan on a rank", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("nan later", Cause.NAN_ON_A_RANK, "rank 1", {"ranks": (1,)}),
    ("divided twice", Cause.DIVIDED_TWICE, "0.3333×"),
    ("not distributed", Cause.NOT_DISTRIBUTED, ""),
    ("a scheduler per epoch", Cause.SCHEDULER_NEVER, ""),
    ("summed over ranks", Cause.SUMMED_OVER_RANKS, "2×"),
    ("clipped to another norm", Cause.CLIPPED_OTHERWISE, "", {"fields": TIGHT}),
]
KINDS = [
    ("no zero grad", Cause.GRADIENTS_KEPT, "", {"options": {"kind": "lookahead"}}),
    ("no division", Cause.NOT_DIVIDED, "3×", {"options": {"kind": "l2"}}),
    ("no division", Cause.NOT_DIVIDED, "3×", {"options": {"kind": "objects"}}),
    ("no division", Cause.NOT_DIVIDED, "3×", {"options": {"kind": "labels"}}),
    ("no division", Cause.NOT_DIVIDED, "3×", {"options": {"kind": "flow"}}),
    (
        "another lr",
        Cause.ANOTHER_LR,
        "1.5× the plan's",
        {"options": {"kind": "compiled step"}, "fields": FLAT},
    ),
]
STREAM = [
    ("ranks share the stream", Cause.SAME_DATA, ""),
    ("workers share the stream", Cause.WORKERS_REPEAT, ""),
]
TIMM = [
    ("missing set epoch", Cause.MISSING_SET_EPOCH, ""),
    ("no division", Cause.NOT_DIVIDED, "3×", {"options": {"mixup": None}}),
]
VISION = [
    ("scheduler in epochs at every step", Cause.SCHEDULER_IN_EPOCHS, ""),
    ("other weights", Cause.OTHER_WEIGHTS, "they differ"),
]
TITAN = [
    ("no division", Cause.NOT_DIVIDED, "3×"),
    ("nan later", Cause.NOT_FINITE, ""),
    ("optimizer of another model", Cause.OPTIMIZER_PARAMETERS, ""),
    ("zero grad in each micro batch", Cause.GRADIENTS_CLEARED, ""),
    ("another lr", Cause.ANOTHER_LR, "1.5× the plan's"),
]
FAULTS = [
    *rows("plain", PLAIN),
    *rows("nanogpt", NANOGPT, LOADER),
    *rows("loop", KINDS),
    *rows("hf_trainer", TRAINER),
    *rows("accelerated", ACCELERATE),
    *rows("lit", LIGHTNING),
    *rows("iterable", STREAM),
    *rows("timm_train", TIMM),
    *rows("vision_reference", VISION, fields={}),
    *rows("titan", TITAN),
]
