"""A training run on changing GPUs: each start plans it anew for the GPUs at hand.

`ElasticRun` (run.py) restarts from a checkpoint at another number of GPUs. `survivors` (survivors.py) goes
on without a restart when ranks are lost or join.
"""
