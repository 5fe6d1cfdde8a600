"""A training command, started at a split of its batch with the recorder."""
