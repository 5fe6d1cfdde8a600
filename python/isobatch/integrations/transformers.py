"""A plan's learning rate for the Trainer of transformers, and an elastic run in it by its own resume."""

import json
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from isobatch.elastic.run import ElasticRun
from isobatch.errors import InputError, must_be, unreadable
from isobatch.files.whole import read_bytes, write_whole
from isobatch.planning.plan import Plan
from isobatch.training.lr import PlanLR


def optimizers(optimizer: Optimizer, plan: Plan) -> tuple[Optimizer, PlanLR]:
    """Returns the pair for `Trainer(optimizers=…)`; it replaces the Trainer's learning rate and scheduler.

    Pass the rest of the plan in TrainingArguments: `per_device_train_batch_size=plan.micro_batch`,
    `gradient_accumulation_steps=plan.accumulation`, `max_steps=plan.total_steps`.

    Args:
        optimizer: of the model to train.
        plan: feasible, with a duration.

    Raises:
        InputError: as PlanLR.

    >>> import isobatch as ib, torch
    >>> optimizer = torch.optim.AdamW(torch.nn.Linear(2, 2).parameters())
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=3e-4, duration="10st"), 8)
    >>> optimizers(optimizer, plan)[1].get_last_lr()
    [0.0003]
    """
    return optimizer, PlanLR(optimizer, plan)


# ---- an elastic run ----


_FILE = "isobatch.json"
_FACTOR = "isobatch_factor"


def state_in(checkpoint: str | Path | None) -> dict[str, Any] | None:
    """Reads the run's state from a checkpoint folder of the Trainer, for `ElasticRun(state=…)`, or None.

    Args:
        checkpoint: a folder that ElasticTrainer wrote; None: none yet.

    Raises:
        InputError: the folder has no state, or it cannot be read.
    """
    if checkpoint is None:
        return None
    path = Path(checkpoint) / _FILE
    if not path.exists():
        raise InputError(
            f"{_FILE} is missing: the checkpoint must be of an ElasticTrainer", file=str(checkpoint)
        )
    try:
        state = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise unreadable(error, str(path)) from None
    if not isinstance(state, dict):
        raise must_be("the state of a run", state, field=_FILE, file=str(path))
    return state


def arguments(run: ElasticRun) -> dict[str, Any]:
    """Returns the plan's part of TrainingArguments: batch, accumulation, length, and consumed data.

    Args:
        run: the elastic run, made before the Trainer.

    >>> import isobatch as ib
    >>> recipe = ib.Recipe(effective_batch=64, lr=1e-4, dataset_size=640, duration="3ep")
    >>> options = arguments(ElasticRun(recipe, max_micro_batch=16))
    >>> options["per_device_train_batch_size"], options["gradient_accumulation_steps"], options["max_steps"]
    (16, 4, 30)
    """
    return {
        "per_device_train_batch_size": run.plan.micro_batch,
        "gradient_accumulation_steps": run.trainer_loop().passes,
        "max_steps": run.plan.total_steps,
        "ignore_data_skip": True,
    }


