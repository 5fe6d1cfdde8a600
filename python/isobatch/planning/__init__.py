"""One plan: what to train with on one cluster, and where a run stands in it."""
