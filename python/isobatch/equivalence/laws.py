"""Laws of a split: a row for each way in which a training may differ, with its remedy.

A row has an id, which JSON carries, a name, and the remedy for a loop of one's own; where a trainer takes the
step, its users get the remedy in the trainer's own words.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from isobatch.equivalence.split import Split


class Remedy(NamedTuple):
    """A remedy, and its page below `docs/` (empty: none)."""

    text: str
    page: str = ""


class SplitLaw(NamedTuple):
    """A difference of a split: its name, and its remedies, of a loop and of trainers by name."""

    id: str
    name: str
    remedy: Remedy
    trainers: Mapping[str, Remedy] = {}


class SplitCause(msgspec.Struct, frozen=True):
    """A cause of a difference.

    Attributes:
        id: of its law.
        name: of its law.
        text: the difference, with its figure.
        remedy: what to change.
        page: the page of the remedy, below `docs/`; empty: none.
    """

    id: str
    name: str
    text: str
    remedy: str
    page: str = ""


_TRANSFORMERS = "frameworks/transformers.md"
_IGNORED = "frameworks/transformers.md#bert-t5-bart-under-transformers-5"
_ONCE = "divide each pass's mean loss by the accumulation before backward()"
_AVERAGED = (
    "average the ranks' gradients once: DDP does; a sum over ranks, or a loss times the ranks, counts them "
    "again"
)
_GLOBAL = (
    "DDP averages over ranks: if the loss is divided by the count of all ranks, multiply it by their number"
)
_TWICE = "the loss is divided by the accumulation twice, for example by the trainer and by the script"
_TOTAL = (
    "count the tokens of the whole step over all ranks before its first pass, and divide each pass's summed "
    "loss by that"
)
_BY_ACCELERATE = (
    "let Accelerate divide: Accelerator(gradient_accumulation_steps=…), the pass inside "
    "accelerator.accumulate(model), and accelerator.backward(loss)"
)
_NUM_ITEMS = Remedy(
    "the loss must be the labels' sum / num_items_in_batch: the model's forward hands **kwargs on to its "
    "loss, and accepts_loss_kwargs is not False; a compute_loss of your own also multiplies by the number of "
    "processes",
    _TRANSFORMERS,
)
_IGNORES_ITEMS = Remedy(
    "the model's loss ignores num_items_in_batch, so that the Trainer divides by neither the accumulation "
    "nor the processes: set model.accepts_loss_kwargs = False before Trainer(...)",
    _IGNORED,
)
_PER_PROCESS = Remedy(
    "a prepared scheduler steps once per process: leave it out of accelerator.prepare, or count its warmup "
    "and length in steps × processes",
    "frameworks/accelerate.md",
)

_ROWS = (
    SplitLaw(
        "not_finite",
        "gradient not finite",
        Remedy("look at the loss of that pass: torch.autograd.detect_anomaly finds the operation"),
    ),
    # One factor for all samples.
    SplitLaw(
        "not_divided",
        "× accumulation",
        Remedy(_ONCE),
        {
            "transformers": _IGNORES_ITEMS,
            "accelerate": Remedy(_BY_ACCELERATE, "frameworks/accelerate.md"),
            "lightning": Remedy(
                "automatic optimization divides by accumulate_grad_batches: with manual optimization divide "
                "the loss before manual_backward()",
                "frameworks/lightning.md",
            ),
        },
    ),
    SplitLaw(
        "divided_twice",
        "1/accumulation",
        Remedy(_TWICE),
        {"transformers": Remedy("the Trainer divides already: leave the division out of compute_loss")},
    ),
    SplitLaw("summed_over_ranks", "× ranks", Remedy(_AVERAGED), {"transformers": _IGNORES_ITEMS}),
    SplitLaw(
        "divided_by_ranks",
        "1/ranks",
        Remedy(_GLOBAL),
        {
            "transformers": Remedy(
                "num_items_in_batch counts the labels of all processes, and DDP averages: multiply the loss "
                "of your compute_loss by their number",
                _TRANSFORMERS,
            )
        },
    ),
    SplitLaw(
        "multiplied_by_both",
        "× ranks × accumulation",
        Remedy(f"{_ONCE}; {_AVERAGED}"),
        {"transformers": _IGNORES_ITEMS},
    ),
    SplitLaw(
        "summed_loss",
        "summed loss",
        Remedy("make the loss a mean: reduction='mean', or divide the sum by the samples of the whole step"),
        {"transformers": _NUM_ITEMS},
    ),
    SplitLaw("accumulation_over_ranks", "accumulation/ranks", Remedy(f"{_ONCE}; {_GLOBAL}")),
    SplitLaw("ranks_over_accumulation", "ranks/accumulation", Remedy(f"{_AVERAGED}; {_TWICE}")),
    SplitLaw("gradient_factor", "one factor", Remedy("look at what the loss is divided by")),
    SplitLaw(
        "short_window",
        "short window",
        Remedy(
            "divide by the passes that the last step of an epoch has, or drop the incomplete batch "
            "(drop_last)"
        ),
    ),
    # Samples that weigh unlike.
    SplitLaw(
        "lost_samples",
        "lost samples",
        Remedy(
            "look for a zero_grad() between the passes of a step, or a step that is taken before the last "
            "pass"
        ),
    ),
    SplitLaw(
        "lost_passes",
        "lost passes",
        Remedy("look for a zero_grad() between the passes of a step, or a gradient that is overwritten"),
        {
            "deepspeed": Remedy(
                "update DeepSpeed, or leave the optimizer's offload out: ZeRO-2 with offload lost the passes "
                "between the first and the last of a step in 0.18.4, and does not in 0.19.8"
            )
        },
    ),
    SplitLaw(
        "ranks_own_units",
        "mean of ranks' means",
        Remedy(f"{_TOTAL}; DDP averages over ranks, so multiply by their number"),
        {"transformers": Remedy("set average_tokens_across_devices=True", _TRANSFORMERS)},
    ),
    SplitLaw("own_units", "mean of passes' means", Remedy(_TOTAL), {"transformers": _NUM_ITEMS}),
    SplitLaw(
        "before_the_shift",
        "tokens counted before the shift",
        Remedy("count labels[:, 1:] != -100, which the loss is a mean of"),
    ),
    SplitLaw(
        "repeated_samples",
        "repeated samples",
        Remedy("look for a backward pass that is done twice, or a gradient that is kept"),
    ),
    SplitLaw(
        "unequal_weights",
        "unequal weights",
        Remedy("look for weights of samples that depend on the pass, such as lengths or class counts"),
    ),
    # Samples that act on one another, and parts of a loss.
    SplitLaw(
        "balance_loss",
        "balance loss of experts",
        Remedy(
            "the balance loss depends on the samples of a pass: keep the micro-batch, and divide it by the "
            "accumulation and the ranks as the rest of the loss"
        ),
    ),
    SplitLaw(
        "loss_term",
        "a term of the loss",
        Remedy(
            "divide the term as the rest of the loss; from outside, divide its coefficient by accumulation × "
            "ranks"
        ),
    ),
    SplitLaw(
        "some_tensors",
        "a factor on some tensors",
        Remedy(
            "leave the loss as it is, since the other tensors are right: scale what alone reaches these "
            "tensors, such as one term of the loss, or a parameter that each pass uses anew on features of "
            "the whole batch"
        ),
    ),
    SplitLaw(
        "batch_norm",
        "batch norm",
        Remedy(
            "keep the micro-batch that was tuned, use SyncBatchNorm (over ranks), or a norm without batch "
            "statistics"
        ),
    ),
    SplitLaw("randomness", "randomness", Remedy("seed each sample's own draw, or ask again without it")),
    SplitLaw(
        "coupled_samples",
        "coupled samples",
        Remedy(
            "a balance loss of experts, in-batch negatives and the like depend on the micro-batch: keep it, "
            "and divide every term of the loss alike"
        ),
    ),
    SplitLaw(
        "weights_unknown",
        "weights not known",
        Remedy("ask about rows that differ more: these do not tell unequal weights from coupled samples"),
    ),
    SplitLaw(
        "another_samples",
        "other samples",
        Remedy("draw the rows through a torch DataLoader, or by a seed that is the same for every split"),
    ),
    # Ranks, passes, samples.
    SplitLaw(
        "ranks_alone",
        "ranks train alone",
        Remedy("call torch.distributed.init_process_group and wrap the model in DistributedDataParallel"),
    ),
    SplitLaw(
        "ranks_start_apart",
        "ranks start with different weights",
        Remedy("seed every rank alike before the model is made, or let DistributedDataParallel broadcast it"),
    ),
    SplitLaw(
        "never_averaged",
        "gradients not averaged",
        Remedy(
            "the step's last pass must synchronize: no no_sync() there, and call the DDP model, not the one "
            "inside"
        ),
    ),
    SplitLaw(
        "same_data",
        "ranks draw the same samples",
        Remedy("give each rank its share: DistributedSampler, or seed the sampler by the rank's own share"),
        {"accelerate": Remedy("give the loader to accelerator.prepare", "frameworks/accelerate.md")},
    ),
    SplitLaw(
        "another_batch",
        "another batch",
        Remedy("the script does not follow the split: look where accumulation and micro-batch are set"),
    ),
    SplitLaw(
        "early_first_step",
        "first step too early",
        Remedy(
            "count the passes from 1: step where (number + 1) % accumulation == 0, not number % accumulation"
        ),
    ),
    # The optimizer and its clock.
    SplitLaw(
        "another_lr",
        "learning rate",
        Remedy(
            "the scheduler must step once per optimizer step, and count its warmup and length in these steps"
        ),
    ),
    SplitLaw(
        "scheduler_per_micro_batch",
        "scheduler counts passes",
        Remedy(
            "call scheduler.step() after optimizer.step() only, and count its warmup and length in optimizer "
            "steps, not in batches of the loader"
        ),
        {
            "lightning": Remedy(
                "count its length by trainer.estimated_stepping_batches, which are optimizer steps",
                "frameworks/lightning.md",
            )
        },
    ),
    SplitLaw(
        "scheduler_per_process",
        "scheduler counts processes",
        Remedy("count the scheduler's warmup and length in steps that all ranks take together"),
        {"accelerate": _PER_PROCESS},
    ),
    SplitLaw(
        "scheduler_per_both",
        "scheduler counts passes and processes",
        Remedy("count the scheduler's warmup and length in optimizer steps, by neither passes nor processes"),
        {
            "accelerate": Remedy(
                "leave the accumulation out of its warmup and length: a prepared scheduler steps once per "
                "process, at optimizer steps alone, so that they are steps × processes",
                "frameworks/accelerate.md",
            )
        },
    ),
    SplitLaw(
        "another_setting",
        "optimizer settings",
        Remedy("make the parameter groups the same at any split: their values may not follow the batch"),
    ),
    SplitLaw(
        "clipped_each_pass",
        "gradients clipped on every pass",
        Remedy("clip once, after the last pass of the step"),
        {"accelerate": Remedy("clip only if accelerator.sync_gradients", "frameworks/accelerate.md")},
    ),
    SplitLaw(
        "clipped_otherwise",
        "clipping sees another norm",
        Remedy("clip the averaged gradient: after the last, synchronized pass, and over all parameters"),
    ),
    SplitLaw(
        "another_update",
        "another update",
        Remedy(
            "gradient, learning rate and settings are the same, the change of the weights is not: look for "
            "code that changes weights, gradients or the optimizer's state by the number of passes or ranks"
        ),
    ),
)
LAWS = {law.id: law for law in _ROWS}
CLOCKS = frozenset({"scheduler_per_micro_batch", "scheduler_per_process", "scheduler_per_both"})
"""Laws of a schedule counting something else than optimizer steps."""


def break_of(law: str, text: str) -> SplitCause:
    """Makes the cause of a broken law, by its id, with the remedy for a loop of one's own."""
    row = LAWS[law]
    return SplitCause(row.id, row.name, text, *row.remedy)


