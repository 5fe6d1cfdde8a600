"""Puts the guard into trainers with a loop of their own: Lightning's and transformers'."""

import inspect
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from isobatch.equivalence.laws import Cause
from isobatch.guard.loader import length
from isobatch.guard.reference import OtherUnits
from isobatch.guard.run import Run
from isobatch.planning.plan import plan as make_plan
from isobatch.tools.losses import trl_lines

COUNTS = ("steps_per_epoch", "samples_per_epoch", "total_steps")


class Owner(NamedTuple):
    """Describes a trainer with a loop of its own.

    `counts_labels`: it divides by a step's labels, as transformers' Trainer does; `over_ranks`: by those of
    all processes. `limit`: the micro-batches of an epoch, if it takes fewer than the loader has.
    """

    convention: Literal["transformers", "lightning"]
    total_steps: int | None = None
    counts_labels: bool = False
    over_ranks: bool = False
    limit: int | None = None

    @property
    def name(self) -> str:
        """The trainer for the words of its remedies: Accelerate's loader ends an epoch alike."""
        accelerates = self.convention == "transformers" and not self.counts_labels
        return "accelerate" if accelerates else self.convention


def check_convention(run: Run, owner: Owner | None) -> None:
    """Compares the plan's and the trainer's ways to count an epoch's end."""
    plan = run.plan
    if owner is None or plan.recipe.convention == owner.convention or plan.moves:
        return
    recipe = msgspec.structs.replace(plan.recipe, convention=owner.convention)
    by_owner = make_plan(recipe, plan.cluster, **plan.settings._asdict())
    differ = [name for name in COUNTS if getattr(plan, name) != getattr(by_owner, name)]
    if differ:
        counts = ", ".join(
            f"{name} {getattr(by_owner, name)}, {getattr(plan, name)} planned" for name in differ
        )
        text = f"{owner.convention} counts {counts} with convention={plan.recipe.convention!r}"
        run.stop(Cause.ANOTHER_CONVENTION.likely(f'convention="{owner.convention}"'), text)


def check_length(run: Run, owner: Owner | None) -> None:
    """Compares the trainer's number of steps with the plan's, after checks with a better diagnosis."""
    planned, steps = run.plan.total_steps, owner and owner.total_steps
    if planned is not None and steps is not None and planned != steps:
        text = f"the trainer will take {steps:,} optimizer steps, {planned:,} planned"
        run.stop(Cause.ANOTHER_LENGTH, text)


def lightning_callback(guard: Any) -> Any:
    """Makes a Lightning callback."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class LightningGuard(Callback):  # type: ignore[misc]
        """Watches a Trainer."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Attaches at the first place with the final optimizers and loaders."""
            loader, steps_done = trainer.train_dataloader, trainer.global_step
            single = loader if hasattr(loader, "batch_sampler") else None  # None if there are several loaders
            steps, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
            # Weight averaging adds an epoch without steps; under manual optimization the module decides.
            averages = any(
                type(callback).__name__ == "StochasticWeightAveraging" for callback in trainer.callbacks
            )
            known = pl_module.automatic_optimization and not averages and 0 < steps < float("inf")
            # By limit_train_batches or overfit_batches.
            limited = single is not None and batches < (length(single) or 0)
            owner = Owner("lightning", int(steps) if known else None, limit=int(batches) if limited else None)
            guard.attach(
                trainer.strategy.model,
                trainer.optimizers[0],
                single,
                start_step=steps_done or None,
                owner=owner,
            )
            if len(trainer.optimizers) > 1:
                guard.unchecked.append("optimizers other than the first")
            # The loader's iterator was made before this hook: it is made anew to be watched, unless it
            # resumes by itself.
            if not (steps_done and hasattr(loader, "load_state_dict")):
                iter(trainer.fit_loop._data_fetcher)

        def on_train_end(self, *_: Any) -> None:
            """Checks the last epoch."""
            guard.finish()

    return LightningGuard()


def transformers_callback(guard: Any) -> Any:
    """Makes a callback of transformers' Trainer."""
    from transformers import TrainerCallback

    class TransformersGuard(TrainerCallback):  # type: ignore[misc]
        """Watches a Trainer."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            """Attaches before the first batch."""
            model, optimizer, loader = (kwargs[name] for name in ("model", "optimizer", "train_dataloader"))
            over_ranks = bool(getattr(args, "average_tokens_across_devices", False))
            owner = Owner("transformers", state.max_steps if state.max_steps > 0 else None, True, over_ranks)
            guard.attach(model, optimizer, loader, start_step=state.global_step or None, owner=owner)
            for kind in type(args).__mro__:
                for line in trl_lines(kind.__name__.removesuffix("Config"), vars(args)):
                    guard.run.note(line)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            """Checks the last epoch."""
            guard.finish()

    return TransformersGuard()


def model_loss(model: nn.Module, batch: Any) -> Tensor:
    """Returns the own loss of a model of transformers."""
    loss: Tensor = model(**batch).loss
    return loss


def takes_labels(model: nn.Module) -> bool:
    """Tells whether the Trainer lets the model divide by a step's labels, by its rule in trainer.py."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    known = getattr(model, "accepts_loss_kwargs", None)
    arguments = inspect.signature(model.forward).parameters.values()
    if known is not None:
        return bool(known)
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in arguments)


def counted_labels(model: nn.Module, batch: Any) -> int | None:
    """Counts the labels in the model's mean loss, by an impossible number; None if ignored."""
    items = 2 * batch["labels"].numel() + 1
    number = torch.tensor(items, device=batch["labels"].device)
    mean, of_items = (float(model(**batch, **more).loss) for more in ({}, {"num_items_in_batch": number}))
    return None if abs(of_items - mean) <= 1e-6 * abs(mean) else round(items * of_items / mean)


def every_label(batch: Any) -> float:
    """Counts all labels, as the Trainer does: each row's first one too, if the model shifts them itself."""
    return float((batch["labels"] != -100).sum())


FIRST_LABELS = OtherUnits(
    every_label,
    "the Trainer counts each row's first label, which the model does not predict: the gradient is "
    "{ratio:.4g} × that of the mean loss, like a learning rate multiplied by that; set the first label of "
    "each row to -100 to avoid it",
)


def label_count(batch: Any) -> float:
    """Counts the labels of a causal language model's mean loss: all that count, but each row's first."""
    return float((batch["labels"][..., 1:] != -100).sum())
