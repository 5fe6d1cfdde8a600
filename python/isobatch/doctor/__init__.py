"""What a configuration will really do on so many GPUs, before anything runs: the guard's static twin."""
