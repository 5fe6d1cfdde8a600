"""The guard: one file for each thing that it looks at. `guard.py` puts them into a script, `run.py` is what they share."""
