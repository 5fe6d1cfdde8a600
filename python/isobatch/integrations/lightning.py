"""A plan's learning rate for Lightning, and an elastic run in its Trainer by its own resume."""

from typing import Any

import torch
from lightning.pytorch import Callback
from torch.optim import Optimizer

from isobatch.elastic.run import ElasticRun
from isobatch.errors import InputError, first_line
from isobatch.planning.plan import Plan
from isobatch.training.lr import PlanLR


def configure_optimizers(optimizer: Optimizer, plan: Plan) -> dict[str, Any]:
    """Returns the result for `LightningModule.configure_optimizers`: the optimizer and its PlanLR.

    Pass the rest of the plan to the Trainer: `accumulate_grad_batches=plan.accumulation`,
    `max_steps=plan.total_steps`, and with a PlanSampler `use_distributed_sampler=False`.

    Args:
        optimizer: of the module to train.
        plan: feasible, with a duration.

    Raises:
        InputError: as PlanLR.

    >>> import isobatch as ib, torch
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    >>> plan = ib.plan(ib.Recipe(effective_batch=256, lr=3.0, optimizer="sgd", duration="10st"), 8)
    >>> configure_optimizers(optimizer, plan)["lr_scheduler"]["interval"]
    'step'
    """
    scheduler = {"scheduler": PlanLR(optimizer, plan), "interval": "step", "frequency": 1, "name": "lr"}
    return {"optimizer": optimizer, "lr_scheduler": scheduler}


# ---- an elastic run ----


_KEY = "isobatch"
_NEVER = 1 << 62
"""A number of batches that no training reaches."""


def state_in(checkpoint: str | None) -> dict[str, Any] | None:
    """Reads the run's state from a checkpoint file of Lightning, for `ElasticRun(state=…)`, or None.

    Nothing in the file is executed.

    Args:
        checkpoint: a file of Lightning's; None: none yet.

    Raises:
        InputError: the file cannot be read without executing something: it has objects other than tensors,
            numbers, texts and lists of them.
    """
    if checkpoint is None:
        return None
    try:
        state: dict[str, Any] | None = torch.load(checkpoint, map_location="cpu", weights_only=True).get(_KEY)
    except FileNotFoundError:
        raise InputError("there is no such checkpoint", file=str(checkpoint)) from None
    except Exception as error:  # On a damaged file torch's reader may raise anything.
        raise InputError(
            f"the checkpoint cannot be read without executing what is in it ({first_line(error)}): "
            "keep objects of your own, as in hyperparameters, out of it, or read it yourself where you trust "
            'it: torch.load(path, weights_only=False)["isobatch"]',
            file=str(checkpoint),
        ) from None
    return state


class ElasticLightning(Callback):  # type: ignore[misc]
    """Connects a run to a Lightning Trainer.

        run = ElasticRun(recipe, state=state_in(checkpoint), split="uneven")
        elastic = ElasticLightning(run)
        trainer = Trainer(callbacks=[elastic], use_distributed_sampler=False, **elastic.arguments)
        trainer.fit(module, elastic.loader(dataset), ckpt_path=checkpoint)

    In the module, `training_step(self, batch, index)` gets `(batch, factor)` and returns the mean loss times
    the factor; `configure_optimizers` returns `elastic.configure_optimizers(optimizer)`.

    To the Trainer the rest of the run is a single epoch, so `on_train_epoch_start` and `on_train_epoch_end`
    are called once per start. Still `current_epoch` is the run's epoch, and `check_val_every_n_epoch` counts
    the run's epochs. SIGTERM and SIGUSR1 stop the training after a step.

    Args:
        run: the run, made on every rank.
    """

    def __init__(self, run: ElasticRun) -> None:
        self._run, self._loop = run, run.trainer_loop()

    @property
    def arguments(self) -> dict[str, Any]:
        """The Trainer's arguments decided by the plan."""
        return {
            "accumulate_grad_batches": self._loop.passes,
            "max_steps": self._run.plan.total_steps,
            "max_epochs": -1,
        }

    def loader(self, dataset: Any, **options: Any) -> Any:
        """Makes a loader of the run's remaining micro-batches, each with its factor."""
        return self._loop.loader(dataset, lambda batch, factor: (batch, factor), **options)

    def configure_optimizers(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns the optimizer and the run's scheduler, for `LightningModule.configure_optimizers`."""
        scheduler = {"scheduler": self._loop.scheduler(optimizer), "interval": "step", "frequency": 1}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Counts the batches of this start from 0: the loader begins after the consumed samples."""
        trainer.fit_loop.epoch_loop.restarting = False
        self._loop.begin()

    def on_train_batch_start(self, trainer: Any, _module: Any, _batch: Any, index: int) -> None:
        """Begins a step at its first micro-batch: the ranks agree on whether to stop after it."""
        if index % self._loop.passes == 0:
            self._loop.begin_step()
            self._count_epochs(trainer)
            if trainer.check_val_every_n_epoch is not None and trainer.val_check_interval == 1.0:
                # To the Trainer the rest of the run is one epoch; it validates after each batch whose number
                # is a multiple of val_check_batch.
                trainer.val_check_batch = index + self._loop.passes if self._loop.ends_epoch else _NEVER

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, index: int) -> None:
        """Counts a step at its last micro-batch."""
        if (index + 1) % self._loop.passes == 0:
            self._loop.end_step()
            if self._run.stopping:
                trainer.should_stop = True

    def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        """Puts the run's state into the checkpoint."""
        checkpoint[_KEY] = self._run.state_dict()

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        """Ends the training: the previous signal handlers are restored."""
        self._count_epochs(trainer)  # the Trainer has counted this start as one
        self._loop.end()

    def _count_epochs(self, trainer: Any) -> None:
        """Sets the Trainer's `current_epoch`, and the epoch of its other loaders' samplers, to the run's."""
        epoch = trainer.fit_loop.epoch_progress.current
        epoch.processed = epoch.completed = self._loop.epoch
