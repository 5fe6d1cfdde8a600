"""axolotl's and LLaMA-Factory's YAML: names of their own for arguments of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterator

from isobatch.tools.page import SettingsPage
from isobatch.tools.tool import Case, Issue, Reader, Tool
from isobatch.tools.transformers import NAMES as TRAINER_NAMES
from isobatch.tools.transformers import check as check_trainer
from isobatch.tools.transformers import read as read_trainer
from isobatch.tools.transformers import read_adam, read_batch, read_intervals, read_lengths, read_schedule
from isobatch.words import share

_NAMES = {
    "accumulation": "gradient_accumulation_steps",
    "batch_per_gpu": "micro_batch_size",
    "duration": "max_steps",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
}


def read(page: SettingsPage) -> None:
    """Reads axolotl's names for arguments of the Trainer."""
    read_batch(page, "micro_batch_size")
    page.number("learning_rate", "lr")
    read_lengths(page, "num_epochs", 1)
    read_intervals(page)
    page.give("convention", "transformers", "")
    read_schedule(page, "lr_scheduler", "cosine")
    read_adam(page, "optimizer", "adamw_torch")
    page.whole("sequence_len", "seq_len")
    page.precision({"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"})
    if not page.has("warmup_steps") and not page.has("warmup_ratio"):
        page.note(
            "no warmup_steps or warmup_ratio: axolotl then warms up over 3 % of the steps, at most 100; planned without"
        )
    if page.flag("sample_packing"):
        page.note(
            "sample_packing: dataset_size is the number of packed sequences, which axolotl prints when it starts"
        )


def _read_llama_factory(page: SettingsPage) -> None:
    """As transformers, with its name for the length of a sample."""
    read_trainer(page)
    page.whole("cutoff_len", "seq_len")
    if page.flag("packing"):
        page.note("packing: dataset_size is the number of packed sequences")
    if page.has("max_samples"):
        page.note(
            "max_samples bounds each data set; dataset_size is what is left for training after val_size"
        )


def check(case: Case) -> Iterator[Issue]:
    """Finds axolotl's silent behaviour: the Trainer's, and a warmup."""
    yield from check_trainer(case)
    if case.at("warmup_steps") is None and case.at("warmup_ratio") is None:
        yield Issue(
            f"the warmup is {share(0.03)} of the steps, at most 100",
            "neither warmup_steps nor warmup_ratio is given",
            "axolotl, core/builders/base.py",
            "warmup_steps: 0  (for none)",
        )


AXOLOTL = Tool(
    name="axolotl",
    title="axolotl",
    reader=Reader(versions="0.4 to 0.12", read=read, check=check, names=_NAMES),
    written_as="transformers",
)

LLAMA_FACTORY = Tool(
    name="llama_factory",
    title="LLaMA-Factory",
    reader=Reader(versions="0.8 to 0.9", read=_read_llama_factory, check=check_trainer, names=TRAINER_NAMES),
    written_as="transformers",
)
