"""The guard inside trainers that own the loop."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn


class Attachable(Protocol):
    """What a trainer's callback needs of a guard."""

    unchecked: list[str]

    def attach(
        self, model: nn.Module, optimizer: Any, loader: Any = None, *, start_step: int | None = None
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
            guard.attach(trainer.strategy.model, trainer.optimizers[0], single, start_step=done or None)
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
            guard.attach(model, optimizer, loader, start_step=state.global_step or None)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """The last epoch."""
            guard.finish()

    return TransformersGuard()


def model_loss(model: nn.Module, batch: Any) -> Tensor:
    """The loss that a model of transformers makes itself."""
    loss: Tensor = model(**batch).loss
    return loss


def label_count(batch: Any) -> float:
    """What a causal language model's loss is a mean over: the labels that count, but for each row's first."""
    return float((batch["labels"][..., 1:] != -100).sum())
