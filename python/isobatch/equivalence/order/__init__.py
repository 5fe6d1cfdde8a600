"""Two runs of one command, compared in the order of a training."""
