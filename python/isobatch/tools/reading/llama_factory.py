"""LLaMA-Factory's YAML: TrainingArguments, and what is its own beside them."""

from __future__ import annotations

from isobatch.tools.reading import transformers
from isobatch.tools.reading.page import Page

NAME = "llama_factory"
TITLE = "LLaMA-Factory"
VERSIONS = "0.8 to 0.9"
SIGNS = (
    *transformers.SIGNS,
    "finetuning_type",
    "stage",
    "cutoff_len",
    "template",
    "model_name_or_path",
    "dataset_dir",
)
CALLED = transformers.CALLED


def read(page: Page) -> None:
    """As transformers, with its name for the length of a sample."""
    transformers.read(page)
    page.whole("cutoff_len", "seq_len")
    if page.flag("packing"):
        page.note("packing: dataset_size is the number of packed sequences")
    if page.has("max_samples"):
        page.note(
            "max_samples bounds each data set; dataset_size is what is left for training after val_size"
        )
