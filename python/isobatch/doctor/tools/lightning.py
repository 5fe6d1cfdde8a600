"""Lightning."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.doctor.finding import Case, Finding, number


def check(case: Case) -> Iterator[Finding]:
    """What it does without a word in the file."""
    if case.at("lr_scheduler") is not None:
        yield Finding(
            "the scheduler moves once an epoch",
            "LightningCLI leaves interval at epoch",
            "lightning, pytorch/cli.py: LightningCLI.configure_optimizers; core/optimizer.py: interval",
            'return {"scheduler": ..., "interval": "step"} from configure_optimizers',
        )
    trainer = case.at("trainer") or {}
    if number(trainer.get("max_steps")) > 0 and trainer.get("max_epochs") is not None:
        yield Finding(
            "the run ends at max_steps or max_epochs, whichever is first",
            "both are given",
            "lightning, pytorch/trainer/trainer.py: max_epochs, max_steps",
            "remove one of them",
        )
    if trainer.get("max_steps") is None and trainer.get("max_epochs") is None:
        yield Finding(
            "the run takes 1,000 epochs",
            "neither max_steps nor max_epochs is given",
            "lightning, pytorch/trainer/trainer.py: max_epochs",
            "trainer.max_epochs: ...",
        )
    if (case.fields.get("accumulation") or 1) > 1:
        yield Finding(
            "the last step of an epoch with fewer micro-batches is divided by all of accumulate_grad_batches",
            "Lightning divides each loss by accumulate_grad_batches",
            "Lightning-AI/pytorch-lightning#19987",
            "drop_last=True, or a dataset that divides",
        )
