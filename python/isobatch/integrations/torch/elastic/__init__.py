"""A training run that survives its GPUs: planned anew at whatever number of them it wakes up on."""
