"""Slow, obvious oracles: the same answers as the core by the plainest means, derived from the papers and peers."""
