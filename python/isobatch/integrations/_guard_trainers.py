"""The guard inside trainers that own the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isobatch.integrations._guard import Guard


def lightning_callback(guard: Guard) -> Any:
    """A Lightning callback. Lightning steps the optimizer inside of which it runs the closure, so that the gradients are
    ready only at its own hook."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningGuard(Callback):  # type: ignore[misc]
        """Holds a Trainer to a plan."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            """The first place where optimizers and loaders are what they will be."""
            guard._begin(
                trainer.strategy.model,
                trainer.optimizers[0],
                trainer.train_dataloader,
                trainer.global_step,
                None,
            )
            iter(trainer.fit_loop._data_fetcher)  # made before this hook: anew, so that it is seen

        def on_before_optimizer_step(self, *_: Any) -> None:
            """Gradients are averaged, and not clipped yet."""
            guard.before_step()

        def on_train_end(self, *_: Any) -> None:
            """The last epoch."""
            guard.finish()

    return LightningGuard()


def transformers_callback(guard: Guard) -> Any:
    """A callback of transformers' Trainer."""
    from transformers import TrainerCallback

    class TransformersGuard(TrainerCallback):  # type: ignore[misc]
        """Holds a Trainer to a plan."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            """Before the first batch."""
            optimizer = getattr(kwargs["optimizer"], "optimizer", kwargs["optimizer"])
            guard._begin(kwargs["model"], optimizer, kwargs["train_dataloader"], state.global_step, None)

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            """Gradients are averaged and clipped."""
            guard.before_step()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """The last epoch."""
            guard.finish()

    return TransformersGuard()
