"""A pool of GPUs and many jobs: who gets how many, on which nodes, and who waits."""
