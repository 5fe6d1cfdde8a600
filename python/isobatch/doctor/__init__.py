"""The real effect of a configuration on a number of GPUs."""
