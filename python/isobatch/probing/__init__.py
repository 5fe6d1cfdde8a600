"""The experiment that the scaling rules stand in for: short trainings that measure the learning rate, the critical batch, and that a
plan trains the same. `ib.probe` and `isobatch probe`; what needs torch is imported when it is first used."""
