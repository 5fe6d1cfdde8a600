"""Losses unlike at another split, by the mode in a file, each with its remedy.

Measured: TRL 1.16 by the census, verl by its own functions (bench/rl_losses.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from isobatch.tools.page import SettingsPage

_OF_A_PASS = "is a mean over the tokens of a pass, not of the step"
_OF_PAIRS = "compares the samples of a pass with one another"


class OtherLoss(NamedTuple):
    """A mode: the law that it breaks, what it does, and the mode to use; empty: none."""

    law: str
    text: str
    instead: str

    def line(self, mode: str) -> str:
        """Says in one line the change by another split."""
        change = f"use {self.instead}" if self.instead else "keep the micro-batch, the accumulation and GPUs"
        return f"{mode} {self.text}: another training at another split ({self.law}); {change}"


TRL = {
    ("GRPO", "bnpo"): OtherLoss("own_units", _OF_A_PASS, "loss_type dapo"),
    ("KTO", "kto"): OtherLoss("coupled_samples", _OF_PAIRS, "loss_type apo_zero_unpaired"),
    ("DPO", "sft"): OtherLoss("own_units", _OF_A_PASS, ""),
    ("DPO", "aot_unpaired"): OtherLoss("coupled_samples", _OF_PAIRS, "loss_type aot"),
}
"""By the trainer and its `loss_type`."""
ENTROPY = OtherLoss(
    "loss_term", "adds an entropy of each pass, as a mean over the pass's tokens", "entropy_coef 0"
)

VERL = {
    "token-mean": OtherLoss(
        "own_units", f"before verl 0.8 {_OF_A_PASS}", "verl 0.8, or loss_agg_mode seq-mean-token-mean"
    ),
    "seq-mean-token-sum-norm": OtherLoss(
        "divided_by_ranks", "before verl 0.7.1 is divided by the GPUs", "verl 0.7.1, or seq-mean-token-sum"
    ),
}
"""By the actor's `loss_agg_mode`."""


def trl_lines(trainer: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each loss of a TRL trainer unlike at another split.

    Args:
        trainer: the name of its configuration without `Config`.
        settings: of it, among them `loss_type` and `entropy_coef`.
    """
    kinds = settings.get("loss_type") or []
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if (loss := TRL.get((trainer, str(kind)))) is not None:
            yield loss.line(f"loss_type {kind}")
    if trainer == "GRPO" and settings.get("entropy_coef"):
        yield ENTROPY.line("entropy_coef")


def note_trl(page: SettingsPage, trainer: str) -> None:
    """Notes a TRL trainer's loss if another split changes it."""
    entropy = page.number("entropy_coef", default=0) if trainer == "GRPO" else 0
    for line in trl_lines(trainer, {**page.settings, "entropy_coef": entropy}):
        page.note(line)


def note_verl(page: SettingsPage, key: str) -> None:
    """Notes the aggregation of verl's actor if another split changes it; the default's too."""
    mode = page.word(key, "token-mean") or ""
    if (loss := VERL.get(mode)) is not None:
        page.note(loss.line(f"loss_agg_mode {mode}"))
