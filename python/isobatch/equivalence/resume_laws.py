"""The comparison after a restart, row by row, and the faults of one, each with its remedy."""

from typing import NamedTuple


class ResumeRow(NamedTuple):
    """A row of the comparison: the quantity, and how it is compared."""

    id: str
    measures: str
    how: str


ROWS = (
    ResumeRow(
        "repeat",
        "the command against itself",
        "it is started twice: samples, losses and gradients before the checkpoint",
    ),
    ResumeRow("rows", "samples", "of each step after the restart"),
    ResumeRow("weights", "weights", "before the first step after the restart"),
    ResumeRow("state", "optimizer's state", "of each tensor, before the first step after the restart"),
    ResumeRow("rate", "learning rate", "of each group at each step"),
    ResumeRow(
        "groups",
        "optimizer and groups",
        "its kind; weight decay, momentum, betas, eps and tensors of each group",
    ),
    ResumeRow("random", "random states", "of torch, Python and NumPy, where something is drawn from them"),
    ResumeRow("loss", "loss", "of each pass"),
    ResumeRow("gradient", "gradient", "that the optimizer applies"),
    ResumeRow("update", "update", "the change of the weights by each step"),
    ResumeRow("length", "steps to the end", "of both starts together, where the script ends by itself"),
)
"""In the order in which things happen."""
ESSENTIAL = ("repeat", "rows", "weights", "state", "rate", "gradient", "update")
"""Rows without which nothing is called the same."""


class ResumeLaw(NamedTuple):
    """A fault of a restart: its name and remedy."""

    id: str
    name: str
    remedy: str


_ROWS = (
    ResumeLaw(
        "resume_ended",
        "no step after the restart",
        "the restart takes the training for finished: keep the step or the epoch that it continues from, not "
        "the one that it ends at",
    ),
    ResumeLaw(
        "resume_not_resumed",
        "starts from the beginning",
        "load the checkpoint: the words of the restart had no effect",
    ),
    ResumeLaw(
        "resume_epoch_anew",
        "the epoch starts anew",
        "skip the batches of this epoch that were trained: keep the sampler's offset (StatefulDataLoader, "
        "skip_first_batches, ElasticRun)",
    ),
    ResumeLaw(
        "resume_skipped",
        "samples are skipped",
        "continue at the next sample: keep the offset in the epoch, and count up the epoch only at its end",
    ),
    ResumeLaw(
        "resume_repeated",
        "samples are repeated",
        "keep the offset after the last sample that a step took, not that of the step before",
    ),
    ResumeLaw(
        "resume_other_order",
        "another order of the samples",
        "seed the sampler by the run's seed and the epoch (set_epoch), or keep its random state in the "
        "checkpoint",
    ),
    ResumeLaw(
        "resume_other_batch",
        "another batch",
        "keep the samples of a step: the accumulation must follow the ranks (isobatch plan, ElasticRun)",
    ),
    ResumeLaw(
        "resume_weights", "weights not restored", "save and load the model's whole state, in its own dtype"
    ),
    ResumeLaw(
        "resume_state",
        "optimizer's state not restored",
        "save and load optimizer.state_dict(), after the model is loaded",
    ),
    ResumeLaw(
        "resume_rate",
        "another learning rate",
        "save and load scheduler.state_dict(), and step it as often as without a stop",
    ),
    ResumeLaw(
        "resume_groups", "optimizer settings", "make the groups as before, then load the optimizer's state"
    ),
    ResumeLaw(
        "resume_random",
        "random states not restored",
        "save and load the generators' states (torch, torch.cuda, NumPy, random), or seed each step by its "
        "number",
    ),
    ResumeLaw(
        "resume_loss",
        "another loss",
        "look for states outside of what was compared: buffers, a teacher, a loss scale, a draw of its own",
    ),
    ResumeLaw(
        "resume_gradient",
        "another gradient",
        "look at the accumulation after the restart, and at averaging over ranks",
    ),
    ResumeLaw(
        "resume_update", "another update", "look for state that the optimizer's state_dict() leaves out"
    ),
    ResumeLaw(
        "resume_length",
        "another number of steps",
        "count the steps that are left from the checkpoint's: length, epochs, schedule",
    ),
)
LAWS = {law.id: law for law in _ROWS}
