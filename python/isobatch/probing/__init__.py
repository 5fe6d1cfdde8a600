"""The experiment behind the scaling rules: short trainings for the learning rate. `ib.probe` and `isobatch probe`; what needs torch is imported when it is first used."""
