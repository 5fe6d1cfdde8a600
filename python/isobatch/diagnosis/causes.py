"""Causes of faults in a training, in words, with advice. No process, no model."""

from enum import StrEnum

import msgspec


class Cause(StrEnum):
    """Names a likely cause. `.text` has it in words, `.advice` the remedy.

    >>> Cause.SUMMED_LOSS.value, Cause.SUMMED_LOSS.text
    ('summed_loss', 'summed loss')
    """

    text: str
    advice: str

    def __new__(cls, value: str, text: str, advice: str) -> "Cause":
        """Makes a member."""
        member = str.__new__(cls, value)
        member._value_, member.text, member.advice = value, text, advice
        return member

    # The gradient.
    SUMMED_LOSS = (
        "summed_loss",
        "summed loss",
        'take the mean over the samples (reduction="mean"), or declare the sum to the validator',
    )
    MEAN_LOSS = ("mean_loss", "mean loss", 'declare it: Workload(reduction="mean")')
    NOT_DIVIDED = (
        "not_divided",
        "no division by the accumulation",
        "divide each micro-batch's loss by plan.accumulation, or multiply it by its plan.loss_weights(rank)",
    )
    SUMMED_OVER_RANKS = (
        "summed_over_ranks",
        "gradients summed over ranks instead of averaged",
        "remove the all-reduce or communication hook that sums, and any factor of the world size: DDP "
        "averages",
    )
    TRAINER_MULTIPLIES = (
        "trainer_multiplies",
        "transformers' Trainer does not divide by the accumulation and multiplies by the processes, and the "
        "loss ignores num_items_in_batch",
        "where the model's own loss ignores it (BERT, T5, BART and others, not the causal models of Llama or "
        "GPT-2), set model.accepts_loss_kwargs = False before Trainer(...); a compute_loss of your own must "
        "return the labels' sum / num_items_in_batch × the number of processes, since that counts the labels "
        "of all of them (a compute_loss_func: the sum / num_items_in_batch alone, the Trainer multiplies), "
        "or set trainer.model_accepts_loss_kwargs = False",
    )
    DIVIDED_BY_RANKS = (
        "divided_by_ranks",
        "divided by the world size twice: DDP averages already",
        "remove the script's own division by the world size; in a compute_loss of transformers' Trainer, "
        "num_items_in_batch counts the labels of all processes: multiply by their number",
    )
    DIVIDED_TWICE = (
        "divided_twice",
        "divided by the accumulation twice",
        "the trainer divides by itself: remove the script's own division",
    )
    UNEVEN_MEAN = (
        "uneven_mean",
        "uneven ranks with a mean loss",
        "multiply each micro-batch's loss by its plan.loss_weights(rank)",
    )
    OWN_UNITS = (
        "own_units",
        "a mean over each micro-batch's own units",
        "divide the sums of a step's micro-batches by the units of all of them (transformers: pass "
        "num_items_in_batch on)",
    )
    RANKS_OWN_UNITS = (
        "ranks_own_units",
        "each rank divides by its own units, and the ranks' means are averaged",
        "divide by the units of all ranks (transformers: average_tokens_across_devices=True)",
    )
    NEVER_AVERAGED = (
        "never_averaged",
        "gradients never averaged: forward inside no_sync and backward outside, or a model that is not "
        "wrapped in DDP",
        "wrap the model, and run both forward and backward of a step's last micro-batch outside of no_sync "
        "(fully_shard: with set_requires_gradient_sync(True))",
    )
    WRAPPER_BYPASSED = (
        "wrapper_bypassed",
        "the model inside the wrapper is called, not the wrapper",
        "call the wrapped model, the one that is attached, for each micro-batch: only its forward prepares "
        "the averaging",
    )
    GRADIENTS_CLEARED = (
        "gradients_cleared",
        "the gradients of a step's earlier micro-batches are cleared",
        "call optimizer.zero_grad() once for each optimizer step, not for each micro-batch",
    )
    NO_GRADIENT = (
        "no_gradient",
        "no gradient is left when the optimizer steps",
        "call optimizer.zero_grad() after optimizer.step() or before the backward, not between the two",
    )
    CLIPPED_OTHERWISE = (
        "clipped_otherwise",
        "gradients are not clipped as planned",
        "clip with max_norm=plan.recipe.clip_norm before optimizer.step(), or plan with the script's "
        "clip_norm",
    )
    GRADIENT_FACTOR = (
        "gradient_factor",
        "a gradient of another size",
        "look for a factor on the loss or on the gradients, in the script or in a hook",
    )
    ANOTHER_LOSS = (
        "another_loss",
        "another loss than the reference",
        "pass the loss that the script computes, as a mean over samples or over what `weight` counts",
    )
    ANOTHER_SAMPLES = (
        "another_samples",
        "other samples",
        "train on the plan's dataset, each epoch on all of it, and on the batches as the loader gives them",
    )
    LOSS_WEIGHTED = (
        "loss_weighted",
        "a loss that is neither a mean nor a sum over samples",
        "declare what it is a mean over: Workload(weight=...)",
    )
    COUPLED_SAMPLES = (
        "coupled_samples",
        "samples of a micro-batch depend on each other: batch norm, in-batch negatives, a balance loss of "
        "experts",
        "keep the tuned micro-batch (--micro-batch), or ask isobatch same how much another split changes",
    )
    NAN_ON_A_RANK = (
        "nan_on_a_rank",
        "NaN or infinite gradient",
        "look at that rank's data and at its loss (torch.autograd.detect_anomaly finds the operation)",
    )
    NOT_FINITE = (
        "not_finite",
        "gradient not finite",
        "look at the loss (torch.autograd.detect_anomaly finds the operation), or go back to an earlier "
        "checkpoint with a lower learning rate",
    )

    # The learning rate.
    SCHEDULER_PER_PROCESS = (
        "scheduler_per_process",
        "scheduler stepped once per process",
        "step the scheduler once per optimizer step, and leave it out of accelerator.prepare",
    )
    SCHEDULER_PER_MICRO_BATCH = (
        "scheduler_per_micro_batch",
        "scheduler stepped once per micro-batch",
        "call scheduler.step() after optimizer.step() only",
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
        'call scheduler.step() after each optimizer.step() (Lightning: "interval": "step")',
    )
    ANOTHER_LR = (
        "another_lr",
        "another learning rate",
        "make the optimizer with plan.lr, and its scheduler with PlanLR(optimizer, plan)",
    )
    GROUP_STRAYS = (
        "group_strays",
        "a parameter group does not follow the plan, others do",
        "one scheduler must set all groups: PlanLR(optimizer, plan) does, with each group's lr_multiplier",
    )
    SCHEDULER_TOO_SLOW = (
        "scheduler_too_slow",
        "a scheduler made for more steps than the optimizer takes",
        "count its lengths in optimizer steps (plan.total_steps, plan.warmup_steps), not in micro-batches or "
        "in steps of one process",
    )
    ANOTHER_SETTING = (
        "another_setting",
        "another optimizer setting",
        "make the recipe's optimizer, with plan.momentum, plan.betas, plan.eps and plan.weight_decay",
    )
    OPTIMIZER_PARAMETERS = (
        "optimizer_parameters",
        "the optimizer has none of the model's parameters",
        "make the optimizer from the parameters of the trained model, after fully_shard and anything else "
        "that replaces them",
    )
    NEW_STATE = (
        "new_state",
        "the run resumes with a new optimizer state",
        "also load the optimizer's state of the same step",
    )
    RESUMED = ("resumed", "a resumed run", "say where the run resumes: attach(..., start_step=...)")

    # Samples, micro-batches, steps.
    ANOTHER_WORLD_SIZE = (
        "another_world_size",
        "another world size",
        "start as many processes as the plan has replicas, or plan for these",
    )
    ANOTHER_MICRO_BATCH = (
        "another_micro_batch",
        "another micro-batch",
        "set batch_size=plan.micro_batch for each process, not for all together",
    )
    ANOTHER_ACCUMULATION = (
        "another_accumulation",
        "another accumulation",
        "step the optimizer after plan.accumulation micro-batches, and at the epoch's end; call the wrapped "
        "model once for each",
    )
    SKIPPED_STEPS = (
        "skipped_steps",
        "skipped optimizer steps",
        'a loss scaler that skips belongs in the recipe (precision="fp16"); a script that skips bad steps '
        "must skip them on all ranks, with zero_grad and without the scheduler",
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
        "give all ranks equally many micro-batches",
    )
    GRADIENTS_KEPT = (
        "gradients_kept",
        "the last step's gradients are still there",
        "call optimizer.zero_grad() after each optimizer.step()",
    )
    ANOTHER_LENGTH = (
        "another_length",
        "a run of another length",
        "train for plan.total_steps optimizer steps (max_steps=plan.total_steps in a trainer)",
    )
    ANOTHER_CONVENTION = (
        "another_convention",
        "the plan counts the end of an epoch like another tool",
        "plan with the convention of the tool that trains",
    )
    MISSING_SET_EPOCH = (
        "missing_set_epoch",
        "missing set_epoch",
        "call sampler.set_epoch(epoch) before each epoch, also when a run resumes (Lightning with loader "
        "workers does not: make the sampler in train_dataloader(), and set it to self.trainer.current_epoch "
        "there)",
    )
    NOT_DISTRIBUTED = (
        "not_distributed",
        "the sampler is not distributed",
        "give the loader a DistributedSampler or a PlanSampler (Lightning: use_distributed_sampler=True; "
        "Accelerate: prepare the loader)",
    )
    SAME_DATA = (
        "same_data",
        "ranks train on the same data",
        "give each rank its own samples: a DistributedSampler, a PlanSampler, or a seed that depends on the "
        "rank",
    )
    SAMPLER_REPLICAS = (
        "sampler_replicas",
        "the sampler divides the data by another number of ranks",
        "leave out num_replicas and rank of DistributedSampler, or pass the world size and this process's "
        "rank",
    )
    SAMPLER_SEEDS = (
        "sampler_seeds",
        "ranks shuffle by different seeds",
        "give the sampler the same seed on all ranks: it deals one order out to all of them",
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
    SAMPLES_DROPPED = (
        "samples_dropped",
        "samples are dropped",
        "set the drop_last of loader and sampler as in the recipe, or plan with the script's drop_last",
    )
    SAMPLES_PADDED = (
        "samples_padded",
        "samples are padded where the plan drops them",
        "set the drop_last of loader and sampler as in the recipe, or plan with the script's drop_last",
    )
    SAMPLES_REPEATED = (
        "samples_repeated",
        "samples are repeated, and others are never seen",
        "use each sample once per epoch: one order for all ranks, and a part of it for each rank",
    )
    ANOTHER_PLACE = (
        "another_place",
        "the data continues at another place than the schedule",
        "load the sampler's and the scheduler's state of the same step; after ib.replan, make both anew with "
        "the moved plan",
    )
    SAMPLER_COUNTS = (
        "sampler_counts",
        "this version's sampler or loader counts differently",
        "report it with the versions of torch and accelerate; until then plan with the numbers that were "
        "measured",
    )
    ANOTHER_RAMP = (
        "another_ramp",
        "the sampler's ramp differs from the plan's",
        "report it with the plan: its sampler and its arithmetic differ",
    )

    # Ranks and weights.
    OTHER_WEIGHTS = (
        "other_weights",
        "weights differ between ranks",
        "start all ranks from the same checkpoint or seed, and let nothing but the optimizer write weights",
    )
    RANKS_DIFFER = (
        "ranks_differ",
        "ranks that differ: not averaged, or changed behind DDP's back",
        "look at communication hooks, and at what writes gradients or weights outside of the optimizer",
    )
    OTHER_UPDATE = (
        "other_update",
        "the optimizer took another step from the same gradient",
        "look in the optimizer for state that it carries over, or for randomness",
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

    # Machine, memory, forecasts.
    OUT_OF_MEMORY = (
        "out_of_memory",
        "out of memory at the planned micro-batch",
        "plan with a smaller max_micro_batch (--find-micro-batch finds the largest that fits)",
    )
    MORE_MEMORY = ("more_memory", "more memory than forecast", "calibrate with this report, and plan again")
    SLOWER_STEP = (
        "slower_step",
        "slower than forecast",
        "look at the slow ranks above; if there are none, calibrate with this report, and plan again",
    )
    FASTER_STEP = ("faster_step", "faster than forecast", "calibrate with this report, and plan again")
    NOISY_HOST = ("noisy_host", "the host is too noisy to tell", "run again when other programs are quiet")
    SLOW_RANK = (
        "slow_rank",
        "slow rank",
        "every step waits for it: look at that device's clocks, temperature and other users, or leave it out",
    )
    SLOW_LINK = (
        "slow_link",
        "a slow link, or an unexpected route",
        "look at the interface in use (NCCL_DEBUG=INFO; NCCL_IB_DISABLE, NCCL_P2P_DISABLE and NCCL_NET "
        "decide it), its negotiated rate and its error counters (`ibstat`), and compare with nccl-tests "
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

    # A GPU, before anything is timed on it.
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

    def likely(self, detail: str = "") -> "Diagnosis":
        """Returns this cause alone, with a detail."""
        return Diagnosis(causes=(self,), text=f"{self.text} ({detail})" if detail else self.text)


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
        return "; or ".join(dict.fromkeys(cause.advice for cause in self.causes))


def either(*diagnoses: Diagnosis) -> Diagnosis:
    """Joins diagnoses of the same observation."""
    causes = tuple(dict.fromkeys(cause for diagnosis in diagnoses for cause in diagnosis.causes))
    return Diagnosis(causes=causes, text=", or ".join(diagnosis.text for diagnosis in diagnoses))
