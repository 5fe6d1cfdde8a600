"""Published learning rates beside the plans of rule `auto`, by family of training."""

from __future__ import annotations

from typing import NamedTuple


class PublishedRates(NamedTuple):
    """Planned over used learning rates of a family's pairs of batches, `k` the larger over the smaller.

    Above 1 the plan is too high; `within_2` counts the pairs within a factor of 2.
    """

    family: str
    rule: str
    pairs: int
    k: float
    lowest: float
    highest: float
    within_2: int


PUBLISHED_RATES = (
    PublishedRates("language models", "sqrt", 17, 8.0, 0.50, 1.54, 17),
    PublishedRates("LoRA", "sqrt", 3, 16.0, 1.41, 2.00, 3),
    PublishedRates("diffusion", "sqrt", 7, 8.0, 0.79, 1.60, 7),
    PublishedRates("detection, Adam", "sqrt", 8, 16.0, 1.12, 4.00, 5),
    PublishedRates("segmentation, SGD", "linear", 3, 3.0, 2.00, 4.00, 1),
    PublishedRates("SGD", "linear", 8, 34.0, 1.00, 1.51, 8),
    PublishedRates("graphs, Adam", "sqrt", 4, 64.0, 1.00, 1.60, 4),
    PublishedRates("LAMB", "sqrt", 17, 64.0, 0.42, 1.77, 15),
    PublishedRates("LARS", "sqrt", 9, 42.0, 0.98, 2.09, 8),
)
"""MLPerf Training 2.1 to 6.1, 17 workloads, the newest round of each (`bench/published_rates.py`)."""