class ElasticTrainer:
    """Makes a Trainer elastic; mix it in before the Trainer's class, also before SFTTrainer and the like.

        class Mine(ElasticTrainer, transformers.Trainer):
            pass

        run = ElasticRun(recipe, state=state_in(checkpoint), split="uneven")
        # Without elastic_optimizer the Trainer makes its own, with its groups without weight decay.
        trainer = Mine(model, TrainingArguments(out, **arguments(run)), train_dataset=data, elastic=run,
                       elastic_optimizer=optimizer)
        trainer.train(resume_from_checkpoint=checkpoint)

    If the Trainer counts labels (`num_items_in_batch`), the loss is still the mean over the step's labels,
    and stand-ins have no labels; else each micro-batch is weighted by its samples. If the arguments evaluate,
    save or log every epoch, this happens at the end of each of the run's epochs. After SIGTERM or SIGUSR1 the
    Trainer saves and stops at the end of a step.
    """

    def __init__(
        self, *args: Any, elastic: ElasticRun, elastic_optimizer: Optimizer | None = None, **options: Any
    ) -> None:
        self._elastic, self._loop = elastic, elastic.trainer_loop()
        scheduler = None if elastic_optimizer is None else self._loop.scheduler(elastic_optimizer)
        pair = elastic_optimizer, scheduler
        super().__init__(*args, optimizers=pair, **options)  # type: ignore[call-arg]
        from transformers import TrainerCallback

        callback = type("ElasticCallback", (_Steps, TrainerCallback), {})(elastic)
        self.add_callback(callback)  # type: ignore[attr-defined]

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """Makes the Trainer's own optimizer, and the run's scheduler for it before Accelerate wraps it."""
        trainer: Any = self
        optimizer = super().create_optimizer(*args, **options)  # type: ignore[misc]
        if trainer.lr_scheduler is None:
            trainer.lr_scheduler = self._loop.scheduler(optimizer)
        return optimizer

    @property
    def _counts_labels(self) -> bool:
        trainer: Any = self
        return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)

    def get_train_dataloader(self) -> Any:
        """Makes a loader of the run's micro-batches, with this Trainer's own collator and workers."""
        trainer: Any = self
        options = {
            "collate_fn": trainer._get_collator_with_removed_columns(trainer.data_collator, "training"),
            "num_workers": trainer.args.dataloader_num_workers,
            "pin_memory": trainer.args.dataloader_pin_memory,
        }
        return self._loop.loader(trainer.train_dataset, self._join, **options)

    def _join(self, batch: Any, factor: float) -> Any:
        if not factor and self._counts_labels:
            batch = {**batch, "labels": batch["labels"].new_full(batch["labels"].shape, -100)}
        return {**batch, _FACTOR: factor}

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Computes the loss with the micro-batch's weight, where the Trainer does not count labels itself."""
        factor = inputs.pop(_FACTOR, 1.0)
        loss = super().compute_loss(model, inputs, *args, **options)  # type: ignore[misc]
        if self._counts_labels and (options.get("num_items_in_batch") is not None):
            return loss
        return (loss[0] * factor, *loss[1:]) if isinstance(loss, tuple) else loss * factor


_EACH_EPOCH = {
    "eval_strategy": "should_evaluate",
    "save_strategy": "should_save",
    "logging_strategy": "should_log",
}


class _Steps:
    """Tells the run about the Trainer's steps, and the Trainer when the run stops."""

    def __init__(self, run: ElasticRun) -> None:
        self._run, self._loop = run, run.trainer_loop()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begins the training: signals are noted."""
        self._loop.begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begins a step: if it is time, the ranks agree on whether to stop after it."""
        self._loop.begin_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **__: Any) -> None:
        """Counts a step; at the end of an epoch saves, evaluates and logs as the arguments say."""
        ends = self._loop.ends_epoch
        self._loop.end_step()
        place, size = self._run.position, self._run.plan.recipe.dataset_size
        if size and place.epoch is not None:
            state.epoch = place.epoch + (place.offset or 0) / size
        for strategy, flag in _EACH_EPOCH.items():
            if ends and getattr(args, strategy) == "epoch":
                late = strategy != "eval_strategy" or (args.eval_delay or 0) <= state.epoch
                setattr(control, flag, late or getattr(control, flag))
        if self._run.stopping:
            control.should_training_stop = control.should_save = True

    def on_epoch_end(self, args: Any, _state: Any, control: Any, **__: Any) -> None:
        """Ignores the loader's end: `on_step_end` has handled it, or it is not the end of an epoch."""
        for strategy, flag in _EACH_EPOCH.items():
            if getattr(args, strategy) == "epoch":
                setattr(control, flag, False)

    def on_save(self, args: Any, state: Any, _control: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / _FILE
            write_whole(path, json.dumps(self._run.state_dict()).encode())

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Ends the training: the previous signal handlers are restored."""
        self._loop.end()
