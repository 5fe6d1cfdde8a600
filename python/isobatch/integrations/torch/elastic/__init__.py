"""A training run on changing GPUs: planned anew at whatever number of them it wakes up on."""
