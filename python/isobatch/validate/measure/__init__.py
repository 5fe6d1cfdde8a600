"""What is timed: the all-reduce, the step, the machine."""
