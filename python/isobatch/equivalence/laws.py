"""The laws of a training, one row each: how a fault is named, what to change, and how the gradient scales.

`isobatch same`, the guard and the validator name a fault by its row; its id is that of their JSON. A row has
the remedy for a loop of one's own, and where a trainer takes the step, one in the trainer's own words.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec

from isobatch.equivalence.split import Split


class Remedy(NamedTuple):
    """A remedy, and its page below `docs/` (empty: none)."""

    text: str
    page: str = ""


class Scale(NamedTuple):
    """The growth of a gradient by a law: powers of ranks, accumulation and micro-batch, in words."""

    text: str
    ranks: int = 0
    accumulation: int = 0
    micro_batch: int = 0

    @property
    def faults(self) -> int:
        """The number of single faults in it: one explains better than two."""
        return sum(map(abs, self[1:]))

    def times(self, ranks: float, accumulation: float, micro_batch: float) -> float:
        """Returns the factor, beside the mean over a step."""
        return float(ranks**self.ranks * accumulation**self.accumulation * micro_batch**self.micro_batch)

    def size(self, split: Split) -> float:
        """Returns the factor at a split, beside one pass over the batch."""
        whole = self.times(1, 1, split.effective_batch)
        return self.times(split.ranks, split.accumulation, split.micro_batch) / whole


_ACCELERATE, _LIGHTNING = "frameworks/accelerate.md", "frameworks/lightning.md"
_TRANSFORMERS = "frameworks/transformers.md"
RESTART = "a restart"
"""In the place of a trainer: the remedy of `isobatch same --resume`."""
_ONCE = (
    "divide each pass's mean loss by the accumulation before backward(), or multiply it by "
    "plan.loss_weights(rank)"
)
_AVERAGED = (
    "average the ranks' gradients once: DDP does; look for a sum in an all-reduce, a hook, or a loss times "
    "the ranks"
)
_GLOBAL = (
    "DDP averages over ranks: if the loss is divided by the count of all ranks, multiply it by their number"
)
_TWICE = "divide by the accumulation once: if the trainer does, leave it out of the script"
_TOTAL = (
    "divide each pass's summed loss by the units (tokens, boxes) of the whole step, counted over all ranks "
    "before its first pass"
)
_NUM_ITEMS = Remedy(
    "the loss must be the labels' sum / num_items_in_batch: the model's forward hands **kwargs on to its "
    "loss, and accepts_loss_kwargs is not False; a compute_loss of your own also multiplies by the "
    "processes, a compute_loss_func does not",
    _TRANSFORMERS,
)
_IGNORES_ITEMS = Remedy(
    "set model.accepts_loss_kwargs = False before Trainer(...): the model's loss ignores num_items_in_batch, "
    "so that the Trainer divides by neither accumulation nor processes; for a compute_loss of your own, see "
    "that page",
    f"{_TRANSFORMERS}#bert-t5-bart-under-transformers-5",
)
_DROP_LAST = "set the drop_last of loader and sampler as in the recipe, or plan with the script's drop_last"
_CALIBRATE = "calibrate with this report, and plan again"


class Cause(StrEnum):
    """A law, broken by a training. `.text` has it in words, `.advice` the remedy.

    >>> Cause.SUMMED_LOSS.value, Cause.SUMMED_LOSS.text
    ('summed_loss', 'summed loss')
    """

    text: str
    remedy: Remedy
    scale: Scale | None
    trainers: dict[str, Remedy]

    def __new__(
        cls,
        value: str,
        text: str,
        remedy: str | Remedy,
        scale: Scale | None = None,
        trainers: dict[str, Remedy] | None = None,
    ) -> "Cause":
        """Makes a row: its id, its name, its remedy, its scale, and the remedies of trainers."""
        row = str.__new__(cls, value)
        row._value_, row.text, row.scale, row.trainers = value, text, scale, trainers or {}
        row.remedy = Remedy(remedy) if isinstance(remedy, str) else remedy
        return row

    @property
    def advice(self) -> str:
        """The remedy for a loop of one's own."""
        return self.remedy.text

    @classmethod
    def _missing_(cls, value: object) -> "Cause | None":
        """Reads the ids of older reports."""
        return cls.__members__.get(str(value).upper())

    def likely(self, detail: str = "") -> "Diagnosis":
        """Returns this cause alone, with a detail."""
        return Diagnosis(causes=(self,), text=f"{self.text} ({detail})" if detail else self.text)

    # One factor for all samples, the likeliest first.
    NOT_DIVIDED = (
        "not_divided",
        "× accumulation",
        _ONCE,
        Scale("× accumulation", accumulation=1),
        {
            "transformers": _IGNORES_ITEMS,
            "accelerate": Remedy(
                "let Accelerate divide: Accelerator(gradient_accumulation_steps=…), the pass inside "
                "accelerator.accumulate(model), and accelerator.backward(loss)",
                _ACCELERATE,
            ),
            "lightning": Remedy(
                "automatic optimization divides by accumulate_grad_batches: with manual optimization divide "
                "the loss before manual_backward()",
                _LIGHTNING,
            ),
        },
    )
    DIVIDED_TWICE = (
        "divided_twice",
        "1/accumulation",
        _TWICE,
        Scale("1/accumulation", accumulation=-1),
        {"transformers": Remedy("the Trainer divides already: leave the division out of compute_loss")},
    )
    SUMMED_OVER_RANKS = (
        "summed_over_ranks",
        "× ranks",
        _AVERAGED,
        Scale("× ranks", ranks=1),
        {"transformers": _IGNORES_ITEMS},
    )
    DIVIDED_BY_RANKS = (
        "divided_by_ranks",
        "1/ranks",
        _GLOBAL,
        Scale("1/ranks", ranks=-1),
        {
            "transformers": Remedy(
                "num_items_in_batch counts the labels of all processes, and DDP averages: multiply the loss "
                "of your compute_loss by their number",
                _TRANSFORMERS,
            )
        },
    )
    MULTIPLIED_BY_BOTH = (
        "multiplied_by_both",
        "× ranks × accumulation",
        f"{_ONCE}; {_AVERAGED}",
        Scale("× ranks × accumulation", ranks=1, accumulation=1),
        {"transformers": _IGNORES_ITEMS},
    )
    SUMMED_LOSS = (
        "summed_loss",
        "summed loss",
        'make the loss a mean: reduction="mean", or divide the sum by the samples of the whole step (in the '
        "validator: Workload(reduction='sum'))",
        Scale("the micro-batch over the batch, since the loss is a sum over a pass", micro_batch=1),
        {"transformers": _NUM_ITEMS},
    )
    ACCUMULATION_OVER_RANKS = (
        "accumulation_over_ranks",
        "accumulation/ranks",
        f"{_ONCE}; {_GLOBAL}",
        Scale("accumulation/ranks", ranks=-1, accumulation=1),
    )
    RANKS_OVER_ACCUMULATION = (
        "ranks_over_accumulation",
        "ranks/accumulation",
        f"{_AVERAGED}; {_TWICE}",
        Scale("ranks/accumulation", ranks=1, accumulation=-1),
    )
    TRAINER_MULTIPLIES = ("trainer_multiplies", "× accumulation by the Trainer", _IGNORES_ITEMS)
    GRADIENT_FACTOR = (
        "gradient_factor",
        "one factor",
        "look at what the loss is divided by, and for a factor in a hook",
    )
    SHORT_WINDOW = (
        "short_window",
        "short window",
        "divide by the passes that the last step of an epoch has, or drop the incomplete batch (drop_last)",
        None,
        {
            "accelerate": Remedy(
                "let the last passes of an epoch join the next one's first: GradientAccumulationPlugin("
                "num_steps=…, sync_with_dataloader=False); Accelerate divides them by all its steps",
                _ACCELERATE,
            ),
            "lightning": Remedy(
                "train on whole steps alone: limit_train_batches, a multiple of accumulate_grad_batches",
                _LIGHTNING,
            ),
        },
    )
    # Samples that weigh unlike.
    LOST_SAMPLES = (
        "lost_samples",
        "lost samples",
        "look for a zero_grad() between a step's passes, or a step before the last pass",
    )
    LOST_PASSES = (
        "lost_passes",
        "lost passes",
        "call optimizer.zero_grad() once per optimizer step, not per pass, and look for a gradient that is "
        "overwritten",
        None,
        {
            "deepspeed": Remedy(
                "update DeepSpeed (ZeRO-2 kept only the last pass from 0.17.6 to 0.18.2, with offload the "
                "first and the last in 0.18.4); a loop that counts the passes itself calls "
                "engine.set_gradient_accumulation_boundary(is_last_pass) before each backward"
            )
        },
    )
    GRADIENTS_CLEARED = LOST_PASSES
    NO_GRADIENT = (
        "no_gradient",
        "no gradient is left when the optimizer steps",
        "call optimizer.zero_grad() after optimizer.step() or before the backward, not between the two",
    )
    GRADIENTS_KEPT = (
        "gradients_kept",
        "the last step's gradients are still there",
        "call optimizer.zero_grad() after each optimizer.step()",
    )
    RANKS_OWN_UNITS = (
        "ranks_own_units",
        "mean of ranks' means",
        f"{_TOTAL}; DDP averages over ranks, so multiply by their number",
        None,
        {"transformers": Remedy("set average_tokens_across_devices=True", _TRANSFORMERS)},
    )
    OWN_UNITS = ("own_units", "mean of passes' means", _TOTAL, None, {"transformers": _NUM_ITEMS})
    UNEVEN_MEAN = (
        "uneven_mean",
        "mean of uneven passes",
        "multiply each pass's mean loss by its plan.loss_weights(rank)",
    )
    BEFORE_THE_SHIFT = (
        "before_the_shift",
        "tokens counted before the shift",
        "count labels[:, 1:] != -100, which the loss is a mean of",
    )
    REPEATED_SAMPLES = (
        "repeated_samples",
        "repeated samples",
        "look for a second backward pass, or a gradient that is kept",
    )
    UNEQUAL_WEIGHTS = (
        "unequal_weights",
        "unequal weights",
        "look for sample weights that depend on the pass, such as lengths or class counts (in the validator: "
        "Workload(weight=...))",
    )
    LOSS_WEIGHTED = UNEQUAL_WEIGHTS
    MEAN_LOSS = ("mean_loss", "mean loss", 'declare it: Workload(reduction="mean")')
    ANOTHER_LOSS = (
        "another_loss",
        "another loss than the reference",
        "pass the loss that the script computes, as a mean over samples or over what `weight` counts",
    )
    # Samples that act on one another, and parts of a loss.
    BALANCE_LOSS = (
        "balance_loss",
        "balance loss of experts",
        "the balance loss depends on a pass's samples: keep the micro-batch, and divide it by accumulation "
        "and ranks as the rest of the loss",
    )
    LOSS_TERM = (
        "loss_term",
        "a term of the loss",
        "divide the term as the rest of the loss; from outside, divide its coefficient by accumulation × "
        "ranks",
    )
    SOME_TENSORS = (
        "some_tensors",
        "a factor on some tensors",
        "leave the loss as it is, since the other tensors are right: scale what reaches these tensors alone, "
        "such as one term of the loss, or a parameter that each pass uses on features of the whole batch",
    )
    BATCH_NORM = (
        "batch_norm",
        "batch norm",
        "keep the tuned micro-batch, or use SyncBatchNorm (over ranks) or a norm without batch statistics",
    )
    RANDOMNESS = ("randomness", "randomness", "seed each sample's own draw, or ask again without it")
    COUPLED_SAMPLES = (
        "coupled_samples",
        "coupled samples",
        "batch norm, in-batch negatives, an experts' balance loss and the like depend on the micro-batch: "
        "keep the tuned one (--micro-batch), and divide every term of the loss alike",
    )
    WEIGHTS_UNKNOWN = (
        "weights_unknown",
        "weights not known",
        "ask about rows that differ more: these do not tell unequal weights from coupled samples",
    )
    ANOTHER_SAMPLES = (
        "another_samples",
        "other samples",
        "draw the rows through a torch DataLoader or by a seed that is the same for every split, and train "
        "on the batches as the loader gives them, each epoch on all of the plan's dataset",
    )
    # Ranks and weights.
    RANKS_ALONE = (
        "ranks_alone",
        "ranks train alone",
        "call torch.distributed.init_process_group and wrap the model in DistributedDataParallel",
    )
    ANOTHER_START = (
        "another_start",
        "other first weights",
        "draw them alike for any number of ranks: seed before the model is made, or load a checkpoint",
    )
    NEVER_AVERAGED = (
        "never_averaged",
        "gradients not averaged",
        "wrap the model, and run a step's last forward and backward outside of no_sync (fully_shard: with "
        "set_requires_gradient_sync(True)); then look at communication hooks, and at what else writes "
        "gradients",
    )
    RANKS_DIFFER = NEVER_AVERAGED
    WRAPPER_BYPASSED = (
        "wrapper_bypassed",
        "the model inside the wrapper is called, not the wrapper",
        "call the wrapped model, the attached one, for each pass: only its forward prepares the averaging",
    )
    OTHER_WEIGHTS = (
        "other_weights",
        "weights differ between ranks",
        "seed every rank alike before the model is made, start from one checkpoint, or let "
        "DistributedDataParallel broadcast it; let only the optimizer write weights",
    )
    NAN_ON_A_RANK = (
        "nan_on_a_rank",
        "NaN or infinite gradient",
        "look at that rank's data and at its loss (torch.autograd.detect_anomaly finds the operation)",
    )
    NOT_FINITE = (
        "not_finite",
        "gradient not finite",
        "look at the loss of that pass (torch.autograd.detect_anomaly finds the operation), or return to an "
        "earlier checkpoint with a lower learning rate",
    )
    DEAD_RANK = (
        "dead_rank",
        "dead rank, or a host that is cut off",
        "look at what that rank logged last, and at its host (out of memory? dmesg)",
    )
    RANK_FAILED = (
        "rank_failed",
        "a rank failed or hangs",
        "look at what that rank logged last; a phase that is only slow gets more time with --phase-seconds",
    )
    # Passes and steps.
    ANOTHER_WORLD_SIZE = (
        "another_world_size",
        "another world size",
        "start as many processes as the plan has replicas, or plan for these",
    )
    ANOTHER_BATCH = (
        "another_batch",
        "another batch",
        "the script does not follow the split: look where accumulation and micro-batch are set",
        None,
        {
            RESTART: Remedy(
                "keep the samples of a step: the accumulation must follow the ranks (isobatch plan, "
                "ElasticRun)"
            )
        },
    )
    RESUME_OTHER_BATCH = ANOTHER_BATCH
    EARLY_FIRST_STEP = (
        "early_first_step",
        "first step too early",
        "count the passes from 1: step at (number + 1) % accumulation == 0",
    )
    ANOTHER_MICRO_BATCH = (
        "another_micro_batch",
        "another micro-batch",
        "set batch_size=plan.micro_batch for each process, not for all together",
    )
    ANOTHER_ACCUMULATION = (
        "another_accumulation",
        "another accumulation",
        "step the optimizer after a step's passes and at the epoch's end (or drop the rest there by "
        "zero_grad()); call the wrapped model once per pass",
    )
    SKIPPED_STEPS = (
        "skipped_steps",
        "skipped optimizer steps",
        'a loss scaler that skips belongs in the recipe (precision="fp16"); a script that skips bad steps '
        "must do so on all ranks, with zero_grad and without the scheduler",
    )
    NO_STEP = (
        "no_step",
        "no optimizer step, or a step of another optimizer",
        "attach the guard to the optimizer that the loop steps",
    )
    STEPPED_TWICE = (
        "stepped_twice",
        "the optimizer steps twice on the same gradients",
        "call optimizer.step() in one place only: a trainer does it itself",
    )
    EVAL_MODE = (
        "eval_mode",
        "the model trains in eval mode",
        "call model.train() before the first epoch and after each evaluation",
    )
    UNEQUAL_STEPS = (
        "unequal_steps",
        "ranks take different numbers of steps",
        "give all ranks equally many passes",
    )
    ANOTHER_LENGTH = (
        "another_length",
        "a run of another length",
        "train for plan.total_steps optimizer steps (max_steps=plan.total_steps in a trainer)",
        None,
        {RESTART: Remedy("count the steps that are left from the checkpoint's: length, epochs, schedule")},
    )
    RESUME_LENGTH = ANOTHER_LENGTH
    ANOTHER_CONVENTION = (
        "another_convention",
        "the plan counts the end of an epoch like another tool",
        "plan with the convention of the tool that trains",
    )
    # The sampler.
    SAME_DATA = (
        "same_data",
        "ranks draw the same samples",
        "give each rank its share: a DistributedSampler, a PlanSampler, or a seed that depends on the rank",
        None,
        {"accelerate": Remedy("give the loader to accelerator.prepare", _ACCELERATE)},
    )
    NOT_DISTRIBUTED = (
        "not_distributed",
        "the sampler is not distributed",
        "give the loader a DistributedSampler or a PlanSampler",
        None,
        {
            "accelerate": Remedy("give the loader to accelerator.prepare", _ACCELERATE),
            "lightning": Remedy("use_distributed_sampler=True", _LIGHTNING),
        },
    )
    MISSING_SET_EPOCH = (
        "missing_set_epoch",
        "missing set_epoch",
        "call sampler.set_epoch(epoch) before each epoch, also when a run resumes",
        None,
        {
            "lightning": Remedy(
                "with loader workers it does not set the epoch: make the sampler in train_dataloader(), and "
                "set it to self.trainer.current_epoch there",
                _LIGHTNING,
            )
        },
    )
    SAMPLER_REPLICAS = (
        "sampler_replicas",
        "the sampler divides the data by another number of ranks",
        "leave out DistributedSampler's num_replicas and rank, or pass the world size and this process's "
        "rank",
    )
    SAMPLER_SEEDS = (
        "sampler_seeds",
        "ranks shuffle by different seeds",
        "seed the sampler alike on all ranks: it deals one order out to them",
    )
    WORKERS_REPEAT = (
        "workers_repeat",
        "the loader's workers all give the same samples",
        "divide the iterable dataset by torch.utils.data.get_worker_info(), too",
    )
    ANOTHER_DATASET = (
        "another_dataset",
        "a dataset of another size",
        "plan with dataset_size=len(dataset) of the training set",
    )
    SAMPLES_DROPPED = ("samples_dropped", "samples are dropped", _DROP_LAST)
    SAMPLES_PADDED = ("samples_padded", "samples are padded where the plan drops them", _DROP_LAST)
    SAMPLES_REPEATED = (
        "samples_repeated",
        "samples are repeated, and others are never seen",
        "use each sample once per epoch: one order for all ranks, a part of it for each",
    )
    ANOTHER_PLACE = (
        "another_place",
        "the data continues at another place than the schedule",
        "load the sampler's and scheduler's states of one step; after ib.replan, make both anew with the "
        "moved plan",
    )
    SAMPLER_COUNTS = (
        "sampler_counts",
        "this version's sampler or loader counts differently",
        "report it with the versions of torch and accelerate; until then plan with the measured numbers",
    )
    ANOTHER_RAMP = (
        "another_ramp",
        "the sampler's ramp differs from the plan's",
        "report it with the plan: its sampler and its arithmetic differ",
    )
    # The optimizer and its clock.
    ANOTHER_LR = (
        "another_lr",
        "another learning rate",
        "set the learning rate for the batch, without a factor of ranks or accumulation, step the scheduler "
        "once per optimizer step, and count its warmup and length in these steps; with a plan, use plan.lr "
        "and PlanLR(optimizer, plan)",
        None,
        {RESTART: Remedy("save and load scheduler.state_dict(), and step it as often as without a stop")},
    )
    RESUME_RATE = ANOTHER_LR
    SCHEDULER_PER_MICRO_BATCH = (
        "scheduler_per_micro_batch",
        "scheduler counts passes",
        "call scheduler.step() only after optimizer.step(), and count its warmup and length in optimizer "
        "steps, not in the loader's batches",
        None,
        {
            "lightning": Remedy(
                "count its length by trainer.estimated_stepping_batches, which are optimizer steps",
                _LIGHTNING,
            )
        },
    )
    SCHEDULER_PER_PROCESS = (
        "scheduler_per_process",
        "scheduler counts processes",
        "step the scheduler once per optimizer step, and count its warmup and length in steps of all ranks "
        "together",
        None,
        {
            "accelerate": Remedy(
                "a prepared scheduler steps once per process: leave it out of accelerator.prepare, or count "
                "its warmup and length in steps × processes",
                _ACCELERATE,
            )
        },
    )
    SCHEDULER_PER_BOTH = (
        "scheduler_per_both",
        "scheduler counts passes and processes",
        "count the scheduler's warmup and length in optimizer steps, by neither passes nor processes",
        None,
        {
            "accelerate": Remedy(
                "leave the accumulation out of its warmup and length, which are steps × processes: a "
                "prepared scheduler steps once per process, at optimizer steps alone",
                _ACCELERATE,
            )
        },
    )
    SCHEDULER_IN_EPOCHS = (
        "scheduler_in_epochs",
        "a scheduler that counts epochs is stepped at every step",
        "step it once per epoch, or use PlanLR(optimizer, plan), which counts steps",
    )
    SCHEDULER_TOO_EARLY = (
        "scheduler_too_early",
        "scheduler stepped before the optimizer",
        "call scheduler.step() after optimizer.step()",
    )
    SCHEDULER_NEVER = (
        "scheduler_never",
        "scheduler never stepped",
        "call scheduler.step() after each optimizer.step()",
        None,
        {"lightning": Remedy('"interval": "step"', _LIGHTNING)},
    )
    SCHEDULER_TOO_SLOW = (
        "scheduler_too_slow",
        "a scheduler made for more steps than the optimizer takes",
        "count its lengths in optimizer steps (plan.total_steps, plan.warmup_steps), not in passes or one "
        "process's steps",
    )
    GROUP_STRAYS = (
        "group_strays",
        "a parameter group does not follow the plan, others do",
        "one scheduler must set all groups: PlanLR(optimizer, plan) does, with each group's lr_multiplier",
    )
    ANOTHER_SETTING = (
        "another_setting",
        "another optimizer setting",
        "make the parameter groups the same at any split, since their values may not follow the batch; with "
        "a plan, use its momentum, betas, eps and weight_decay",
        None,
        {RESTART: Remedy("make the groups as before, then load the optimizer's state")},
    )
    RESUME_GROUPS = ANOTHER_SETTING
    OPTIMIZER_PARAMETERS = (
        "optimizer_parameters",
        "the optimizer has none of the model's parameters",
        "make the optimizer from the trained model's parameters, after fully_shard and anything else that "
        "replaces them",
    )
    NEW_STATE = (
        "new_state",
        "optimizer's state not restored",
        "save and load optimizer.state_dict() of the same step, after the model is loaded",
    )
    RESUME_STATE = NEW_STATE
    RESUMED = ("resumed", "a resumed run", "say where the run resumes: attach(..., start_step=...)")
    CLIPPED_EACH_PASS = (
        "clipped_each_pass",
        "gradients clipped on every pass",
        "clip once, after the last pass of the step",
        None,
        {"accelerate": Remedy("clip only if accelerator.sync_gradients", _ACCELERATE)},
    )
    CLIPPED_OTHERWISE = (
        "clipped_otherwise",
        "gradients clipped otherwise",
        "clip the averaged gradient of all parameters to the plan's clip_norm, after the last, synchronized "
        "pass and before optimizer.step()",
    )
    ANOTHER_UPDATE = (
        "another_update",
        "another update",
        "only the change of the weights differs: look for code that changes weights, gradients or the "
        "optimizer's state by the number of passes or ranks, and for state or randomness in the optimizer",
        None,
        {RESTART: Remedy("look for state that the optimizer's state_dict() leaves out")},
    )
    RESUME_UPDATE = ANOTHER_UPDATE
    OTHER_UPDATE = ANOTHER_UPDATE
    # A restart from a checkpoint.
    RESUME_ENDED = (
        "resume_ended",
        "no step after the restart",
        "the restart takes the training for finished: keep the step or epoch to continue from, not the one "
        "to end at",
    )
    RESUME_NOT_RESUMED = (
        "resume_not_resumed",
        "starts from the beginning",
        "load the checkpoint: the words of the restart had no effect",
    )
    RESUME_EPOCH_ANEW = (
        "resume_epoch_anew",
        "the epoch starts anew",
        "skip this epoch's trained batches: keep the sampler's offset (StatefulDataLoader, "
        "skip_first_batches, ElasticRun)",
    )
    RESUME_SKIPPED = (
        "resume_skipped",
        "samples are skipped",
        "continue at the next sample: keep the offset in the epoch, and count up the epoch only at its end",
    )
    RESUME_REPEATED = (
        "resume_repeated",
        "samples are repeated",
        "keep the offset after the last sample that a step took, not that of the step before",
    )
    RESUME_OTHER_ORDER = (
        "resume_other_order",
        "another order of the samples",
        "seed the sampler by the run's seed and the epoch (set_epoch), or keep its random state in the "
        "checkpoint",
    )
    RESUME_WEIGHTS = (
        "resume_weights",
        "weights not restored",
        "save and load the model's whole state, in its own dtype",
    )
    RESUME_BESIDE = (
        "resume_beside",
        "a state beside the optimizer's not restored",
        "save and load it too: buffers with model.state_dict(), averaged weights (EMA) and a loss scaler by "
        "their own state_dict()",
    )
    RESUME_RANDOM = (
        "resume_random",
        "random states not restored",
        "save and load the generators' states (torch, torch.cuda, NumPy, random), or seed each step by its "
        "number",
    )
    RESUME_LOSS = (
        "resume_loss",
        "another loss",
        "look for states that were not compared: buffers, a teacher, a loss scale, a draw of its own",
    )
    RESUME_GRADIENT = (
        "resume_gradient",
        "another gradient",
        "look at the accumulation after the restart, and at averaging over ranks",
    )
    # Meshes: tensor, context, pipeline and expert parallelism.
    MESH_MULTIPLIES = (
        "mesh_multiplies",
        "× a dimension of the mesh",
        "look for a gradient summed over ranks with the same samples, or an all-reduce whose backward sums "
        "again: along this dimension these tensors need the mean, or no reduction",
    )
    MESH_DIVIDES = (
        "mesh_divides",
        "1/a dimension of the mesh",
        "look for a mean over ranks that each hold a part of the sum: leave this dimension out of the "
        "averaging group, or multiply by its size",
    )
    MESH_FACTOR = (
        "mesh_factor",
        "another factor under the mesh",
        "look at what these tensors' gradient is divided by, and over which group it is reduced",
    )
    PARTIAL_SUM = (
        "partial_sum",
        "a partial sum that is not reduced",
        "all-reduce the gradient of these tensors over the ranks that each have a part of it, after the last "
        "pass and before clipping: each copy has the gradient of its rank's part alone",
    )
    PART_WITHOUT_GRADIENT = (
        "part_without_gradient",
        "no gradient under the mesh",
        "let a gradient flow back through the collective: use torch.distributed.nn.functional or a function "
        "of autograd instead of torch.distributed, and no detach()",
    )
    MESH_GRADIENT = (
        "mesh_gradient",
        "another gradient under the mesh",
        "compare this layer's output with that of one rank: mask, positions, heads and the loss's total must "
        "be those of the whole sequence and all ranks",
    )
    NORM_OF_SHARDS = (
        "norm_of_shards",
        "norm without the other ranks' shards",
        "add the squares of all ranks' shards before the root, and clip every rank by this norm",
    )
    NORM_OF_COPIES = (
        "norm_of_copies",
        "norm that counts copies",
        "add the squares of a tensor once, however many ranks hold it",
    )
    MESH_NORM = (
        "mesh_norm",
        "another norm under the mesh",
        "compute it from the reduced gradients: the root of the sum of all squares, over all ranks",
    )
    # Machine, memory, forecasts.
    OUT_OF_MEMORY = (
        "out_of_memory",
        "out of memory at the planned micro-batch",
        "plan with a smaller max_micro_batch (--find-micro-batch finds the largest that fits)",
    )
    MORE_MEMORY = ("more_memory", "more memory than forecast", _CALIBRATE)
    SLOWER_STEP = (
        "slower_step",
        "slower than forecast",
        f"look at the slow ranks above; if there are none, {_CALIBRATE}",
    )
    FASTER_STEP = ("faster_step", "faster than forecast", _CALIBRATE)
    NOISY_HOST = ("noisy_host", "the host is too noisy to tell", "run again when other programs are quiet")
    SLOW_RANK = (
        "slow_rank",
        "slow rank",
        "every step waits for it: look at that device's clocks, temperature and other users, or leave it out",
    )
    SLOW_LINK = (
        "slow_link",
        "a slow link, or an unexpected route",
        "look at the interface in use (NCCL_DEBUG=INFO shows it; NCCL_IB_DISABLE, NCCL_P2P_DISABLE and "
        "NCCL_NET decide it), its negotiated rate and error counters (`ibstat`), and compare with nccl-tests "
        "(all_reduce_perf)",
    )
    WRONG_SUMS = (
        "wrong_sums",
        "the all-reduce gives wrong sums: memory, link or library",
        "do not train on this machine: test its memory and links, and try another version of NCCL",
    )
    OTHER_ENVIRONMENT = (
        "other_environment",
        "environments differ between ranks",
        "install the same versions on all hosts",
    )
    GPU_SHARED = (
        "gpu_shared",
        "a GPU shared with other processes",
        "end the other processes (nvidia-smi shows them), or ask the scheduler for whole GPUs, exclusively",
    )
    GPU_THROTTLED = (
        "gpu_throttled",
        "a GPU that is slowed down",
        "look at `nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE`, at the host's cooling and its power "
        "limit; then run `dcgmi diag -r 3` (DCGM)",
    )