def advise(cause: SplitCause, trainer: str) -> SplitCause:
    """Returns a cause with the remedy for the users of a trainer, where its law has one.

    >>> advise(break_of("ranks_own_units", "…"), "transformers").remedy
    'set average_tokens_across_devices=True'
    """
    remedy = LAWS[cause.id].trainers.get(trainer)
    return cause if remedy is None else SplitCause(cause.id, cause.name, cause.text, *remedy)


class Scale(NamedTuple):
    """The growth of a gradient by a law: a power of the ranks and of the accumulation, in words."""

    law: str
    ranks: int
    accumulation: int
    text: str

    def size(self, split: Split) -> float:
        """Returns the factor at a split."""
        return float(split.ranks) ** self.ranks * float(split.accumulation) ** self.accumulation


SCALES = (
    Scale("not_divided", 0, 1, "× accumulation"),
    Scale("divided_twice", 0, -1, "1/accumulation"),
    Scale("summed_over_ranks", 1, 0, "× ranks"),
    Scale("divided_by_ranks", -1, 0, "1/ranks"),
    Scale("multiplied_by_both", 1, 1, "× ranks × accumulation"),
    Scale("summed_loss", -1, -1, "the micro-batch over the batch, since the loss is a sum over a pass"),
    Scale("accumulation_over_ranks", -1, 1, "accumulation/ranks"),
    Scale("ranks_over_accumulation", 1, -1, "ranks/accumulation"),
)
"""One factor for all samples, the likeliest first."""
