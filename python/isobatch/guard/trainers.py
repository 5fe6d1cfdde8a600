"""The guard inside trainers that own the loop."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from isobatch.guard.owner import Owner
from isobatch.guard.recomputing import OtherUnits


class Attachable(Protocol):
    """What a trainer's callback needs of a guard."""

    unchecked: list[str]

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        start_step: int | None = None,
        owner: Owner | None = None,
    ) -> Any:
        """Takes its place in the loop."""

    def finish(self) -> None:
        """Checks the last epoch."""


def lightning_callback(guard: Attachable) -> Any:
    """A Lightning callback."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningGuard(Callback):  # type: ignore[misc]
        """Holds a Trainer to a plan."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            """The first place where optimizers and loaders are what they will be."""
            loader, done = trainer.train_dataloader, trainer.global_step
            single = loader if hasattr(loader, "batch_sampler") else None  # not several of them
            steps = trainer.estimated_stepping_batches
            owner = Owner("lightning", int(steps) if 0 < steps < float("inf") else None)
            guard.attach(
                trainer.strategy.model, trainer.optimizers[0], single, start_step=done or None, owner=owner
            )
            if len(trainer.optimizers) > 1:
                guard.unchecked.append("optimizers other than the first")
            # The loader's iterator was made before this hook: anew, so that it is seen. Not one that resumes where it was.
            if not (done and hasattr(loader, "load_state_dict")):
                iter(trainer.fit_loop._data_fetcher)

        def on_train_end(self, *_: Any) -> None:
            """The last epoch."""
            guard.finish()

    return LightningGuard()


def transformers_callback(guard: Attachable) -> Any:
    """A callback of transformers' Trainer."""
    from transformers import TrainerCallback

    class TransformersGuard(TrainerCallback):  # type: ignore[misc]
        """Holds a Trainer to a plan."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            """Before the first batch."""
            model, optimizer, loader = (kwargs[name] for name in ("model", "optimizer", "train_dataloader"))
            owner = Owner("transformers", state.max_steps if state.max_steps > 0 else None)
            guard.attach(model, optimizer, loader, start_step=state.global_step or None, owner=owner)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """The last epoch."""
            guard.finish()

    return TransformersGuard()


def model_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss that a model of transformers makes itself."""
    loss: Tensor = model(**batch).loss
    return loss


def every_label(batch: Any) -> float:
    """What the Trainer divides by where it does not know that the model shifts its labels: each row's first one too."""
    return float((batch["labels"] != -100).sum())


FIRST_LABELS = OtherUnits(
    every_label,
    "the Trainer counts each row's first label, which the model has no prediction for: the gradient is {ratio:.4g} × that of "
    "the mean loss, as if the learning rate were; set the first label of each row to -100 to avoid it",
)


def label_count(batch: Any) -> float:
    """What a causal language model's loss is a mean over: the labels that count, but for each row's first."""
    return float((batch["labels"][..., 1:] != -100).sum())
