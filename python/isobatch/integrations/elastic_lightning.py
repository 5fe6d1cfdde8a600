"""An elastic run in Lightning's Trainer: its own resume, on another number of processes."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from torch.optim import Optimizer

from isobatch.integrations.torch.elastic import ElasticRun

_KEY = "isobatch"


def state_in(checkpoint: str | None) -> dict[str, Any] | None:
    """The run's state in a checkpoint file of Lightning, for `ElasticRun(state=…)`; None where there is no checkpoint."""
    if checkpoint is None:
        return None
    import torch

    state: dict[str, Any] | None = torch.load(checkpoint, weights_only=False).get(_KEY)
    return state


class ElasticLightning(Callback):  # type: ignore[misc]
    """Ties a run to a Trainer with `use_distributed_sampler=False, **callback.arguments` and this callback.

        run = ElasticRun(recipe, state=state_in(checkpoint), split="uneven")
        elastic = ElasticLightning(run)
        trainer = Trainer(callbacks=[elastic], use_distributed_sampler=False, **elastic.arguments)
        trainer.fit(module, elastic.loader(dataset), ckpt_path=checkpoint)

    In the module: `training_step(self, batch, index)` gets `(batch, factor)`, and returns the mean loss times the factor;
    `configure_optimizers` returns `elastic.configure_optimizers(optimizer)`. SIGTERM and SIGUSR1 stop the training after a step.

    Args:
        run: the run, made on every rank.
    """

    def __init__(self, run: ElasticRun) -> None:
        self._run, self._driven = run, run.driven()

    @property
    def arguments(self) -> dict[str, Any]:
        """The plan's part of the Trainer's arguments."""
        return {
            "accumulate_grad_batches": self._driven.passes,
            "max_steps": self._run.plan.total_steps,
            "max_epochs": -1,
        }

    def loader(self, dataset: Any, **options: Any) -> Any:
        """The run's micro-batches from where it is to its end, each with its factor."""
        return self._driven.loader(dataset, lambda batch, factor: (batch, factor), **options)

    def configure_optimizers(self, optimizer: Optimizer) -> dict[str, Any]:
        """What `LightningModule.configure_optimizers` returns."""
        scheduler = {"scheduler": self._driven.scheduler(optimizer), "interval": "step", "frequency": 1}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """The loader begins behind what was consumed, so that the batches of this start are counted from 0."""
        trainer.fit_loop.epoch_loop.restarting = False
        self._driven.begin()

    def on_train_batch_start(self, _trainer: Any, _module: Any, _batch: Any, index: int) -> None:
        """At a step's first micro-batch the ranks agree on whether to stop after it."""
        if index % self._driven.passes == 0:
            self._driven.begin_step()

    def on_train_batch_end(self, trainer: Any, _module: Any, _outputs: Any, _batch: Any, index: int) -> None:
        """At a step's last one the step is counted."""
        if (index + 1) % self._driven.passes == 0:
            self._driven.end_step()
            if self._run.stopping:
                trainer.should_stop = True

    def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        """The checkpoint has the run's state."""
        checkpoint[_KEY] = self._run.state_dict()

    def on_train_end(self, *_: Any) -> None:
        """The handlers before are put back."""
        self._driven.end()
