"""A plan's pieces for a training loop: the learning rate, the sampler, the loader."""
