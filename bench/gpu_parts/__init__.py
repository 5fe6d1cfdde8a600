"""The parts of a day with one GPU (`bench/gpu.py`), each in a process of its own: `run(small)` gives its figures, LIMIT_SECONDS ends it.

`small` is the rehearsal: the same code at a small size, also on a CPU."""
