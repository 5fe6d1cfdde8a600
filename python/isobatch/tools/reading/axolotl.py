"""axolotl's YAML."""

from __future__ import annotations

from isobatch.tools.reading.common import precision
from isobatch.tools.reading.page import Page
from isobatch.tools.reading.transformers import adam, batch, intervals, lengths, schedule

NAME = "axolotl"
TITLE = "axolotl"
VERSIONS = "0.4 to 0.12"
SIGNS = (
    "base_model",
    "micro_batch_size",
    "num_epochs",
    "sequence_len",
    "lr_scheduler",
    "gradient_accumulation_steps",
    "learning_rate",
    "optimizer",
    "sample_packing",
    "adapter",
    "datasets",
)
CALLED = {
    "accumulation": "gradient_accumulation_steps",
    "batch_per_gpu": "micro_batch_size",
    "duration": "max_steps",
    "lr": "learning_rate",
    "warmup": "warmup_steps",
}
"""What the tool calls the fields of a recipe, where a file leaves one out."""


def read(page: Page) -> None:
    """What axolotl hands to the Trainer: its names for the same arguments."""
    batch(page, "micro_batch_size")
    page.number("learning_rate", "lr")
    lengths(page, "num_epochs", 1)
    intervals(page)
    page.give("convention", "transformers", "")
    schedule(page, "lr_scheduler", "cosine")
    adam(page, "optimizer", "adamw_torch")
    page.whole("sequence_len", "seq_len")
    precision(page, {"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"})
    if not page.has("warmup_steps") and not page.has("warmup_ratio"):
        page.note(
            "no warmup_steps or warmup_ratio: axolotl then warms up over 3 % of the steps, at most 100; planned without"
        )
    if page.flag("sample_packing"):
        page.note(
            "sample_packing: dataset_size is the number of packed sequences, which axolotl prints when it starts"
        )
