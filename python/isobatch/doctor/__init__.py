"""What a configuration will really do on a given number of GPUs, before anything runs: the guard's static twin."""