LAWS: dict[str, Cause] = {name.lower(): cause for name, cause in Cause.__members__.items()}
"""The rows by their ids, those of older reports too."""

CLOCKS = frozenset({Cause.SCHEDULER_PER_MICRO_BATCH, Cause.SCHEDULER_PER_PROCESS, Cause.SCHEDULER_PER_BOTH})
"""Laws of a schedule that counts something else than optimizer steps."""

SCALES = {cause: cause.scale for cause in Cause if cause.scale is not None}
"""The laws of one factor for all samples, the likeliest first."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Lists likely causes, the likeliest first, and has them in words with their figures."""

    causes: tuple[Cause, ...]
    text: str

    @property
    def cause(self) -> Cause:
        """The likeliest."""
        return self.causes[0]

    @property
    def advice(self) -> str:
        """The advice for each of the causes."""
        return self.advise("")

    def advise(self, trainer: str) -> str:
        """Returns the advice for each of the causes, in the words of a trainer."""
        remedies = (cause.trainers.get(trainer, cause.remedy).text for cause in self.causes)
        return "; or ".join(dict.fromkeys(remedies))


def either(*diagnoses: Diagnosis) -> Diagnosis:
    """Joins diagnoses of the same observation."""
    causes = tuple(dict.fromkeys(cause for diagnosis in diagnoses for cause in diagnosis.causes))
    return Diagnosis(causes=causes, text=", or ".join(diagnosis.text for diagnosis in diagnoses))


class SplitCause(msgspec.Struct, frozen=True):
    """A cause of a difference between splits.

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


def break_of(law: str, text: str) -> SplitCause:
    """Makes the cause of a broken law, by its id, with the remedy for a loop of one's own."""
    row = LAWS[law]
    return SplitCause(row.value, row.text, text, *row.remedy)


def advise(cause: SplitCause, trainer: str) -> SplitCause:
    """Returns a cause with the remedy for the users of a trainer, where its law has one.

    >>> advise(break_of("ranks_own_units", "…"), "transformers").remedy
    'set average_tokens_across_devices=True'
    """
    remedy = LAWS[cause.id].trainers.get(trainer)
    return cause if remedy is None else SplitCause(cause.id, cause.name, cause.text, *remedy)
