"""What the guard raises, and what to do about it. Without torch, so that a launcher can catch it."""

from __future__ import annotations

from typing import Any

_ADVICE = {
    "summed loss": 'take the mean over the samples (reduction="mean")',
    "no division by the accumulation": "divide each micro-batch's loss by plan.accumulation, or multiply it by its plan.loss_weights(rank)",
    "summed over ranks": "DDP averages: leave out the all-reduce or the communication hook that sums, and any factor of the world size",
    "divided by the world size twice": "DDP averages: leave out the division",
    "divided by the accumulation twice": "the trainer divides by itself: leave out the script's own division",
    "uneven ranks": "multiply each micro-batch's loss by its plan.loss_weights(rank)",
    "own units": "divide the sums of a step's micro-batches by the units of all of them (transformers: pass num_items_in_batch on)",
    "never averaged": "wrap the model, and run both forward and backward of a step's last micro-batch outside of no_sync",
    "per process": "step the scheduler once per optimizer step, and leave it out of accelerator.prepare",
    "per micro-batch": "call scheduler.step() after optimizer.step() only",
    "stepped before the optimizer": "call scheduler.step() after optimizer.step()",
    "scheduler never stepped": 'call scheduler.step() after each optimizer.step() (Lightning: "interval": "step")',
    "another learning rate": "make the optimizer with plan.lr, and its scheduler with PlanLR(optimizer, plan)",
    "parameter group": "one scheduler must set all groups: PlanLR(optimizer, plan) does, with each group's lr_multiplier",
    "resumed": "say where the run resumes: attach(…, start_step=…)",
    "missing set_epoch": "call sampler.set_epoch(epoch) before each epoch",
    "not distributed": "give the loader a DistributedSampler or a PlanSampler (Lightning: use_distributed_sampler=True; Accelerate: prepare the loader)",
    "drop": "set the drop_last of loader and sampler as the recipe says, or plan with the script's drop_last",
    "padded": "set the drop_last of loader and sampler as the recipe says, or plan with the script's drop_last",
    "samples": "train on the dataset of the plan, each epoch on all of it",
    "another loss": "give the guard the loss that the script makes, as a mean over samples, or over what `weight` counts",
    "another world size": "start as many processes as the plan has replicas, or make the plan for these",
    "another micro-batch": "batch_size=plan.micro_batch for each process (not for all of them together)",
    "another accumulation": "step the optimizer after plan.accumulation micro-batches, and at the epoch's end; call the wrapped model once for each",
    "other weights": "start all ranks from the same checkpoint or seed, and let nothing but the optimizer write weights",
    "NaN": "look at that rank's data and at the loss it makes of it (torch.autograd.detect_anomaly finds the operation)",
    "not finite": "look at the loss (torch.autograd.detect_anomaly finds the operation), or go back to an earlier checkpoint with a lower learning rate",
    "different numbers of steps": "give all ranks equally many micro-batches",
    "dead rank": "look at what the other ranks logged last",
    "another place": "load the sampler's and the scheduler's state of the same step; after ib.replan, make both anew with the moved plan",
    "no optimizer step": "attach the guard to the optimizer that the loop steps",
}


class GuardError(RuntimeError):
    """The training is not what its plan says.

    It is raised inside the training loop, by the call that could not go on: `attach`, `optimizer.step()`, the model's forward
    or `finish`; on all ranks where they can all tell, else on the ranks that see it. Nobody needs to catch it: uncaught, it
    ends the process with exit code 1, and torchrun then ends the others.

    Attributes:
        step: the optimizer step before which it was noticed, counted as the plan counts.
        text: what was seen, and what was planned.
        cause: what most likely went wrong.
        advice: what to do about it.
        ranks: the data-parallel ranks that are unlike the others; empty where it is all of them, or none can be told.

    >>> raise GuardError(3, "another learning rate", "learning rate 0.2, 0.1 planned")
    Traceback (most recent call last):
    isobatch.guard.GuardError: isobatch guard, before step 3: learning rate 0.2, 0.1 planned → another learning rate. Make the optimizer with plan.lr, and its scheduler with PlanLR(optimizer, plan).
    """

    def __init__(self, step: int, cause: str, text: str, ranks: tuple[int, ...] = ()) -> None:
        self.step, self.cause, self.text, self.ranks = step, cause, text, ranks
        fitting = [advice for key, advice in _ADVICE.items() if key in cause]
        self.advice = "; ".join(dict.fromkeys(fitting))
        said = f" {self.advice[0].upper()}{self.advice[1:]}." if self.advice else ""
        super().__init__(f"isobatch guard, before step {step}: {text} → {cause}.{said}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step, self.cause, self.text, self.ranks)


GuardError.__module__ = "isobatch.guard"  # where it is public
