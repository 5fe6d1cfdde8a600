"""The experiment behind the scaling rules: short trainings for the learning rate, `ib.probe`.

torch is imported on first use.
"""
